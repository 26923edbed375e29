//! Calls: claimed once, answered once, read by anybody who may.
//!
//! Claims and answers are single conditional updates: whoever waited for the row finds the condition no longer true.

mod offer;
mod rows;

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::call::{Call, CallAnswer, CallState, Claimed, NewCall};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::UserId;
use switchboard_model::ids::{CallId, ClaimToken, ConnectionId};
use switchboard_model::json_text::JsonText;
use switchboard_model::span::Span;
use switchboard_store_api::{
    AdvanceReport, CallStore, ClaimOutcome, OfferedCall, ReplyOutcome, StoreError, StoreResult, WriteContext, Written,
};
use uuid::Uuid;

use crate::connect::Database;
use crate::context::{audit, claim};
use crate::error::fault;
use rows::{CallRow, ClaimRow};

pub(crate) struct Calls(pub(crate) Arc<Database>);

#[async_trait]
impl CallStore for Calls {
    #[tracing::instrument(name = "db.calls.create", level = "debug", skip_all)]
    async fn create(&self, context: &WriteContext, call: &NewCall) -> StoreResult<Written<Call>> {
        let mut tx = self.0.begin().await?;
        if let Some(before) = claim(&mut tx, context, call.id.as_uuid()).await? {
            return tx.undo(before).await;
        }
        let created = offer::create(&mut tx, call).await?;
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(Written::Now(created))
    }

    #[tracing::instrument(name = "db.calls.claim", level = "debug", skip_all)]
    async fn claim(&self, user: &UserId, call: CallId, connection: ConnectionId) -> StoreResult<ClaimOutcome> {
        let mut session = self.0.session().await?;
        let claimed: Option<Uuid> = sqlx::query_scalar(
            "-- calls.claim
             UPDATE switchboard.calls SET state = 'claimed', claimed_by = $3, claim_token = $4, offer_until = NULL
             WHERE id = $1 AND user_id = $2 AND state = 'offered' AND deadline_at > clock_timestamp()
             RETURNING claim_token",
        )
        .bind(call.as_uuid())
        .bind(user.as_str())
        .bind(connection.as_uuid())
        .bind(ClaimToken::new().as_uuid())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        session.commit().await?;
        if let Some(token) = claimed {
            return Ok(ClaimOutcome::Claimed(Claimed { token: ClaimToken::from_uuid(token) }));
        }
        let standing = self.standing(user, call).await?;
        Ok(standing.map_or(ClaimOutcome::NotFound, |row| row.of(connection)))
    }

    #[tracing::instrument(name = "db.calls.reply", level = "debug", skip_all)]
    async fn reply(
        &self,
        user: &UserId,
        call: CallId,
        token: ClaimToken,
        answer: &CallAnswer,
    ) -> StoreResult<ReplyOutcome> {
        let (state, result, error) = match answer {
            CallAnswer::Done(result) => (CallState::Done, Some(result), None),
            CallAnswer::Failed(error) => (CallState::Failed, None, Some(rows::error_text(error)?)),
        };
        let mut tx = self.0.begin().await?;
        let replied = sqlx::query(
            "-- calls.reply
             UPDATE switchboard.calls SET state = $4, result = $5, error = $6, ended_at = clock_timestamp()
             WHERE id = $1 AND user_id = $2 AND claim_token = $3 AND state = 'claimed'
                 AND deadline_at > clock_timestamp()",
        )
        .bind(call.as_uuid())
        .bind(user.as_str())
        .bind(token.as_uuid())
        .bind(state.as_str())
        .bind(result.map(JsonText::as_str))
        .bind(error.as_ref().map(JsonText::as_str))
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected();
        if replied == 1 {
            tx.signal(SignalKind::CallEnded, &call);
            tx.commit().await?;
            return Ok(ReplyOutcome::Accepted);
        }
        tx.undo(()).await?;
        let standing = self.standing(user, call).await?;
        Ok(standing.map_or(ReplyOutcome::NotFound, |_| ReplyOutcome::Conflict))
    }

    #[tracing::instrument(name = "db.calls.find", level = "debug", skip_all)]
    async fn find(&self, call: CallId) -> StoreResult<Option<Call>> {
        let mut session = self.0.session().await?;
        let row: Option<CallRow> = sqlx::query_as(
            "-- calls.find
             SELECT id, user_id, event, payload, sender, state, claimed_by, result, error,
                    created_at, deadline_at, ended_at
             FROM switchboard.calls WHERE id = $1",
        )
        .bind(call.as_uuid())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(Call::try_from).transpose()
    }

    #[tracing::instrument(name = "db.calls.offers", level = "debug", skip_all)]
    async fn offers(&self, users: &[UserId]) -> StoreResult<Vec<OfferedCall>> {
        let mut session = self.0.session().await?;
        offer::standing(&mut session, users).await
    }

    #[tracing::instrument(name = "db.calls.pending", level = "debug", skip_all)]
    async fn pending(&self, user: &UserId, connection: ConnectionId) -> StoreResult<Vec<OfferedCall>> {
        offer::pending(&self.0, user, connection).await
    }

    #[tracing::instrument(name = "db.calls.advance", level = "debug", skip_all)]
    async fn advance(&self, limit: u32) -> StoreResult<AdvanceReport> {
        offer::advance(&self.0, limit).await
    }

    #[tracing::instrument(name = "db.calls.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        let statement = "-- calls.sweep
             WITH old AS MATERIALIZED (
                 SELECT id FROM switchboard.calls
                 WHERE ended_at < statement_timestamp() - $1 * interval '1 millisecond'
                 ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.calls AS call USING old WHERE call.id = old.id";
        self.0.delete_old(statement, age, limit).await
    }
}

impl Calls {
    /// Reads who has a call of a user.
    async fn standing(&self, user: &UserId, call: CallId) -> StoreResult<Option<ClaimRow>> {
        let mut session = self.0.session().await?;
        sqlx::query_as(
            "-- calls.standing
             SELECT state, claimed_by, claim_token FROM switchboard.calls WHERE id = $1 AND user_id = $2",
        )
        .bind(call.as_uuid())
        .bind(user.as_str())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)
    }
}

/// Reports a call whose row is not what the schema promises.
fn corrupt(error: impl std::fmt::Display) -> StoreError {
    StoreError::corrupt("call", error)
}
