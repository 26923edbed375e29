//! Once-keys of programs, and the expiry of all; those of requests are claimed by the writes that carry them.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _, SqliteExecutor};
use switchboard_model::ids::Fence;
use switchboard_model::json_text::JsonText;
use switchboard_model::once::{NewOnce, OnceEntry, OnceKey, OnceState};
use switchboard_model::span::Span;
use switchboard_store_api::{
    OnceClaimOutcome, OnceConsumed, OnceEnd, OnceStore, OnceTakeOver, StoreResult, WriteContext,
};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{json_option, later, time};
use crate::runs::lease::next_fences;
use crate::writer::{Change, Lane};
use crate::{Database, connect, context};

/// A key of a program, with what [`OnceEntry`] leaves out.
struct OnceRow {
    request_hash: Vec<u8>,
    entry: OnceEntry,
}

impl FromRow<'_, SqliteRow> for OnceRow {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        let state = match (row.try_get("done")?, row.try_get("is_late")?) {
            (true, _) => OnceState::Done,
            (false, false) => OnceState::InFlight,
            (false, true) => OnceState::Unknown,
        };
        let entry = OnceEntry {
            state,
            fence: Fence(row.try_get("fence")?),
            result: json_option(row, "result")?,
            lease_until: time(row, "lease_until")?,
            expires_at: time(row, "expires_at")?,
        };
        Ok(Self { request_hash: row.try_get("request_hash")?, entry })
    }
}

/// What the scope of a program is called in the table: requests have scopes of other forms.
fn stored_scope(key: &OnceKey) -> String {
    format!("api:{}", key.scope)
}

async fn find(executor: impl SqliteExecutor<'_>, key: &OnceKey, now: i64) -> DbResult<Option<OnceRow>> {
    let row = sqlx::query_as(
        "-- once.find_key
        SELECT *, lease_until <= ?3 AS is_late FROM once WHERE scope = ?1 AND key = ?2 AND expires_at > ?3",
    )
    .bind(stored_scope(key))
    .bind(key.key.as_str())
    .bind(now)
    .fetch_optional(executor)
    .await?;
    Ok(row)
}

async fn claim(change: &mut Change, claim: NewOnce) -> DbResult<OnceClaimOutcome> {
    if let Some(OnceRow { request_hash, entry }) = find(&mut change.connection, &claim.key, change.now).await? {
        let is_same = request_hash == claim.request_hash;
        return Ok(if is_same { OnceClaimOutcome::Found(entry) } else { OnceClaimOutcome::Mismatch });
    }
    let fence = next_fences(change, 1).await?;
    let row: OnceRow = sqlx::query_as(
        "-- once.claim_key
        INSERT OR REPLACE INTO once
            (scope, key, request_hash, result_id, result, expires_at, done, fence, lease_until)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?5 IS NOT NULL, ?7, ?8)
        RETURNING *, 0 AS is_late",
    )
    .bind(stored_scope(&claim.key))
    .bind(claim.key.key.as_str())
    .bind(claim.request_hash.as_slice())
    .bind(Uuid::now_v7())
    .bind(claim.result.as_ref().map(JsonText::as_str))
    .bind(later(change.now, claim.ttl))
    .bind(fence)
    .bind(later(change.now, claim.lease))
    .fetch_one(&mut change.connection)
    .await?;
    Ok(OnceClaimOutcome::New(row.entry))
}

async fn take_over(
    change: &mut Change,
    context: WriteContext,
    key: OnceKey,
    (fence, lease): (Fence, Span),
) -> DbResult<OnceTakeOver> {
    let Some(OnceRow { entry, .. }) = find(&mut change.connection, &key, change.now).await? else {
        return Ok(OnceTakeOver::NotFound);
    };
    if (entry.state, entry.fence) != (OnceState::Unknown, fence) {
        return Ok(OnceTakeOver::Refused(entry));
    }
    let fence = next_fences(change, 1).await?;
    let row: OnceRow = sqlx::query_as(
        "-- once.take_over
        UPDATE once SET fence = ?3, lease_until = ?4 WHERE scope = ?1 AND key = ?2 RETURNING *, 0 AS is_late",
    )
    .bind(stored_scope(&key))
    .bind(key.key.as_str())
    .bind(fence)
    .bind(later(change.now, lease))
    .fetch_one(&mut change.connection)
    .await?;
    context::audit(change, &context).await?;
    Ok(OnceTakeOver::Taken(row.entry))
}

