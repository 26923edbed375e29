//! Secrets of webhooks; what is stored of them is encrypted above this crate.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::{TaskId, WebhookSecretId};
use switchboard_model::webhook::{
    NewWebhookSecret, SealedWebhookSecret, SecretPurpose, WEBHOOK_SECRETS, WebhookSecret,
};
use switchboard_store_api::{
    StoreError, StoreResult, WebhookSecretOutcome, WebhookStore, WebhookTarget, WriteContext, Written,
};
use uuid::Uuid;

use crate::connect::Database;
use crate::context::{audit, claim};
use crate::error::fault;
use crate::rows::parsed;

pub(crate) struct Webhooks(pub(crate) Arc<Database>);

#[derive(sqlx::FromRow)]
struct SecretRow {
    id: Uuid,
    task_id: Uuid,
    purpose: String,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
}

impl TryFrom<SecretRow> for WebhookSecret {
    type Error = StoreError;

    fn try_from(row: SecretRow) -> StoreResult<Self> {
        Ok(Self {
            id: WebhookSecretId::from_uuid(row.id),
            task_id: TaskId::from_uuid(row.task_id),
            purpose: parsed("webhook secret", &row.purpose)?,
            created_at: row.created_at,
            expires_at: row.expires_at,
        })
    }
}

#[async_trait]
impl WebhookStore for Webhooks {
    #[tracing::instrument(name = "db.webhooks.add", level = "debug", skip_all)]
    async fn add(
        &self,
        context: &WriteContext,
        secret: &NewWebhookSecret,
    ) -> StoreResult<Written<WebhookSecretOutcome>> {
        let mut tx = self.0.begin().await?;
        if let Some(before) = claim(&mut tx, context, secret.id.as_uuid()).await? {
            return tx.undo(before).await;
        }
        let task = sqlx::query(
            "-- webhooks.lock_task
             SELECT FROM switchboard.tasks WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE",
        )
        .bind(secret.task_id.as_uuid())
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        if task.is_none() {
            return tx.undo(Written::Now(WebhookSecretOutcome::TaskNotFound)).await;
        }
        let added: Option<SecretRow> = sqlx::query_as(
            "-- webhooks.add
             WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now)
             INSERT INTO switchboard.webhook_secrets (id, task_id, sealed, created_at, expires_at, purpose)
             SELECT $1, $2, $3, now, now + $4 * interval '1 millisecond', $6
             FROM moment
             WHERE (
                 SELECT count(*) FROM switchboard.webhook_secrets
                 WHERE task_id = $2 AND purpose = $6 AND (expires_at IS NULL OR expires_at > moment.now)
             ) < $5
             RETURNING id, task_id, purpose, created_at, expires_at",
        )
        .bind(secret.id.as_uuid())
        .bind(secret.task_id.as_uuid())
        .bind(&secret.sealed)
        .bind(secret.ttl.map(|ttl| ttl.as_millis_i64()))
        .bind(i64::from(WEBHOOK_SECRETS))
        .bind(secret.purpose.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(added) = added else { return tx.undo(Written::Now(WebhookSecretOutcome::TooMany)).await };
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(Written::Now(WebhookSecretOutcome::Added(added.try_into()?)))
    }

