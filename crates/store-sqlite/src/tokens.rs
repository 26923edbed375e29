//! Tokens of providers. No transaction is open while a provider is asked: the right to ask it is two columns.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _};
use switchboard_model::identity::TokenName;
use switchboard_model::ids::{Fence, TokenId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::sealed::Sealed;
use switchboard_model::span::Span;
use switchboard_model::token::{Granted, NewToken, RefreshFailure, RefreshHold, StoredToken, TokenGrant, TokenReading};
use switchboard_store_api::{StoreResult, TokenPutOutcome, TokenStore, WriteContext};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, convert, cursor, instant, later, parsed, time, time_option};
use crate::runs::lease::next_fences;
use crate::writer::{Change, Lane};
use crate::{Database, connect, context};

impl FromRow<'_, SqliteRow> for Stored<StoredToken> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(StoredToken {
            id: TokenId::from_uuid(row.try_get("id")?),
            name: parsed(row, "name")?,
            provider: convert(row, "provider", |text: &str| serde_json::from_str(text))?,
            sealed: Sealed(row.try_get("sealed")?),
            version: row.try_get("version")?,
            granted_at: time_option(row, "granted_at")?,
            expires_at: time_option(row, "expires_at")?,
            refresh_until: time_option(row, "refresh_until")?,
            failures: row.try_get("failures")?,
            retry_at: time_option(row, "retry_at")?,
            last_error: row.try_get("last_error")?,
            created_at: time(row, "created_at")?,
            updated_at: time(row, "updated_at")?,
        }))
    }
}

/// Returns when an access token was granted, and when it expires.
fn terms(grant: &TokenGrant, now: i64) -> (Option<i64>, Option<i64>) {
    match grant.access {
        Granted::Nothing => (None, None),
        Granted::ForEver => (Some(now), None),
        Granted::For(span) => (Some(now), Some(later(now, span))),
    }
}

async fn put(change: &mut Change, context: WriteContext, token: NewToken) -> DbResult<TokenPutOutcome> {
    let found: Option<Uuid> = sqlx::query_scalar(
        "-- tokens.find_id
        SELECT id FROM tokens WHERE name = ?",
    )
    .bind(token.name.as_str())
    .fetch_optional(&mut change.connection)
    .await?;
    if found.is_some_and(|id| id != token.id.as_uuid()) {
        return Ok(TokenPutOutcome::Moved);
    }
    let (granted_at, expires_at) = terms(&token.granted, change.now);
    let Stored(set) = sqlx::query_as(
        "-- tokens.put
        INSERT INTO tokens (id, name, provider, sealed, version, granted_at, expires_at, created_at, updated_at)
        VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?7)
        ON CONFLICT (name) DO UPDATE
            SET provider = excluded.provider, sealed = excluded.sealed, version = version + 1,
                granted_at = excluded.granted_at, expires_at = excluded.expires_at, updated_at = excluded.updated_at,
                refresh_until = NULL, failures = 0, retry_at = NULL, last_error = NULL
        RETURNING *",
    )
    .bind(token.id.as_uuid())
    .bind(token.name.as_str())
    .bind(serde_json::to_string(&token.provider)?)
    .bind(token.granted.sealed.0)
    .bind(granted_at)
    .bind(expires_at)
    .bind(change.now)
    .fetch_one(&mut change.connection)
    .await?;
    context::audit(change, &context).await?;
    Ok(TokenPutOutcome::Set(set))
}

async fn find(database: &Database, name: &TokenName) -> DbResult<Option<TokenReading>> {
    let row: Option<Stored<StoredToken>> = sqlx::query_as(
        "-- tokens.find
        SELECT * FROM tokens WHERE name = ?",
    )
    .bind(name.as_str())
    .fetch_optional(&database.readers)
    .await?;
    let Some(Stored(token)) = row else { return Ok(None) };
    Ok(Some(TokenReading { token, now: instant(connect::now())? }))
}

async fn list(database: &Database, page: &PageRequest) -> DbResult<Page<StoredToken>> {
    let rows: Vec<Stored<StoredToken>> = sqlx::query_as(
        "-- tokens.list
        SELECT * FROM tokens WHERE name > ? ORDER BY name LIMIT ?",
    )
    .bind(cursor(page, String::new())?)
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(token)| token.name.to_string()).map(Stored::into_inner))
}

