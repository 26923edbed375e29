//! Live replicas. There is one on this backend, but it is announced and listed like any other.

use async_trait::async_trait;
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::InstanceId;
use switchboard_model::instance::{Instance, NewInstance, UncoveredPool};
use switchboard_model::span::Span;
use switchboard_store_api::{InstanceStore, StoreResult};

use crate::error::DbResult;
use crate::rows::{Stored, later};
use crate::writer::{Change, Lane};
use crate::{Database, connect, connections};

async fn register(change: &mut Change, instance: NewInstance, lease: Span) -> DbResult<()> {
    sqlx::query(
        "-- instances.register
        INSERT INTO instances
            (id, name, version, schema_version, roles, pools, pool_size, key_check, started_at, expires_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET expires_at = excluded.expires_at",
    )
    .bind(instance.id.as_str())
    .bind(&instance.name)
    .bind(&instance.version)
    .bind(instance.schema_version)
    .bind(serde_json::to_string(&instance.roles)?)
    .bind(serde_json::to_string(&instance.pools)?)
    .bind(instance.pool_size)
    .bind(&instance.key_check)
    .bind(change.now)
    .bind(later(change.now, lease))
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::InstanceChanged, instance.id.as_str(), 0);
    Ok(())
}

async fn renew(change: &mut Change, id: InstanceId, lease: Span) -> DbResult<bool> {
    let renewed = sqlx::query(
        "-- instances.renew
        UPDATE instances SET expires_at = ?1 WHERE id = ?2 AND expires_at > ?3",
    )
    .bind(later(change.now, lease))
    .bind(id.as_str())
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    Ok(renewed.rows_affected() > 0)
}

async fn deregister(change: &mut Change, id: InstanceId) -> DbResult<()> {
    let gone = sqlx::query(
        "-- instances.deregister
        DELETE FROM instances WHERE id = ?",
    )
    .bind(id.as_str())
    .execute(&mut change.connection)
    .await?;
    if gone.rows_affected() > 0 {
        connections::forget(change, id.as_str()).await?;
        change.signal(SignalKind::InstanceChanged, id.as_str(), 0);
    }
    Ok(())
}

async fn sweep(change: &mut Change) -> DbResult<Vec<InstanceId>> {
    let gone: Vec<String> = sqlx::query_scalar(
        "-- instances.sweep
        DELETE FROM instances WHERE expires_at <= ? RETURNING id",
    )
    .bind(change.now)
    .fetch_all(&mut change.connection)
    .await?;
    for id in &gone {
        connections::forget(change, id).await?;
        change.signal(SignalKind::InstanceChanged, id, 0);
    }
    Ok(gone.into_iter().map(InstanceId::from_stored).collect())
}

async fn list(database: &Database) -> DbResult<Vec<Instance>> {
    let rows: Vec<Stored<Instance>> = sqlx::query_as(
        "-- instances.list
        SELECT * FROM instances WHERE expires_at > ? ORDER BY started_at, id",
    )
    .bind(connect::now())
    .fetch_all(&database.readers)
    .await?;
    Ok(rows.into_iter().map(Stored::into_inner).collect())
}

async fn uncovered_pools(database: &Database) -> DbResult<Vec<UncoveredPool>> {
    let rows: Vec<Stored<UncoveredPool>> = sqlx::query_as(
        "-- instances.uncovered_pools
        SELECT pool, COUNT(*) AS queued FROM runs
        WHERE state = 'queued' AND NOT is_pull AND NOT EXISTS (
            SELECT 1 FROM instances
            WHERE expires_at > ?1 AND EXISTS (SELECT 1 FROM json_each(roles) WHERE value = 'worker')
                AND (runs.pool = ?2 OR EXISTS (SELECT 1 FROM json_each(instances.pools) WHERE value = runs.pool)))
        GROUP BY pool ORDER BY pool",
    )
    .bind(connect::now())
    .bind(PoolName::SYSTEM)
    .fetch_all(&database.readers)
    .await?;
    Ok(rows.into_iter().map(Stored::into_inner).collect())
}

#[async_trait]
impl InstanceStore for Database {
    #[tracing::instrument(name = "db.instances.register", level = "debug", skip_all)]
    async fn register(&self, instance: &NewInstance, lease: Span) -> StoreResult<()> {
        let instance = instance.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(register(change, instance, lease))).await
    }

    #[tracing::instrument(name = "db.instances.renew", level = "debug", skip_all)]
    async fn renew(&self, id: &InstanceId, lease: Span) -> StoreResult<bool> {
        let id = id.clone();
        self.writer.write(Lane::Urgent, move |change| Box::pin(renew(change, id, lease))).await
    }

    #[tracing::instrument(name = "db.instances.deregister", level = "debug", skip_all)]
    async fn deregister(&self, id: &InstanceId) -> StoreResult<()> {
        let id = id.clone();
        self.writer.write(Lane::Normal, |change| Box::pin(deregister(change, id))).await
    }

    #[tracing::instrument(name = "db.instances.sweep", level = "debug", skip_all)]
    async fn sweep(&self) -> StoreResult<Vec<InstanceId>> {
        self.writer.write(Lane::Normal, |change| Box::pin(sweep(change))).await
    }

    #[tracing::instrument(name = "db.instances.list", level = "debug", skip_all)]
    async fn list(&self) -> StoreResult<Vec<Instance>> {
        Ok(list(self).await?)
    }

    #[tracing::instrument(name = "db.instances.uncovered_pools", level = "debug", skip_all)]
    async fn uncovered_pools(&self) -> StoreResult<Vec<UncoveredPool>> {
        Ok(uncovered_pools(self).await?)
    }
}