    #[tracing::instrument(name = "db.webhooks.target", level = "debug", skip_all)]
    async fn target(&self, task: &TaskName) -> StoreResult<Option<WebhookTarget>> {
        let mut session = self.0.session().await?;
        // A task without a secret that works is one row with nothing beside it.
        let rows: Vec<(Uuid, Option<Uuid>, Option<Vec<u8>>)> = sqlx::query_as(
            "-- webhooks.target
             SELECT task.id, secret.id, secret.sealed
             FROM switchboard.tasks AS task
             LEFT JOIN switchboard.webhook_secrets AS secret
                 ON secret.task_id = task.id AND secret.purpose = $2
                 AND (secret.expires_at IS NULL OR secret.expires_at > clock_timestamp())
             WHERE task.name = $1 AND task.deleted_at IS NULL
             ORDER BY secret.id DESC",
        )
        .bind(task.as_str())
        .bind(SecretPurpose::Receive.as_str())
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let Some((task_id, ..)) = rows.first() else { return Ok(None) };
        let task_id = TaskId::from_uuid(*task_id);
        let secret = |(_, id, sealed): (Uuid, Option<Uuid>, Option<Vec<u8>>)| {
            Some(SealedWebhookSecret { id: WebhookSecretId::from_uuid(id?), sealed: sealed? })
        };
        Ok(Some(WebhookTarget { task_id, secrets: rows.into_iter().filter_map(secret).collect() }))
    }

    #[tracing::instrument(name = "db.webhooks.signing", level = "debug", skip_all)]
    async fn signing(&self, task: TaskId) -> StoreResult<Vec<SealedWebhookSecret>> {
        let mut session = self.0.session().await?;
        let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(
            "-- webhooks.signing
             SELECT id, sealed FROM switchboard.webhook_secrets
             WHERE task_id = $1 AND purpose = $2 AND (expires_at IS NULL OR expires_at > clock_timestamp())
             ORDER BY id DESC",
        )
        .bind(task.as_uuid())
        .bind(SecretPurpose::Sign.as_str())
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let secret = |(id, sealed)| SealedWebhookSecret { id: WebhookSecretId::from_uuid(id), sealed };
        Ok(rows.into_iter().map(secret).collect())
    }

    #[tracing::instrument(name = "db.webhooks.list", level = "debug", skip_all)]
    async fn list(&self, task: TaskId) -> StoreResult<Vec<WebhookSecret>> {
        let mut session = self.0.session().await?;
        let rows: Vec<SecretRow> = sqlx::query_as(
            "-- webhooks.list
             SELECT id, task_id, purpose, created_at, expires_at FROM switchboard.webhook_secrets
             WHERE task_id = $1 ORDER BY id",
        )
        .bind(task.as_uuid())
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        rows.into_iter().map(WebhookSecret::try_from).collect()
    }

    #[tracing::instrument(name = "db.webhooks.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, task: TaskId, id: WebhookSecretId) -> StoreResult<bool> {
        let mut tx = self.0.begin().await?;
        let deleted = sqlx::query(
            "-- webhooks.delete
             DELETE FROM switchboard.webhook_secrets WHERE id = $1 AND task_id = $2",
        )
        .bind(id.as_uuid())
        .bind(task.as_uuid())
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected();
        if deleted == 0 {
            return tx.undo(false).await;
        }
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(true)
    }

    #[tracing::instrument(name = "db.webhooks.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        let mut session = self.0.session().await?;
        // No run of a deleted task comes into being, so one that was not seen is none.
        let deleted = sqlx::query(
            "-- webhooks.sweep
             WITH dead AS MATERIALIZED (
                 SELECT id FROM switchboard.webhook_secrets AS secret
                 WHERE expires_at <= statement_timestamp()
                    OR (NOT EXISTS (SELECT FROM switchboard.tasks WHERE id = secret.task_id AND deleted_at IS NULL)
                        AND NOT EXISTS (
                            SELECT FROM switchboard.runs
                            WHERE task_id = secret.task_id AND state IN ('scheduled', 'queued', 'waiting', 'running')
                            UNION ALL
                            SELECT FROM switchboard.runs
                            WHERE task_id = secret.task_id AND state IN ('succeeded', 'failed', 'cancelled', 'dead')
                        ))
                 LIMIT $1 FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.webhook_secrets AS secret USING dead WHERE secret.id = dead.id",
        )
        .bind(i64::from(limit))
        .execute(&mut *session)
        .await
        .map_err(fault)?
        .rows_affected();
        session.commit().await?;
        Ok(deleted)
    }
}
