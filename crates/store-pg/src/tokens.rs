//! Tokens of providers. No connection is held while a provider is asked: the right to ask it is two columns.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::identity::TokenName;
use switchboard_model::ids::{Fence, TokenId};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::sealed::Sealed;
use switchboard_model::span::Span;
use switchboard_model::token::{Granted, NewToken, RefreshFailure, RefreshHold, StoredToken, TokenGrant, TokenReading};
use switchboard_store_api::{StoreError, StoreResult, TokenPutOutcome, TokenStore, WriteContext};
use uuid::Uuid;

use crate::connect::Database;
use crate::context::{audit, twice};
use crate::error::fault;
use crate::rows::{after_name, count, parsed, storable};

pub(crate) struct Tokens(pub(crate) Arc<Database>);

#[derive(sqlx::FromRow)]
struct TokenRow {
    id: Uuid,
    name: String,
    provider: String,
    sealed: Vec<u8>,
    version: i64,
    granted_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    refresh_until: Option<Timestamp>,
    failures: i32,
    retry_at: Option<Timestamp>,
    last_error: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl TryFrom<TokenRow> for StoredToken {
    type Error = StoreError;

    fn try_from(row: TokenRow) -> StoreResult<Self> {
        Ok(Self {
            id: TokenId::from_uuid(row.id),
            name: parsed("token", &row.name)?,
            provider: serde_json::from_str(&row.provider).map_err(|error| StoreError::corrupt("token", error))?,
            sealed: Sealed(row.sealed),
            version: row.version,
            granted_at: row.granted_at,
            expires_at: row.expires_at,
            refresh_until: row.refresh_until,
            failures: u32::try_from(count(i64::from(row.failures))).unwrap_or_default(),
            retry_at: row.retry_at,
            last_error: row.last_error,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

/// Tells whether an access token was granted, and for how many milliseconds where that is known.
fn terms(grant: &TokenGrant) -> (bool, Option<i64>) {
    match grant.access {
        Granted::Nothing => (false, None),
        Granted::ForEver => (true, None),
        Granted::For(span) => (true, Some(span.as_millis_i64())),
    }
}

#[async_trait]
impl TokenStore for Tokens {
    #[tracing::instrument(name = "db.tokens.put", level = "debug", skip_all)]
    async fn put(&self, context: &WriteContext, token: &NewToken) -> StoreResult<TokenPutOutcome> {
        twice(|| self.put_once(context, token)).await
    }

    #[tracing::instrument(name = "db.tokens.find", level = "debug", skip_all)]
    async fn find(&self, name: &TokenName) -> StoreResult<Option<TokenReading>> {
        let mut session = self.0.session().await?;
        let row: Option<TokenRow> = sqlx::query_as(
            "-- tokens.find
             SELECT id, name, provider, sealed, version, granted_at, expires_at, refresh_until, failures, retry_at,
                 last_error, created_at, updated_at
             FROM switchboard.tokens WHERE name = $1",
        )
        .bind(name.as_str())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(TokenReading { token: row.try_into()?, now: session.now().await? }))
    }

    #[tracing::instrument(name = "db.tokens.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<StoredToken>> {
        let after: Option<TokenName> = after_name(page)?;
        let mut session = self.0.session().await?;
        let rows: Vec<TokenRow> = sqlx::query_as(
            "-- tokens.list
             SELECT id, name, provider, sealed, version, granted_at, expires_at, refresh_until, failures, retry_at,
                 last_error, created_at, updated_at
             FROM switchboard.tokens WHERE name > $1 ORDER BY name LIMIT $2",
        )
        .bind(after.as_ref().map_or("", TokenName::as_str))
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let tokens = rows.into_iter().map(StoredToken::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(tokens, page.limit, |token| token.name.to_string()))
    }

    #[tracing::instrument(name = "db.tokens.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, name: &TokenName) -> StoreResult<bool> {
        let mut tx = self.0.begin().await?;
        let deleted = sqlx::query(
            "-- tokens.delete
             DELETE FROM switchboard.tokens WHERE name = $1",
        )
        .bind(name.as_str())
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

    #[tracing::instrument(name = "db.tokens.hold_refresh", level = "debug", skip_all)]
    async fn hold_refresh(&self, id: TokenId, version: i64, lease: Span) -> StoreResult<Option<Fence>> {
        let mut session = self.0.session().await?;
        // One row: whoever waited for another one is judged by what that one has left.
        let fence: Option<i64> = sqlx::query_scalar(
            "-- tokens.hold_refresh
             UPDATE switchboard.tokens
             SET refresh_fence = nextval('switchboard.fences'),
                 refresh_until = clock_timestamp() + $3 * interval '1 millisecond'
             WHERE id = $1 AND version = $2
                 AND (refresh_until IS NULL OR refresh_until <= clock_timestamp())
                 AND (retry_at IS NULL OR retry_at <= clock_timestamp())
             RETURNING refresh_fence",
        )
        .bind(id.as_uuid())
        .bind(version)
        .bind(lease.as_millis_i64())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        session.commit().await?;
        Ok(fence.map(Fence))
    }

    #[tracing::instrument(name = "db.tokens.finish_refresh", level = "debug", skip_all)]
    async fn finish_refresh(&self, hold: RefreshHold, grant: &TokenGrant) -> StoreResult<bool> {
        let (is_granted, lifetime) = terms(grant);
        let mut session = self.0.session().await?;
        let written = sqlx::query(
            "-- tokens.finish_refresh
             UPDATE switchboard.tokens
             SET sealed = $3, version = version + 1,
                 granted_at = CASE WHEN $4 THEN clock_timestamp() END,
                 expires_at = clock_timestamp() + $5 * interval '1 millisecond',
                 refresh_until = NULL, failures = 0, retry_at = NULL, last_error = NULL
             WHERE id = $1 AND version = $2",
        )
        .bind(hold.id.as_uuid())
        .bind(hold.version)
        .bind(&grant.sealed.0)
        .bind(is_granted)
        .bind(lifetime)
        .execute(&mut *session)
        .await
        .map_err(fault)?
        .rows_affected();
        session.commit().await?;
        Ok(written == 1)
    }

    #[tracing::instrument(name = "db.tokens.fail_refresh", level = "debug", skip_all)]
    async fn fail_refresh(&self, hold: RefreshHold, failure: &RefreshFailure) -> StoreResult<bool> {
        let mut session = self.0.session().await?;
        let written = sqlx::query(
            "-- tokens.fail_refresh
             UPDATE switchboard.tokens
             SET refresh_until = NULL, failures = failures + 1, last_error = $4,
                 retry_at = clock_timestamp() + $5 * interval '1 millisecond'
             WHERE id = $1 AND version = $2 AND refresh_fence = $3 AND refresh_until IS NOT NULL",
        )
        .bind(hold.id.as_uuid())
        .bind(hold.version)
        .bind(hold.fence.0)
        .bind(storable(&failure.error))
        .bind(failure.pause.as_millis_i64())
        .execute(&mut *session)
        .await
        .map_err(fault)?
        .rows_affected();
        session.commit().await?;
        Ok(written == 1)
    }
}

impl Tokens {
    async fn put_once(&self, context: &WriteContext, token: &NewToken) -> StoreResult<TokenPutOutcome> {
        let provider = JsonText::encode(&token.provider).map_err(|error| StoreError::Backend(error.into()))?;
        let (is_granted, lifetime) = terms(&token.granted);
        let mut tx = self.0.begin().await?;
        let found: Option<Uuid> = sqlx::query_scalar(
            "-- tokens.lock
             SELECT id FROM switchboard.tokens WHERE name = $1 FOR UPDATE",
        )
        .bind(token.name.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        if found.is_some_and(|id| id != token.id.as_uuid()) {
            return tx.undo(TokenPutOutcome::Moved).await;
        }
        let putting = if found.is_some() {
            sqlx::query_as(
                "-- tokens.replace
                 UPDATE switchboard.tokens
                 SET provider = $3, sealed = $4, version = version + 1, updated_at = clock_timestamp(),
                     granted_at = CASE WHEN $5 THEN clock_timestamp() END,
                     expires_at = clock_timestamp() + $6 * interval '1 millisecond',
                     refresh_until = NULL, failures = 0, retry_at = NULL, last_error = NULL
                 WHERE id = $1 AND name = $2
                 RETURNING id, name, provider, sealed, version, granted_at, expires_at, refresh_until, failures,
                     retry_at, last_error, created_at, updated_at",
            )
        } else {
            sqlx::query_as(
                "-- tokens.insert
                 INSERT INTO switchboard.tokens
                     (id, name, provider, sealed, version, granted_at, expires_at, created_at, updated_at)
                 SELECT $1, $2, $3, $4, 1, CASE WHEN $5 THEN now END, now + $6 * interval '1 millisecond', now, now
                 FROM (SELECT clock_timestamp() AS now) AS moment
                 RETURNING id, name, provider, sealed, version, granted_at, expires_at, refresh_until, failures,
                     retry_at, last_error, created_at, updated_at",
            )
        };
        let row: TokenRow = putting
            .bind(token.id.as_uuid())
            .bind(token.name.as_str())
            .bind(provider.as_str())
            .bind(&token.granted.sealed.0)
            .bind(is_granted)
            .bind(lifetime)
            .fetch_one(&mut *tx)
            .await
            .map_err(fault)?;
        audit(&mut tx, context).await?;
        tx.commit().await?;
        row.try_into().map(TokenPutOutcome::Set)
    }
}
