//! API keys.

use async_trait::async_trait;
use switchboard_model::api_key::{ApiKey, NewApiKey};
use switchboard_model::feed::SignalKind;
use switchboard_model::ids::ApiKeyId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::secret_text::SecretHash;
use switchboard_store_api::{ApiKeyStore, StoreResult, WriteContext, Written};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, cursor, instant, later};
use crate::writer::{Change, Lane};
use crate::{Database, connect, context};

async fn create(change: &mut Change, context: WriteContext, key: NewApiKey) -> DbResult<Written<ApiKey>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    let known: Option<Stored<ApiKey>> = sqlx::query_as(
        "-- api_keys.find
        SELECT * FROM api_keys WHERE hash = ?",
    )
    .bind(key.hash.as_bytes())
    .fetch_optional(&mut change.connection)
    .await?;
    if let Some(Stored(known)) = known {
        return Ok(Written::Now(known));
    }
    let expires_at = key.ttl.map(|ttl| later(change.now, ttl));
    sqlx::query(
        "-- api_keys.create
        INSERT INTO api_keys (id, name, hash, scopes, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)",
    )
    .bind(key.id.as_uuid())
    .bind(&key.name)
    .bind(key.hash.as_bytes())
    .bind(serde_json::to_string(&key.scopes)?)
    .bind(change.now)
    .bind(expires_at)
    .execute(&mut change.connection)
    .await?;
    context::complete(change, &context, key.id.as_uuid()).await?;
    Ok(Written::Now(ApiKey {
        id: key.id,
        name: key.name,
        scopes: key.scopes,
        created_at: instant(change.now)?,
        expires_at: expires_at.map(instant).transpose()?,
        revoked_at: None,
    }))
}

async fn find_valid(database: &Database, hash: SecretHash) -> DbResult<Option<ApiKey>> {
    let found: Option<Stored<ApiKey>> = sqlx::query_as(
        "-- api_keys.find_valid
        SELECT * FROM api_keys
        WHERE hash = ? AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)",
    )
    .bind(hash.as_bytes())
    .bind(connect::now())
    .fetch_optional(&database.readers)
    .await?;
    Ok(found.map(Stored::into_inner))
}

async fn list(database: &Database, page: &PageRequest) -> DbResult<Page<ApiKey>> {
    let rows: Vec<Stored<ApiKey>> = sqlx::query_as(
        "-- api_keys.list
        SELECT * FROM api_keys WHERE id > ? ORDER BY id LIMIT ?",
    )
    .bind(cursor(page, Uuid::nil())?)
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(key)| key.id.to_string()).map(Stored::into_inner))
}

async fn revoke(change: &mut Change, context: WriteContext, id: ApiKeyId) -> DbResult<bool> {
    let revoked = sqlx::query(
        "-- api_keys.revoke
        UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL",
    )
    .bind(change.now)
    .bind(id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    if revoked.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query(
        "-- tickets.delete_of_key
        DELETE FROM tickets WHERE key_id = ?",
    )
    .bind(id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::ApiKeyRevoked, id.to_string(), 0);
    context::audit(change, &context).await?;
    Ok(true)
}

#[async_trait]
impl ApiKeyStore for Database {
    #[tracing::instrument(name = "db.api_keys.create", level = "debug", skip_all)]
    async fn create(&self, context: &WriteContext, key: &NewApiKey) -> StoreResult<Written<ApiKey>> {
        let (context, key) = (context.clone(), key.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(create(change, context, key))).await
    }

    #[tracing::instrument(name = "db.api_keys.find_valid", level = "debug", skip_all)]
    async fn find_valid(&self, hash: SecretHash) -> StoreResult<Option<ApiKey>> {
        Ok(find_valid(self, hash).await?)
    }

    #[tracing::instrument(name = "db.api_keys.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<ApiKey>> {
        Ok(list(self, page).await?)
    }

    #[tracing::instrument(name = "db.api_keys.revoke", level = "debug", skip_all)]
    async fn revoke(&self, context: &WriteContext, id: ApiKeyId) -> StoreResult<bool> {
        let context = context.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(revoke(change, context, id))).await
    }
}