async fn delete(change: &mut Change, context: WriteContext, name: TokenName) -> DbResult<bool> {
    let deleted = sqlx::query(
        "-- tokens.delete
        DELETE FROM tokens WHERE name = ?",
    )
    .bind(name.as_str())
    .execute(&mut change.connection)
    .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    context::audit(change, &context).await?;
    Ok(true)
}

async fn hold_refresh(change: &mut Change, id: TokenId, version: i64, lease: Span) -> DbResult<Option<Fence>> {
    let fence = next_fences(change, 1).await?;
    let held = sqlx::query(
        "-- tokens.hold_refresh
        UPDATE tokens SET refresh_fence = ?3, refresh_until = ?4
        WHERE id = ?1 AND version = ?2 AND (refresh_until IS NULL OR refresh_until <= ?5)
            AND (retry_at IS NULL OR retry_at <= ?5)",
    )
    .bind(id.as_uuid())
    .bind(version)
    .bind(fence)
    .bind(later(change.now, lease))
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    Ok((held.rows_affected() == 1).then_some(Fence(fence)))
}

async fn finish_refresh(change: &mut Change, hold: RefreshHold, grant: TokenGrant) -> DbResult<bool> {
    let (granted_at, expires_at) = terms(&grant, change.now);
    let written = sqlx::query(
        "-- tokens.finish_refresh
        UPDATE tokens
        SET sealed = ?3, version = version + 1, granted_at = ?4, expires_at = ?5,
            refresh_until = NULL, failures = 0, retry_at = NULL, last_error = NULL
        WHERE id = ?1 AND version = ?2",
    )
    .bind(hold.id.as_uuid())
    .bind(hold.version)
    .bind(grant.sealed.0)
    .bind(granted_at)
    .bind(expires_at)
    .execute(&mut change.connection)
    .await?;
    Ok(written.rows_affected() == 1)
}

async fn fail_refresh(change: &mut Change, hold: RefreshHold, failure: RefreshFailure) -> DbResult<bool> {
    let written = sqlx::query(
        "-- tokens.fail_refresh
        UPDATE tokens SET refresh_until = NULL, failures = failures + 1, last_error = ?4, retry_at = ?5
        WHERE id = ?1 AND version = ?2 AND refresh_fence = ?3 AND refresh_until IS NOT NULL",
    )
    .bind(hold.id.as_uuid())
    .bind(hold.version)
    .bind(hold.fence.0)
    .bind(failure.error)
    .bind(later(change.now, failure.pause))
    .execute(&mut change.connection)
    .await?;
    Ok(written.rows_affected() == 1)
}

#[async_trait]
impl TokenStore for Database {
    #[tracing::instrument(name = "db.tokens.put", level = "debug", skip_all)]
    async fn put(&self, context: &WriteContext, token: &NewToken) -> StoreResult<TokenPutOutcome> {
        let (context, token) = (context.clone(), token.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(put(change, context, token))).await
    }

    #[tracing::instrument(name = "db.tokens.find", level = "debug", skip_all)]
    async fn find(&self, name: &TokenName) -> StoreResult<Option<TokenReading>> {
        Ok(find(self, name).await?)
    }

    #[tracing::instrument(name = "db.tokens.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<StoredToken>> {
        Ok(list(self, page).await?)
    }

    #[tracing::instrument(name = "db.tokens.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, name: &TokenName) -> StoreResult<bool> {
        let (context, name) = (context.clone(), name.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(delete(change, context, name))).await
    }

    #[tracing::instrument(name = "db.tokens.hold_refresh", level = "debug", skip_all)]
    async fn hold_refresh(&self, id: TokenId, version: i64, lease: Span) -> StoreResult<Option<Fence>> {
        self.writer.write(Lane::Normal, move |change| Box::pin(hold_refresh(change, id, version, lease))).await
    }

    #[tracing::instrument(name = "db.tokens.finish_refresh", level = "debug", skip_all)]
    async fn finish_refresh(&self, hold: RefreshHold, grant: &TokenGrant) -> StoreResult<bool> {
        let grant = grant.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(finish_refresh(change, hold, grant))).await
    }

    #[tracing::instrument(name = "db.tokens.fail_refresh", level = "debug", skip_all)]
    async fn fail_refresh(&self, hold: RefreshHold, failure: &RefreshFailure) -> StoreResult<bool> {
        let failure = failure.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(fail_refresh(change, hold, failure))).await
    }
}
