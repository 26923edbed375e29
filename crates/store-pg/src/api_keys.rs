//! API keys, kept by the hash of their secret.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::api_key::{ApiKey, NewApiKey};
use switchboard_model::feed::SignalKind;
use switchboard_model::ids::ApiKeyId;
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::secret_text::SecretHash;
use switchboard_store_api::{ApiKeyStore, StoreError, StoreResult, WriteContext, Written};

use crate::connect::Database;
use crate::context::{audit, claim, collided};
use crate::error::fault;
use crate::link::Link;
use crate::rows::{ApiKeyRow, after_id};

pub(crate) struct ApiKeys(pub(crate) Arc<Database>);

#[async_trait]
impl ApiKeyStore for ApiKeys {
    #[tracing::instrument(name = "db.api_keys.create", level = "debug", skip_all)]
    async fn create(&self, context: &WriteContext, key: &NewApiKey) -> StoreResult<Written<ApiKey>> {
        let scopes = JsonText::encode(&key.scopes).map_err(|error| StoreError::Backend(error.into()))?;
        let mut tx = self.0.begin().await?;
        if let Some(before) = claim(&mut tx, context, key.id.as_uuid()).await? {
            return tx.undo(before).await;
        }
        let created: Option<ApiKeyRow> = sqlx::query_as(
            "-- api_keys.create
             INSERT INTO switchboard.api_keys (id, name, hash, scopes, created_at, expires_at)
             SELECT $1, $2, $3, $4, moment.now, moment.now + $5 * interval '1 millisecond'
             FROM (SELECT clock_timestamp() AS now) AS moment
             ON CONFLICT (hash) DO NOTHING
             RETURNING id, name, scopes, created_at, expires_at, revoked_at",
        )
        .bind(key.id.as_uuid())
        .bind(&key.name)
        .bind(key.hash.as_bytes())
        .bind(scopes.as_str())
        .bind(key.ttl.map(|ttl| ttl.as_millis_i64()))
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(created) = created else {
            let existing = find(&mut tx, key.hash).await?.ok_or_else(collided)?;
            return tx.undo(Written::Now(existing.try_into()?)).await;
        };
        audit(&mut tx, context).await?;
        tx.commit().await?;
        created.try_into().map(Written::Now)
    }

    #[tracing::instrument(name = "db.api_keys.find_valid", level = "debug", skip_all)]
    async fn find_valid(&self, hash: SecretHash) -> StoreResult<Option<ApiKey>> {
        let mut session = self.0.session().await?;
        let row: Option<ApiKeyRow> = sqlx::query_as(
            "-- api_keys.find_valid
             SELECT id, name, scopes, created_at, expires_at, revoked_at FROM switchboard.api_keys
             WHERE hash = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())",
        )
        .bind(hash.as_bytes())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(ApiKey::try_from).transpose()
    }

    #[tracing::instrument(name = "db.api_keys.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<ApiKey>> {
        let after = after_id(page)?;
        let mut session = self.0.session().await?;
        let rows: Vec<ApiKeyRow> = sqlx::query_as(
            "-- api_keys.list
             SELECT id, name, scopes, created_at, expires_at, revoked_at FROM switchboard.api_keys
             WHERE id > $1 ORDER BY id LIMIT $2",
        )
        .bind(after.unwrap_or_default())
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let keys = rows.into_iter().map(ApiKey::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(keys, page.limit, |key| key.id.to_string()))
    }

    #[tracing::instrument(name = "db.api_keys.revoke", level = "debug", skip_all)]
    async fn revoke(&self, context: &WriteContext, id: ApiKeyId) -> StoreResult<bool> {
        let mut tx = self.0.begin().await?;
        let revoked = sqlx::query(
            "-- api_keys.revoke
             UPDATE switchboard.api_keys SET revoked_at = clock_timestamp() WHERE id = $1 AND revoked_at IS NULL",
        )
        .bind(id.as_uuid())
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected();
        if revoked == 0 {
            return tx.undo(false).await;
        }
        sqlx::query(
            "-- tickets.forget_of_key
             WITH minted AS MATERIALIZED (
                 SELECT hash FROM switchboard.tickets WHERE key_id = $1 ORDER BY hash FOR UPDATE
             )
             DELETE FROM switchboard.tickets AS ticket USING minted WHERE ticket.hash = minted.hash",
        )
        .bind(id.as_uuid())
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        audit(&mut tx, context).await?;
        tx.signal(SignalKind::ApiKeyRevoked, &id);
        tx.commit().await?;
        Ok(true)
    }
}

async fn find(connection: &mut Link, hash: SecretHash) -> StoreResult<Option<ApiKeyRow>> {
    sqlx::query_as(
        "-- api_keys.find
         SELECT id, name, scopes, created_at, expires_at, revoked_at FROM switchboard.api_keys WHERE hash = $1",
    )
    .bind(hash.as_bytes())
    .fetch_optional(connection)
    .await
    .map_err(fault)
}
