//! Once-keys of programs, and the expiry of all; those of requests are claimed inside the writes that carry them.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::ids::Fence;
use switchboard_model::json_text::JsonText;
use switchboard_model::once::{NewOnce, OnceEntry, OnceKey, OnceState};
use switchboard_model::span::Span;
use switchboard_store_api::{
    OnceClaimOutcome, OnceConsumed, OnceEnd, OnceStore, OnceTakeOver, StoreError, StoreResult, WriteContext,
};
use uuid::Uuid;

use crate::connect::{Database, Tx};
use crate::context::audit;
use crate::error::fault;
use crate::rows::json;

pub(crate) struct Once(pub(crate) Arc<Database>);

#[derive(sqlx::FromRow)]
struct OnceRow {
    request_hash: Vec<u8>,
    done: bool,
    fence: Option<i64>,
    result: Option<String>,
    lease_until: Option<Timestamp>,
    expires_at: Timestamp,
    is_late: bool,
}

impl TryFrom<OnceRow> for OnceEntry {
    type Error = StoreError;

    fn try_from(row: OnceRow) -> StoreResult<Self> {
        let missing = || StoreError::corrupt("once-key", "it was claimed by no program");
        Ok(Self {
            state: match (row.done, row.is_late) {
                (true, _) => OnceState::Done,
                (false, false) => OnceState::InFlight,
                (false, true) => OnceState::Unknown,
            },
            fence: Fence(row.fence.ok_or_else(missing)?),
            result: json("once-key", row.result)?,
            lease_until: row.lease_until.ok_or_else(missing)?,
            expires_at: row.expires_at,
        })
    }
}

/// What the scope of a program is called in the table: requests have scopes of other forms.
fn stored_scope(key: &OnceKey) -> String {
    format!("api:{}", key.scope)
}

#[async_trait]
impl OnceStore for Once {
    /// Whoever claims a key at the same time waits for the first, and then finds it.
    #[tracing::instrument(name = "db.once.claim_key", level = "debug", skip_all)]
    async fn claim(&self, claim: &NewOnce) -> StoreResult<OnceClaimOutcome> {
        let mut tx = self.0.begin().await?;
        let claimed: Option<OnceRow> = sqlx::query_as(
            "-- once.claim_key
             INSERT INTO switchboard.once AS known
                 (scope, key, request_hash, result_id, result, expires_at, done, fence, lease_until)
             VALUES ($1, $2, $3, $4, $5, clock_timestamp() + $6 * interval '1 millisecond', $5 IS NOT NULL,
                     nextval('switchboard.fences'), clock_timestamp() + $7 * interval '1 millisecond')
             ON CONFLICT (scope, key) DO UPDATE
                 SET request_hash = excluded.request_hash, result_id = excluded.result_id, result = excluded.result,
                     expires_at = clock_timestamp() + $6 * interval '1 millisecond', done = excluded.done,
                     fence = nextval('switchboard.fences'),
                     lease_until = clock_timestamp() + $7 * interval '1 millisecond'
                 WHERE known.expires_at <= clock_timestamp()
             RETURNING request_hash, done, fence, result, lease_until, expires_at, false AS is_late",
        )
        .bind(stored_scope(&claim.key))
        .bind(claim.key.key.as_str())
        .bind(claim.request_hash.as_slice())
        .bind(Uuid::now_v7())
        .bind(claim.result.as_ref().map(JsonText::as_str))
        .bind(claim.ttl.as_millis_i64())
        .bind(claim.lease.as_millis_i64())
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        if let Some(row) = claimed {
            tx.commit().await?;
            return row.try_into().map(OnceClaimOutcome::New);
        }
        // The conflict has locked the row, so it is there.
        let row = locked(&mut tx, &claim.key).await?;
        let row = row.ok_or_else(|| StoreError::corrupt("once-key", "it is locked and not there"))?;
        tx.undo(()).await?;
        if row.request_hash != claim.request_hash {
            return Ok(OnceClaimOutcome::Mismatch);
        }
        row.try_into().map(OnceClaimOutcome::Found)
    }

    #[tracing::instrument(name = "db.once.take_over", level = "debug", skip_all)]
    async fn take_over(
        &self,
        context: &WriteContext,
        key: &OnceKey,
        fence: Fence,
        lease: Span,
    ) -> StoreResult<OnceTakeOver> {
        let mut tx = self.0.begin().await?;
        let Some(row) = locked(&mut tx, key).await? else { return tx.undo(OnceTakeOver::NotFound).await };
        let found = OnceEntry::try_from(row)?;
        if (found.state, found.fence) != (OnceState::Unknown, fence) {
            return tx.undo(OnceTakeOver::Refused(found)).await;
        }
        let row: OnceRow = sqlx::query_as(
            "-- once.take_over
             UPDATE switchboard.once
             SET fence = nextval('switchboard.fences'), lease_until = clock_timestamp() + $3 * interval '1 millisecond'
             WHERE scope = $1 AND key = $2
             RETURNING request_hash, done, fence, result, lease_until, expires_at, false AS is_late",
        )
        .bind(stored_scope(key))
        .bind(key.key.as_str())
        .bind(lease.as_millis_i64())
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        audit(&mut tx, context).await?;
        tx.commit().await?;
        row.try_into().map(OnceTakeOver::Taken)
    }