async fn complete(change: &mut Change, key: OnceKey, fence: Fence, result: JsonText) -> DbResult<OnceEnd> {
    let Some(OnceRow { entry, .. }) = find(&mut change.connection, &key, change.now).await? else {
        return Ok(OnceEnd::NotFound);
    };
    if entry.fence != fence {
        return Ok(OnceEnd::Fenced);
    }
    if entry.state == OnceState::Done {
        // The answer to the first request was lost.
        return Ok(if entry.result == Some(result) { OnceEnd::Ended } else { OnceEnd::Fenced });
    }
    sqlx::query(
        "-- once.complete_key
        UPDATE once SET done = 1, result = ?3 WHERE scope = ?1 AND key = ?2",
    )
    .bind(stored_scope(&key))
    .bind(key.key.as_str())
    .bind(result.as_str())
    .execute(&mut change.connection)
    .await?;
    Ok(OnceEnd::Ended)
}

async fn abandon(change: &mut Change, context: WriteContext, key: OnceKey, fence: Fence) -> DbResult<OnceEnd> {
    let Some(OnceRow { entry, .. }) = find(&mut change.connection, &key, change.now).await? else {
        return Ok(OnceEnd::NotFound);
    };
    if entry.state == OnceState::Done || entry.fence != fence {
        return Ok(OnceEnd::Fenced);
    }
    delete(change, &key).await?;
    context::audit(change, &context).await?;
    Ok(OnceEnd::Ended)
}

async fn consume(change: &mut Change, key: OnceKey) -> DbResult<OnceConsumed> {
    let Some(OnceRow { entry, .. }) = find(&mut change.connection, &key, change.now).await? else {
        return Ok(OnceConsumed::NotFound);
    };
    if entry.state != OnceState::Done {
        return Ok(OnceConsumed::NotDone(entry));
    }
    delete(change, &key).await?;
    Ok(OnceConsumed::Consumed(entry))
}

async fn delete(change: &mut Change, key: &OnceKey) -> DbResult<()> {
    sqlx::query(
        "-- once.delete_key
        DELETE FROM once WHERE scope = ? AND key = ?",
    )
    .bind(stored_scope(key))
    .bind(key.key.as_str())
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

async fn sweep(change: &mut Change, limit: u32) -> DbResult<u64> {
    let swept = sqlx::query(
        "-- once.sweep
        DELETE FROM once WHERE rowid IN (SELECT rowid FROM once WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)",
    )
    .bind(change.now)
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    Ok(swept.rows_affected())
}

#[async_trait]
impl OnceStore for Database {
    #[tracing::instrument(name = "db.once.claim_key", level = "debug", skip_all)]
    async fn claim(&self, new: &NewOnce) -> StoreResult<OnceClaimOutcome> {
        let new = new.clone();
        self.writer.write(Lane::Normal, |change| Box::pin(claim(change, new))).await
    }

    #[tracing::instrument(name = "db.once.take_over", level = "debug", skip_all)]
    async fn take_over(
        &self,
        context: &WriteContext,
        key: &OnceKey,
        fence: Fence,
        lease: Span,
    ) -> StoreResult<OnceTakeOver> {
        let (context, key) = (context.clone(), key.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(take_over(change, context, key, (fence, lease)))).await
    }

    #[tracing::instrument(name = "db.once.complete_key", level = "debug", skip_all)]
    async fn complete(&self, key: &OnceKey, fence: Fence, result: &JsonText) -> StoreResult<OnceEnd> {
        let (key, result) = (key.clone(), result.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(complete(change, key, fence, result))).await
    }

    #[tracing::instrument(name = "db.once.abandon", level = "debug", skip_all)]
    async fn abandon(&self, context: &WriteContext, key: &OnceKey, fence: Fence) -> StoreResult<OnceEnd> {
        let (context, key) = (context.clone(), key.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(abandon(change, context, key, fence))).await
    }

    #[tracing::instrument(name = "db.once.find_key", level = "debug", skip_all)]
    async fn find(&self, key: &OnceKey) -> StoreResult<Option<OnceEntry>> {
        Ok(find(&self.readers, key, connect::now()).await?.map(|row| row.entry))
    }

    #[tracing::instrument(name = "db.once.consume", level = "debug", skip_all)]
    async fn consume(&self, key: &OnceKey) -> StoreResult<OnceConsumed> {
        let key = key.clone();
        self.writer.write(Lane::Normal, |change| Box::pin(consume(change, key))).await
    }

    #[tracing::instrument(name = "db.once.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep(change, limit))).await
    }
}
