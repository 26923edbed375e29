//! Offers: to whom a call goes first, next, and when it ends without anybody.

use sqlx::SqliteConnection;
use switchboard_model::call::{
    Call, NewCall, OFFER_TIME, PENDING_CALLS, STANDING_OFFERS, WhenAbsent, call_timeout, no_responder,
};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::UserId;
use switchboard_model::ids::{CallId, ConnectionId};
use switchboard_store_api::{AdvanceReport, OfferedCall};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, later};
use crate::writer::Change;

/// A connection that a call can be offered to.
#[derive(sqlx::FromRow)]
struct Responder {
    id: Uuid,
    since: i64,
}

/// Finds the connection of a user that is next older than the given one; after the oldest comes the newest.
async fn next_responder(
    change: &mut Change,
    user: &str,
    since: Option<i64>,
    before: Option<Uuid>,
) -> DbResult<Option<Responder>> {
    Ok(sqlx::query_as(
        "-- calls.next_responder
        SELECT connections.id, connections.since
        FROM connections JOIN instances ON instances.id = connections.instance_id
        WHERE connections.user_id = ? AND instances.expires_at > ?
        ORDER BY (connections.since, connections.id) < (?, ?) DESC, connections.since DESC, connections.id DESC
        LIMIT 1",
    )
    .bind(user)
    .bind(change.now)
    .bind(since)
    .bind(before)
    .fetch_optional(&mut change.connection)
    .await?)
}

/// Stores a call, offered to the newest connection of its user or waiting for one, or failed at once.
pub(super) async fn create(change: &mut Change, call: &NewCall) -> DbResult<Call> {
    let next = next_responder(change, call.user_id.as_str(), None, None).await?;
    let waits = call.when_absent == WhenAbsent::Wait;
    let is_lost = next.is_none() && !waits;
    let error = if is_lost { Some(serde_json::to_string(&no_responder())?) } else { None };
    let Stored(created) = sqlx::query_as(
        "-- calls.create
        INSERT INTO calls (id, user_id, event, payload, sender, state, waits, offered_to, offered_since, offer_until,
            error, created_at, deadline_at, ended_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING *",
    )
    .bind(call.id.as_uuid())
    .bind(call.user_id.as_str())
    .bind(call.event.as_str())
    .bind(call.payload.as_str())
    .bind(call.sender.to_string())
    .bind(if is_lost { "failed" } else { "offered" })
    .bind(waits)
    .bind(next.as_ref().map(|next| next.id))
    .bind(next.as_ref().map(|next| next.since))
    .bind(next.as_ref().map(|_| later(change.now, OFFER_TIME)))
    .bind(error)
    .bind(change.now)
    .bind(later(change.now, call.timeout))
    .bind(is_lost.then_some(change.now))
    .fetch_one(&mut change.connection)
    .await?;
    if is_lost {
        change.signal(SignalKind::CallEnded, call.id.to_string(), 0);
    } else {
        change.signal(SignalKind::CallOffered, call.user_id.as_str(), 0);
    }
    Ok(created)
}

/// Reads the offers to connections of these users.
pub(super) async fn standing(
    connection: &mut SqliteConnection,
    users: &[UserId],
    now: i64,
) -> DbResult<Vec<OfferedCall>> {
    let rows: Vec<Stored<OfferedCall>> = sqlx::query_as(
        "-- calls.offers
        SELECT calls.*, (deadline_at - ?1) / 1000 AS left_ms
        FROM json_each(?2) AS users CROSS JOIN calls
        WHERE calls.id IN (
            SELECT id FROM calls AS standing
            WHERE standing.user_id = users.value AND standing.state = 'offered' AND standing.offer_until IS NOT NULL
                AND standing.deadline_at > ?1
            ORDER BY standing.id LIMIT ?3)
        ORDER BY calls.id",
    )
    .bind(now)
    .bind(serde_json::to_string(users)?)
    .bind(STANDING_OFFERS)
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(Stored::into_inner).collect())
}