    #[tracing::instrument(name = "db.once.complete_key", level = "debug", skip_all)]
    async fn complete(&self, key: &OnceKey, fence: Fence, result: &JsonText) -> StoreResult<OnceEnd> {
        let mut tx = self.0.begin().await?;
        let Some(row) = locked(&mut tx, key).await? else { return tx.undo(OnceEnd::NotFound).await };
        if row.fence != Some(fence.0) {
            return tx.undo(OnceEnd::Fenced).await;
        }
        if row.done {
            // The answer to the first request was lost.
            let is_same = row.result.as_deref() == Some(result.as_str());
            return tx.undo(if is_same { OnceEnd::Ended } else { OnceEnd::Fenced }).await;
        }
        sqlx::query(
            "-- once.complete_key
             UPDATE switchboard.once SET done = true, result = $3 WHERE scope = $1 AND key = $2",
        )
        .bind(stored_scope(key))
        .bind(key.key.as_str())
        .bind(result.as_str())
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        Ok(OnceEnd::Ended)
    }

    #[tracing::instrument(name = "db.once.abandon", level = "debug", skip_all)]
    async fn abandon(&self, context: &WriteContext, key: &OnceKey, fence: Fence) -> StoreResult<OnceEnd> {
        let mut tx = self.0.begin().await?;
        let Some(row) = locked(&mut tx, key).await? else { return tx.undo(OnceEnd::NotFound).await };
        if row.done || row.fence != Some(fence.0) {
            return tx.undo(OnceEnd::Fenced).await;
        }
        sqlx::query(
            "-- once.abandon
             DELETE FROM switchboard.once WHERE scope = $1 AND key = $2",
        )
        .bind(stored_scope(key))
        .bind(key.key.as_str())
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(OnceEnd::Ended)
    }

    #[tracing::instrument(name = "db.once.find_key", level = "debug", skip_all)]
    async fn find(&self, key: &OnceKey) -> StoreResult<Option<OnceEntry>> {
        let mut session = self.0.session().await?;
        let row: Option<OnceRow> = sqlx::query_as(
            "-- once.find_key
             SELECT request_hash, done, fence, result, lease_until, expires_at, lease_until <= clock_timestamp() AS is_late
             FROM switchboard.once WHERE scope = $1 AND key = $2 AND expires_at > clock_timestamp()",
        )
        .bind(stored_scope(key))
        .bind(key.key.as_str())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(OnceEntry::try_from).transpose()
    }

    #[tracing::instrument(name = "db.once.consume", level = "debug", skip_all)]
    async fn consume(&self, key: &OnceKey) -> StoreResult<OnceConsumed> {
        let mut session = self.0.session().await?;
        let row: Option<OnceRow> = sqlx::query_as(
            "-- once.consume
             DELETE FROM switchboard.once
             WHERE scope = $1 AND key = $2 AND done AND expires_at > clock_timestamp()
             RETURNING request_hash, done, fence, result, lease_until, expires_at, false AS is_late",
        )
        .bind(stored_scope(key))
        .bind(key.key.as_str())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        session.commit().await?;
        match row {
            Some(row) => row.try_into().map(OnceConsumed::Consumed),
            None => Ok(match self.find(key).await? {
                // Completed a moment ago counts as not yet.
                Some(entry) => OnceConsumed::NotDone(entry),
                None => OnceConsumed::NotFound,
            }),
        }
    }

    #[tracing::instrument(name = "db.once.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        let mut session = self.0.session().await?;
        let deleted = sqlx::query(
            "-- once.sweep
             WITH expired AS MATERIALIZED (
                 SELECT scope, key FROM switchboard.once WHERE expires_at <= statement_timestamp()
                 ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.once AS known USING expired
             WHERE known.scope = expired.scope AND known.key = expired.key",
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

/// Locks a key whose time is not over, and then reads it.
async fn locked(tx: &mut Tx, key: &OnceKey) -> StoreResult<Option<OnceRow>> {
    sqlx::query(
        "-- once.lock_key
         SELECT FROM switchboard.once WHERE scope = $1 AND key = $2 FOR UPDATE",
    )
    .bind(stored_scope(key))
    .bind(key.key.as_str())
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    sqlx::query_as(
        "-- once.read_locked_key
         SELECT request_hash, done, fence, result, lease_until, expires_at, lease_until <= clock_timestamp() AS is_late
         FROM switchboard.once WHERE scope = $1 AND key = $2 AND expires_at > clock_timestamp()",
    )
    .bind(stored_scope(key))
    .bind(key.key.as_str())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)
}
