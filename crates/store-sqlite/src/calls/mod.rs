//! Calls: claimed once, answered once, read by anybody who may.

mod offer;
mod rows;

use async_trait::async_trait;
use switchboard_model::call::{Call, CallAnswer, CallState, Claimed, NewCall};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::UserId;
use switchboard_model::ids::{CallId, ClaimToken, ConnectionId};
use switchboard_model::json_text::JsonText;
use switchboard_model::span::Span;
use switchboard_store_api::{
    AdvanceReport, CallStore, ClaimOutcome, OfferedCall, ReplyOutcome, StoreResult, WriteContext, Written,
};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, earlier};
use crate::writer::{Change, Lane};
use crate::{Database, connect, context};

async fn create(change: &mut Change, context: WriteContext, call: NewCall) -> DbResult<Written<Call>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    let created = offer::create(change, &call).await?;
    context::complete(change, &context, call.id.as_uuid()).await?;
    Ok(Written::Now(created))
}

/// Who has a call of a user, and whether anything can still be done about it.
#[derive(sqlx::FromRow)]
struct Standing {
    state: String,
    claimed_by: Option<Uuid>,
    claim_token: Option<Uuid>,
    deadline_at: i64,
}

impl Standing {
    fn is(&self, state: CallState) -> bool {
        self.state == state.as_str()
    }
}

async fn standing(change: &mut Change, user: &UserId, call: CallId) -> DbResult<Option<Standing>> {
    Ok(sqlx::query_as(
        "-- calls.standing
        SELECT state, claimed_by, claim_token, deadline_at FROM calls WHERE id = ? AND user_id = ?",
    )
    .bind(call.as_uuid())
    .bind(user.as_str())
    .fetch_optional(&mut change.connection)
    .await?)
}

async fn claim(change: &mut Change, user: UserId, call: CallId, connection: ConnectionId) -> DbResult<ClaimOutcome> {
    let Some(standing) = standing(change, &user, call).await? else { return Ok(ClaimOutcome::NotFound) };
    if let Some(token) = standing.claim_token
        && standing.is(CallState::Claimed)
        && standing.claimed_by == Some(connection.as_uuid())
    {
        return Ok(ClaimOutcome::Claimed(Claimed { token: ClaimToken::from_uuid(token) }));
    }
    if !standing.is(CallState::Offered) || standing.deadline_at <= change.now {
        return Ok(ClaimOutcome::Conflict);
    }
    let token = ClaimToken::new();
    sqlx::query(
        "-- calls.claim
        UPDATE calls SET state = 'claimed', claimed_by = ?, claim_token = ?, offer_until = NULL WHERE id = ?",
    )
    .bind(connection.as_uuid())
    .bind(token.as_uuid())
    .bind(call.as_uuid())
    .execute(&mut change.connection)
    .await?;
    Ok(ClaimOutcome::Claimed(Claimed { token }))
}

async fn reply(
    change: &mut Change,
    user: UserId,
    call: CallId,
    token: ClaimToken,
    answer: CallAnswer,
) -> DbResult<ReplyOutcome> {
    let Some(standing) = standing(change, &user, call).await? else { return Ok(ReplyOutcome::NotFound) };
    let is_holder = standing.is(CallState::Claimed) && standing.claim_token == Some(token.as_uuid());
    if !is_holder || standing.deadline_at <= change.now {
        return Ok(ReplyOutcome::Conflict);
    }
    let (state, result, error) = match answer {
        CallAnswer::Done(result) => (CallState::Done, Some(result), None),
        CallAnswer::Failed(error) => (CallState::Failed, None, Some(JsonText::encode(&error)?)),
    };
    sqlx::query(
        "-- calls.reply
        UPDATE calls SET state = ?, result = ?, error = ?, ended_at = ? WHERE id = ?",
    )
    .bind(state.as_str())
    .bind(result.as_ref().map(JsonText::as_str))
    .bind(error.as_ref().map(JsonText::as_str))
    .bind(change.now)
    .bind(call.as_uuid())
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::CallEnded, call.to_string(), 0);
    Ok(ReplyOutcome::Accepted)
}

async fn find(database: &Database, call: CallId) -> DbResult<Option<Call>> {
    let row: Option<Stored<Call>> = sqlx::query_as(
        "-- calls.find
        SELECT * FROM calls WHERE id = ?",
    )
    .bind(call.as_uuid())
    .fetch_optional(&database.readers)
    .await?;
    Ok(row.map(Stored::into_inner))
}

async fn sweep(change: &mut Change, age: Span, limit: u32) -> DbResult<u64> {
    let swept = sqlx::query(
        "-- calls.sweep
        DELETE FROM calls WHERE rowid IN (
            SELECT rowid FROM calls WHERE ended_at IS NOT NULL AND ended_at < ? ORDER BY ended_at LIMIT ?)",
    )
    .bind(earlier(change.now, age))
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    Ok(swept.rows_affected())
}

#[async_trait]
impl CallStore for Database {
    #[tracing::instrument(name = "db.calls.create", level = "debug", skip_all)]
    async fn create(&self, context: &WriteContext, call: &NewCall) -> StoreResult<Written<Call>> {
        let (context, call) = (context.clone(), call.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(create(change, context, call))).await
    }

    #[tracing::instrument(name = "db.calls.claim", level = "debug", skip_all)]
    async fn claim(&self, user: &UserId, call: CallId, connection: ConnectionId) -> StoreResult<ClaimOutcome> {
        let user = user.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(claim(change, user, call, connection))).await
    }

    #[tracing::instrument(name = "db.calls.reply", level = "debug", skip_all)]
    async fn reply(
        &self,
        user: &UserId,
        call: CallId,
        token: ClaimToken,
        answer: &CallAnswer,
    ) -> StoreResult<ReplyOutcome> {
        let (user, answer) = (user.clone(), answer.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(reply(change, user, call, token, answer))).await
    }

    #[tracing::instrument(name = "db.calls.find", level = "debug", skip_all)]
    async fn find(&self, call: CallId) -> StoreResult<Option<Call>> {
        Ok(find(self, call).await?)
    }

    #[tracing::instrument(name = "db.calls.offers", level = "debug", skip_all)]
    async fn offers(&self, users: &[UserId]) -> StoreResult<Vec<OfferedCall>> {
        let mut reader = self.readers.acquire().await.map_err(crate::error::DbError::from)?;
        Ok(offer::standing(&mut reader, users, connect::now()).await?)
    }

    #[tracing::instrument(name = "db.calls.pending", level = "debug", skip_all)]
    async fn pending(&self, user: &UserId, connection: ConnectionId) -> StoreResult<Vec<OfferedCall>> {
        let user = user.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(offer::pending(change, user, connection))).await
    }

    #[tracing::instrument(name = "db.calls.advance", level = "debug", skip_all)]
    async fn advance(&self, limit: u32) -> StoreResult<AdvanceReport> {
        self.writer.write(Lane::Normal, move |change| Box::pin(offer::advance(change, limit))).await
    }

    #[tracing::instrument(name = "db.calls.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep(change, age, limit))).await
    }
}