/// Offers what waits to a new connection, and reads what its user has not claimed.
pub(super) async fn pending(change: &mut Change, user: UserId, connection: ConnectionId) -> DbResult<Vec<OfferedCall>> {
    let moved = sqlx::query(
        "-- calls.offer_waiting
        UPDATE calls SET offered_to = ?2, offer_until = ?3,
            offered_since = coalesce((SELECT since FROM connections WHERE id = ?2), ?4)
        WHERE user_id = ?1 AND state = 'offered' AND offered_to IS NULL",
    )
    .bind(user.as_str())
    .bind(connection.as_uuid())
    .bind(later(change.now, OFFER_TIME))
    .bind(change.now)
    .execute(&mut change.connection)
    .await?
    .rows_affected();
    if moved > 0 {
        change.signal(SignalKind::CallOffered, user.as_str(), 0);
    }
    let mut pending = standing(&mut change.connection, &[user], change.now).await?;
    pending.truncate(PENDING_CALLS as usize);
    Ok(pending)
}

/// A call whose offer has ended.
#[derive(sqlx::FromRow)]
struct Due {
    id: Uuid,
    user_id: String,
    waits: bool,
    offered_to: Option<Uuid>,
    offered_since: Option<i64>,
}

/// Moves on what is due and ends what is over.
pub(super) async fn advance(change: &mut Change, limit: u32) -> DbResult<AdvanceReport> {
    let expired = expire(change, limit).await?;
    let due: Vec<Due> = sqlx::query_as(
        "-- calls.due
        SELECT id, user_id, waits, offered_to, offered_since FROM calls
        WHERE state = 'offered' AND offer_until IS NOT NULL AND offer_until <= ? ORDER BY offer_until LIMIT ?",
    )
    .bind(change.now)
    .bind(limit.saturating_sub(expired))
    .fetch_all(&mut change.connection)
    .await?;
    let mut report = AdvanceReport { offered: 0, ended: expired.into(), more: false };
    report.more = due.len() as u64 + report.ended >= u64::from(limit);
    for call in due {
        match next_responder(change, &call.user_id, call.offered_since, call.offered_to).await? {
            None if !call.waits => {
                fail(change, call.id).await?;
                report.ended += 1;
            }
            next => {
                report.offered += u64::from(next.is_some());
                offer(change, &call, next).await?;
            }
        }
    }
    Ok(report)
}

async fn expire(change: &mut Change, limit: u32) -> DbResult<u32> {
    let expired: Vec<Uuid> = sqlx::query_scalar(
        "-- calls.expire
        UPDATE calls SET state = 'expired', error = ?1, offer_until = NULL, ended_at = ?2
        WHERE id IN (
            SELECT id FROM calls WHERE state IN ('offered', 'claimed') AND deadline_at <= ?2
            ORDER BY deadline_at LIMIT ?3)
        RETURNING id",
    )
    .bind(serde_json::to_string(&call_timeout())?)
    .bind(change.now)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    for call in &expired {
        change.signal(SignalKind::CallEnded, CallId::from_uuid(*call).to_string(), 0);
    }
    Ok(u32::try_from(expired.len()).unwrap_or(limit))
}

async fn fail(change: &mut Change, call: Uuid) -> DbResult<()> {
    sqlx::query(
        "-- calls.fail
        UPDATE calls SET state = 'failed', error = ?, offer_until = NULL, ended_at = ? WHERE id = ?",
    )
    .bind(serde_json::to_string(&no_responder())?)
    .bind(change.now)
    .bind(call)
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::CallEnded, CallId::from_uuid(call).to_string(), 0);
    Ok(())
}

/// Offers a call to a connection; to none, it waits for the next one.
async fn offer(change: &mut Change, call: &Due, next: Option<Responder>) -> DbResult<()> {
    sqlx::query(
        "-- calls.offer
        UPDATE calls SET offered_to = ?, offered_since = ?, offer_until = ? WHERE id = ?",
    )
    .bind(next.as_ref().map(|next| next.id))
    .bind(next.as_ref().map(|next| next.since))
    .bind(next.as_ref().map(|_| later(change.now, OFFER_TIME)))
    .bind(call.id)
    .execute(&mut change.connection)
    .await?;
    if next.is_some() {
        change.signal(SignalKind::CallOffered, call.user_id.as_str(), 0);
    }
    Ok(())
}
