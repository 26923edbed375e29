//! Rows of calls, and their conversion. Knows no statement.

use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _};
use switchboard_model::call::{Call, CallOffer, CallState};
use switchboard_model::ids::{CallId, ConnectionId};
use switchboard_store_api::OfferedCall;

use crate::rows::{Stored, convert, decoded_option, json, json_option, parsed, time, time_option};

impl FromRow<'_, SqliteRow> for Stored<Call> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(Call {
            id: CallId::from_uuid(row.try_get("id")?),
            user_id: parsed(row, "user_id")?,
            event: parsed(row, "event")?,
            payload: json(row, "payload")?,
            sender: row.try_get("sender")?,
            state: convert(row, "state", |text: &str| CallState::from_stored(text).ok_or("unknown state of a call"))?,
            claimed_by: row.try_get::<Option<_>, _>("claimed_by")?.map(ConnectionId::from_uuid),
            result: json_option(row, "result")?,
            error: decoded_option(row, "error")?,
            created_at: time(row, "created_at")?,
            deadline_at: time(row, "deadline_at")?,
            ended_at: time_option(row, "ended_at")?,
        }))
    }
}

/// The statement names what is left until the deadline: `left_ms`.
impl FromRow<'_, SqliteRow> for Stored<OfferedCall> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(OfferedCall {
            user_id: parsed(row, "user_id")?,
            connection: ConnectionId::from_uuid(row.try_get("offered_to")?),
            until: time(row, "offer_until")?,
            offer: CallOffer {
                call_id: CallId::from_uuid(row.try_get("id")?),
                event: parsed(row, "event")?,
                payload: json(row, "payload")?,
                deadline_ms: row.try_get::<i64, _>("left_ms")?.max(0).cast_unsigned(),
            },
        }))
    }
}
