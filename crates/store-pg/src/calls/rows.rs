//! Rows of calls, and their conversion. Knows no statement.

use switchboard_model::Timestamp;
use switchboard_model::call::{Call, CallOffer, CallState, Claimed};
use switchboard_model::ids::{CallId, ClaimToken, ConnectionId};
use switchboard_model::json_text::JsonText;
use switchboard_model::wire::frame::ReplyError;
use switchboard_store_api::{ClaimOutcome, OfferedCall, StoreError, StoreResult};
use uuid::Uuid;

use super::corrupt;
use crate::rows::{count, json, parsed};

/// Writes why a call failed.
pub(super) fn error_text(error: &ReplyError) -> StoreResult<JsonText> {
    JsonText::encode(error).map_err(|error| StoreError::Backend(error.into()))
}

fn state(text: &str) -> StoreResult<CallState> {
    CallState::from_stored(text).ok_or_else(|| corrupt(format_args!("unknown state {text:?}")))
}

#[derive(sqlx::FromRow)]
pub(super) struct CallRow {
    id: Uuid,
    user_id: String,
    event: String,
    payload: String,
    sender: String,
    state: String,
    claimed_by: Option<Uuid>,
    result: Option<String>,
    error: Option<String>,
    created_at: Timestamp,
    deadline_at: Timestamp,
    ended_at: Option<Timestamp>,
}

impl TryFrom<CallRow> for Call {
    type Error = StoreError;

    fn try_from(row: CallRow) -> StoreResult<Self> {
        Ok(Self {
            id: CallId::from_uuid(row.id),
            user_id: parsed("call", &row.user_id)?,
            event: parsed("call", &row.event)?,
            payload: JsonText::parse(row.payload).map_err(corrupt)?,
            sender: row.sender,
            state: state(&row.state)?,
            claimed_by: row.claimed_by.map(ConnectionId::from_uuid),
            result: json("call", row.result)?,
            error: row.error.as_deref().map(serde_json::from_str).transpose().map_err(corrupt)?,
            created_at: row.created_at,
            deadline_at: row.deadline_at,
            ended_at: row.ended_at,
        })
    }
}

/// Who has a call.
#[derive(sqlx::FromRow)]
pub(super) struct ClaimRow {
    state: String,
    claimed_by: Option<Uuid>,
    claim_token: Option<Uuid>,
}

impl ClaimRow {
    /// Tells what a connection that could not claim the call now is told: that it has it already, or that it cannot.
    pub(super) fn of(self, connection: ConnectionId) -> ClaimOutcome {
        match self.claim_token {
            Some(token)
                if self.state == CallState::Claimed.as_str() && self.claimed_by == Some(connection.as_uuid()) =>
            {
                ClaimOutcome::Claimed(Claimed { token: ClaimToken::from_uuid(token) })
            }
            _ => ClaimOutcome::Conflict,
        }
    }
}

#[derive(sqlx::FromRow)]
pub(super) struct OfferRow {
    id: Uuid,
    user_id: String,
    offered_to: Uuid,
    offer_until: Timestamp,
    event: String,
    payload: String,
    left_ms: i64,
}

impl TryFrom<OfferRow> for OfferedCall {
    type Error = StoreError;

    fn try_from(row: OfferRow) -> StoreResult<Self> {
        Ok(Self {
            user_id: parsed("call", &row.user_id)?,
            connection: ConnectionId::from_uuid(row.offered_to),
            until: row.offer_until,
            offer: CallOffer {
                call_id: CallId::from_uuid(row.id),
                event: parsed("call", &row.event)?,
                payload: JsonText::parse(row.payload).map_err(corrupt)?,
                deadline_ms: count(row.left_ms),
            },
        })
    }
}
