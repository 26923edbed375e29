//! Live replicas and their leases.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::InstanceId;
use switchboard_model::instance::{Instance, NewInstance, UncoveredPool};
use switchboard_model::span::Span;
use switchboard_store_api::{InstanceStore, StoreResult};

use crate::connect::Database;
use crate::connections;
use crate::error::fault;
use crate::rows::{InstanceRow, count, int, join, parsed};

pub(crate) struct Instances(pub(crate) Arc<Database>);

#[async_trait]
impl InstanceStore for Instances {
    #[tracing::instrument(name = "db.instances.register", level = "debug", skip_all)]
    async fn register(&self, instance: &NewInstance, lease: Span) -> StoreResult<()> {
        let mut tx = self.0.begin().await?;
        sqlx::query(
            "-- instances.register
             INSERT INTO switchboard.instances
                 (id, name, version, schema_version, roles, pools, pool_size, key_check, started_at, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $9, clock_timestamp(),
                     clock_timestamp() + $8 * interval '1 millisecond')
             ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at",
        )
        .bind(instance.id.as_str())
        .bind(&instance.name)
        .bind(&instance.version)
        .bind(instance.schema_version)
        .bind(join(&instance.roles))
        .bind(join(&instance.pools))
        .bind(int(instance.pool_size))
        .bind(lease.as_millis_i64())
        .bind(&instance.key_check)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.signal(SignalKind::InstanceChanged, &instance.id);
        tx.commit().await
    }

    #[tracing::instrument(name = "db.instances.renew", level = "debug", skip_all)]
    async fn renew(&self, id: &InstanceId, lease: Span) -> StoreResult<bool> {
        let mut session = self.0.vital_session().await?;
        let renewed = sqlx::query(
            "-- instances.renew
             UPDATE switchboard.instances SET expires_at = clock_timestamp() + $2 * interval '1 millisecond'
             WHERE id = $1 AND expires_at > clock_timestamp()",
        )
        .bind(id.as_str())
        .bind(lease.as_millis_i64())
        .execute(&mut *session)
        .await
        .map_err(fault)?
        .rows_affected();
        session.commit().await?;
        Ok(renewed == 1)
    }

    #[tracing::instrument(name = "db.instances.deregister", level = "debug", skip_all)]
    async fn deregister(&self, id: &InstanceId) -> StoreResult<()> {
        let mut tx = self.0.begin().await?;
        let deleted = sqlx::query(
            "-- instances.deregister
             DELETE FROM switchboard.instances WHERE id = $1",
        )
        .bind(id.as_str())
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected();
        if deleted == 1 {
            connections::forget(&mut tx, &[id.as_str()]).await?;
            tx.signal(SignalKind::InstanceChanged, id);
        }
        tx.commit().await
    }

    #[tracing::instrument(name = "db.instances.sweep", level = "debug", skip_all)]
    async fn sweep(&self) -> StoreResult<Vec<InstanceId>> {
        let mut tx = self.0.begin().await?;
        // Locking re-checks a row that was renewed in between.
        let expired: Vec<String> = sqlx::query_scalar(
            "-- instances.sweep
             WITH expired AS MATERIALIZED (
                 SELECT id FROM switchboard.instances WHERE expires_at <= clock_timestamp()
                 ORDER BY id FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.instances AS instance USING expired WHERE instance.id = expired.id
             RETURNING instance.id",
        )
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        if !expired.is_empty() {
            connections::forget(&mut tx, &expired.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        }
        for id in &expired {
            tx.signal(SignalKind::InstanceChanged, id);
        }
        tx.commit().await?;
        Ok(expired.into_iter().map(InstanceId::from_stored).collect())
    }

    #[tracing::instrument(name = "db.instances.list", level = "debug", skip_all)]
    async fn list(&self) -> StoreResult<Vec<Instance>> {
        let mut session = self.0.session().await?;
        let rows: Vec<InstanceRow> = sqlx::query_as(
            "-- instances.list
             SELECT id, name, version, schema_version, roles, pools, pool_size, started_at, expires_at, key_check
             FROM switchboard.instances WHERE expires_at > clock_timestamp() ORDER BY started_at, id",
        )
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        Ok(rows.into_iter().map(Instance::from).collect())
    }

    #[tracing::instrument(name = "db.instances.uncovered_pools", level = "debug", skip_all)]
    async fn uncovered_pools(&self) -> StoreResult<Vec<UncoveredPool>> {
        let mut session = self.0.session().await?;
        // From pool to pool by the index, whatever lies in the queues of those that are served.
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "-- instances.uncovered_pools
             WITH RECURSIVE queued (pool) AS (
                 (SELECT pool FROM switchboard.runs
                  WHERE state = 'queued' AND NOT is_pull ORDER BY pool LIMIT 1)
                 UNION ALL
                 SELECT (SELECT run.pool FROM switchboard.runs AS run
                         WHERE run.state = 'queued' AND NOT run.is_pull AND run.pool > queued.pool
                         ORDER BY run.pool LIMIT 1)
                 FROM queued WHERE queued.pool IS NOT NULL
             )
             SELECT queued.pool, (SELECT count(*) FROM switchboard.runs AS run
                                  WHERE run.state = 'queued' AND NOT run.is_pull AND run.pool = queued.pool)
             FROM queued
             WHERE queued.pool IS NOT NULL AND NOT EXISTS (
                 SELECT FROM switchboard.instances
                 WHERE expires_at > clock_timestamp() AND 'worker' = ANY (string_to_array(roles, ','))
                   AND queued.pool = ANY (string_to_array(pools, ',') || $1::text)
             )
             ORDER BY queued.pool",
        )
        .bind(PoolName::SYSTEM)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let uncovered =
            |(pool, queued): (String, i64)| Ok(UncoveredPool { pool: parsed("pool", &pool)?, queued: count(queued) });
        rows.into_iter().map(uncovered).collect()
    }
}
