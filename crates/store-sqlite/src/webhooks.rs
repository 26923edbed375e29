//! Secrets of webhooks; what is stored of them is encrypted above this crate.

use async_trait::async_trait;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::{TaskId, WebhookSecretId};
use switchboard_model::webhook::{
    NewWebhookSecret, SealedWebhookSecret, SecretPurpose, WEBHOOK_SECRETS, WebhookSecret,
};
use switchboard_store_api::{StoreResult, WebhookSecretOutcome, WebhookStore, WebhookTarget, WriteContext, Written};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, instant, later};
use crate::writer::{Change, Lane};
use crate::{Database, connect, context, tasks};

async fn add(
    change: &mut Change,
    context: WriteContext,
    secret: NewWebhookSecret,
) -> DbResult<Written<WebhookSecretOutcome>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    if tasks::row(&mut change.connection, secret.task_id).await?.is_none() {
        return Ok(Written::Now(WebhookSecretOutcome::TaskNotFound));
    }
    let working: u32 = sqlx::query_scalar(
        "-- webhooks.count_working
        SELECT COUNT(*) FROM webhook_secrets
        WHERE task_id = ? AND purpose = ? AND (expires_at IS NULL OR expires_at > ?)",
    )
    .bind(secret.task_id.as_uuid())
    .bind(secret.purpose.as_str())
    .bind(change.now)
    .fetch_one(&mut change.connection)
    .await?;
    if working >= WEBHOOK_SECRETS {
        return Ok(Written::Now(WebhookSecretOutcome::TooMany));
    }
    let expires_at = secret.ttl.map(|ttl| later(change.now, ttl));
    sqlx::query(
        "-- webhooks.add
        INSERT INTO webhook_secrets (id, task_id, purpose, sealed, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)",
    )
    .bind(secret.id.as_uuid())
    .bind(secret.task_id.as_uuid())
    .bind(secret.purpose.as_str())
    .bind(secret.sealed)
    .bind(change.now)
    .bind(expires_at)
    .execute(&mut change.connection)
    .await?;
    context::complete(change, &context, secret.id.as_uuid()).await?;
    Ok(Written::Now(WebhookSecretOutcome::Added(WebhookSecret {
        id: secret.id,
        task_id: secret.task_id,
        purpose: secret.purpose,
        created_at: instant(change.now)?,
        expires_at: expires_at.map(instant).transpose()?,
    })))
}

async fn target(database: &Database, task: &TaskName) -> DbResult<Option<WebhookTarget>> {
    // A task without a secret that works is one row with nothing beside it.
    let rows: Vec<(Uuid, Option<Uuid>, Option<Vec<u8>>)> = sqlx::query_as(
        "-- webhooks.target
        SELECT tasks.id, webhook_secrets.id, sealed FROM tasks LEFT JOIN webhook_secrets
            ON task_id = tasks.id AND purpose = ?3 AND (expires_at IS NULL OR expires_at > ?1)
        WHERE name = ?2 AND deleted_at IS NULL ORDER BY webhook_secrets.id DESC",
    )
    .bind(connect::now())
    .bind(task.as_str())
    .bind(SecretPurpose::Receive.as_str())
    .fetch_all(&database.readers)
    .await?;
    let Some((task_id, ..)) = rows.first() else { return Ok(None) };
    let task_id = TaskId::from_uuid(*task_id);
    let secret = |(_, id, sealed): (Uuid, Option<Uuid>, Option<Vec<u8>>)| {
        Some(SealedWebhookSecret { id: WebhookSecretId::from_uuid(id?), sealed: sealed? })
    };
    Ok(Some(WebhookTarget { task_id, secrets: rows.into_iter().filter_map(secret).collect() }))
}

async fn signing(database: &Database, task: TaskId) -> DbResult<Vec<SealedWebhookSecret>> {
    let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(
        "-- webhooks.signing
        SELECT id, sealed FROM webhook_secrets
        WHERE task_id = ? AND purpose = ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY id DESC",
    )
    .bind(task.as_uuid())
    .bind(SecretPurpose::Sign.as_str())
    .bind(connect::now())
    .fetch_all(&database.readers)
    .await?;
    let secret = |(id, sealed)| SealedWebhookSecret { id: WebhookSecretId::from_uuid(id), sealed };
    Ok(rows.into_iter().map(secret).collect())
}

async fn list(database: &Database, task: TaskId) -> DbResult<Vec<WebhookSecret>> {
    let rows: Vec<Stored<WebhookSecret>> = sqlx::query_as(
        "-- webhooks.list
        SELECT * FROM webhook_secrets WHERE task_id = ? ORDER BY id",
    )
    .bind(task.as_uuid())
    .fetch_all(&database.readers)
    .await?;
    Ok(rows.into_iter().map(Stored::into_inner).collect())
}

async fn delete(change: &mut Change, context: WriteContext, task: TaskId, id: WebhookSecretId) -> DbResult<bool> {
    let deleted = sqlx::query(
        "-- webhooks.delete
        DELETE FROM webhook_secrets WHERE id = ? AND task_id = ?",
    )
    .bind(id.as_uuid())
    .bind(task.as_uuid())
    .execute(&mut change.connection)
    .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    context::audit(change, &context).await?;
    Ok(true)
}

async fn sweep(change: &mut Change, limit: u32) -> DbResult<u64> {
    let swept = sqlx::query(
        "-- webhooks.sweep
        DELETE FROM webhook_secrets WHERE id IN (
            SELECT id FROM webhook_secrets WHERE expires_at <= ?
                OR (NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = webhook_secrets.task_id AND deleted_at IS NULL)
                    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.task_id = webhook_secrets.task_id))
            LIMIT ?)",
    )
    .bind(change.now)
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    Ok(swept.rows_affected())
}

#[async_trait]
impl WebhookStore for Database {
    #[tracing::instrument(name = "db.webhooks.add", level = "debug", skip_all)]
    async fn add(
        &self,
        context: &WriteContext,
        secret: &NewWebhookSecret,
    ) -> StoreResult<Written<WebhookSecretOutcome>> {
        let (context, secret) = (context.clone(), secret.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(add(change, context, secret))).await
    }

    #[tracing::instrument(name = "db.webhooks.target", level = "debug", skip_all)]
    async fn target(&self, task: &TaskName) -> StoreResult<Option<WebhookTarget>> {
        Ok(target(self, task).await?)
    }

    #[tracing::instrument(name = "db.webhooks.signing", level = "debug", skip_all)]
    async fn signing(&self, task: TaskId) -> StoreResult<Vec<SealedWebhookSecret>> {
        Ok(signing(self, task).await?)
    }

    #[tracing::instrument(name = "db.webhooks.list", level = "debug", skip_all)]
    async fn list(&self, task: TaskId) -> StoreResult<Vec<WebhookSecret>> {
        Ok(list(self, task).await?)
    }

    #[tracing::instrument(name = "db.webhooks.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, task: TaskId, id: WebhookSecretId) -> StoreResult<bool> {
        let context = context.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(delete(change, context, task, id))).await
    }

    #[tracing::instrument(name = "db.webhooks.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep(change, limit))).await
    }
}
