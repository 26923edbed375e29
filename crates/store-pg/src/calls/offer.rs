//! Offers: to whom a call goes first, next, and when it ends without anybody.
//!
//! Connections come and go while a call is moved. Whoever moves calls locks them in one statement and looks for
//! connections in the next, so that of a new connection and a move at the same time one sees the other.

use switchboard_model::call::{
    Call, CallState, NewCall, OFFER_TIME, PENDING_CALLS, STANDING_OFFERS, WhenAbsent, call_timeout, no_responder,
};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::UserId;
use switchboard_model::ids::ConnectionId;
use switchboard_store_api::{AdvanceReport, OfferedCall, StoreResult};
use uuid::Uuid;

use super::rows::{CallRow, OfferRow, error_text};
use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::link::Link;

/// Stores a call, offered to the newest connection of its user or waiting for one, or failed at once.
///
/// One that waits is looked at again after the time of an offer: a connection that came during this transaction was
/// not seen here, and has not seen the call.
pub(super) async fn create(tx: &mut Tx, call: &NewCall) -> StoreResult<Call> {
    let row: CallRow = sqlx::query_as(
        "-- calls.create
         WITH moment AS MATERIALIZED (
             SELECT clock_timestamp() AS now
         ),
         next AS MATERIALIZED (
             SELECT connection.id, connection.since
             FROM switchboard.connections AS connection
             JOIN switchboard.instances AS instance ON instance.id = connection.instance_id
             WHERE connection.user_id = $2 AND instance.expires_at > clock_timestamp()
             ORDER BY connection.since DESC, connection.id DESC
             LIMIT 1
         ),
         fate AS MATERIALIZED (
             SELECT now, next.id, next.since, next.id IS NULL AND NOT $6 AS is_lost
             FROM moment LEFT JOIN next ON true
         )
         INSERT INTO switchboard.calls
             (id, user_id, event, payload, sender, state, waits, offered_to, offered_since, offer_until, error,
              created_at, deadline_at, ended_at)
         SELECT $1, $2, $3, $4, $5, CASE WHEN is_lost THEN 'failed' ELSE 'offered' END, $6, id, since,
                CASE WHEN NOT is_lost THEN now + $8 * interval '1 millisecond' END,
                CASE WHEN is_lost THEN $9 END,
                now, now + $7 * interval '1 millisecond', CASE WHEN is_lost THEN now END
         FROM fate
         RETURNING id, user_id, event, payload, sender, state, claimed_by, result, error,
                   created_at, deadline_at, ended_at",
    )
    .bind(call.id.as_uuid())
    .bind(call.user_id.as_str())
    .bind(call.event.as_str())
    .bind(call.payload.as_str())
    .bind(call.sender.to_string())
    .bind(call.when_absent == WhenAbsent::Wait)
    .bind(call.timeout.as_millis_i64())
    .bind(OFFER_TIME.as_millis_i64())
    .bind(error_text(&no_responder())?.as_str())
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)?;
    let created = Call::try_from(row)?;
    if created.state.is_terminal() {
        tx.signal(SignalKind::CallEnded, &call.id);
    } else {
        tx.signal(SignalKind::CallOffered, &call.user_id);
    }
    Ok(created)
}

/// Reads the offers to connections of these users.
pub(super) async fn standing(link: &mut Link, users: &[UserId]) -> StoreResult<Vec<OfferedCall>> {
    let users: Vec<&str> = users.iter().map(UserId::as_str).collect();
    let rows: Vec<OfferRow> = sqlx::query_as(
        "-- calls.offers
         SELECT call.* FROM unnest($1::text[]) AS person (id)
         CROSS JOIN LATERAL (
             SELECT id, user_id, offered_to, offer_until, event, payload,
                    (extract(epoch FROM deadline_at - clock_timestamp()) * 1000)::bigint AS left_ms
             FROM switchboard.calls
             WHERE user_id = person.id AND state = 'offered' AND offered_to IS NOT NULL AND offer_until IS NOT NULL
                 AND deadline_at > clock_timestamp()
             ORDER BY id LIMIT $2
         ) AS call
         ORDER BY call.id",
    )
    .bind(users)
    .bind(i64::from(STANDING_OFFERS))
    .fetch_all(link)
    .await
    .map_err(fault)?;
    rows.into_iter().map(OfferedCall::try_from).collect()
}

/// Offers what waits to a new connection, and reads what its user has not claimed.
pub(super) async fn pending(
    database: &Database,
    user: &UserId,
    connection: ConnectionId,
) -> StoreResult<Vec<OfferedCall>> {
    let mut tx = database.begin().await?;
    let open: Vec<Uuid> = sqlx::query_scalar(
        "-- calls.lock_open
         SELECT id FROM switchboard.calls WHERE user_id = $1 AND state = 'offered' ORDER BY id FOR UPDATE",
    )
    .bind(user.as_str())
    .fetch_all(&mut *tx)
    .await
    .map_err(fault)?;
    if open.is_empty() {
        return tx.undo(Vec::new()).await;
    }
    let moved = sqlx::query(
        "-- calls.offer_waiting
         UPDATE switchboard.calls
         SET offered_to = $2, offer_until = clock_timestamp() + $3 * interval '1 millisecond',
             offered_since = coalesce((SELECT since FROM switchboard.connections WHERE id = $2), clock_timestamp())
         WHERE id = ANY($1) AND state = 'offered' AND offered_to IS NULL",
    )
    .bind(open)
    .bind(connection.as_uuid())
    .bind(OFFER_TIME.as_millis_i64())
    .execute(&mut *tx)
    .await
    .map_err(fault)?
    .rows_affected();
    if moved > 0 {
        tx.signal(SignalKind::CallOffered, user);
    }
    let mut pending = standing(&mut tx, std::slice::from_ref(user)).await?;
    pending.truncate(PENDING_CALLS as usize);
    tx.commit().await?;
    Ok(pending)
}

/// Moves on what is due and ends what is over.
pub(super) async fn advance(database: &Database, limit: u32) -> StoreResult<AdvanceReport> {
    let mut tx = database.begin().await?;
    let due = lock_due(&mut tx, limit).await?;
    if due.is_empty() {
        return tx.undo(AdvanceReport::default()).await;
    }
    let more = due.len() >= limit as usize;
    let expired = expire(&mut tx, &due).await?;
    let (mut offered, mut ended) = (0, expired.len() as u64);
    for call in expired {
        tx.signal(SignalKind::CallEnded, &call);
    }
    for moved in move_on(&mut tx, &due).await? {
        if moved.state == CallState::Failed.as_str() {
            ended += 1;
            tx.signal(SignalKind::CallEnded, &moved.id);
        } else if moved.offered_to.is_some() {
            offered += 1;
            tx.signal(SignalKind::CallOffered, &moved.user_id);
        }
    }
    tx.commit().await?;
    Ok(AdvanceReport { offered, ended, more })
}

/// Locks calls that are due, except those that another replica is working on.
async fn lock_due(tx: &mut Tx, limit: u32) -> StoreResult<Vec<Uuid>> {
    // The conditions are checked again on the row as it is under its lock.
    sqlx::query_scalar(
        "-- calls.lock_due
         WITH due AS MATERIALIZED (
             (SELECT id FROM switchboard.calls
              WHERE state = 'offered' AND offer_until IS NOT NULL AND offer_until <= statement_timestamp()
              ORDER BY offer_until LIMIT $1)
             UNION
             (SELECT id FROM switchboard.calls
              WHERE state IN ('offered', 'claimed') AND deadline_at <= statement_timestamp()
              ORDER BY deadline_at LIMIT $1)
         )
         SELECT call.id
         FROM switchboard.calls AS call JOIN due ON due.id = call.id
         WHERE (call.state = 'offered' AND call.offer_until <= statement_timestamp())
             OR (call.state IN ('offered', 'claimed') AND call.deadline_at <= statement_timestamp())
         LIMIT $1
         FOR UPDATE OF call SKIP LOCKED",
    )
    .bind(i64::from(limit))
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

async fn expire(tx: &mut Tx, due: &[Uuid]) -> StoreResult<Vec<Uuid>> {
    sqlx::query_scalar(
        "-- calls.expire
         UPDATE switchboard.calls
         SET state = 'expired', error = $2, offer_until = NULL, ended_at = clock_timestamp()
         WHERE id = ANY($1) AND state IN ('offered', 'claimed') AND deadline_at <= statement_timestamp()
         RETURNING id",
    )
    .bind(due)
    .bind(error_text(&call_timeout())?.as_str())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

/// What became of a call whose offer has ended.
#[derive(sqlx::FromRow)]
struct MovedRow {
    id: Uuid,
    user_id: String,
    state: String,
    offered_to: Option<Uuid>,
}

/// Offers each call to the connection that is next older than the one before; after the oldest comes the newest.
async fn move_on(tx: &mut Tx, due: &[Uuid]) -> StoreResult<Vec<MovedRow>> {
    sqlx::query_as(
        "-- calls.move_on
         WITH chosen AS MATERIALIZED (
             SELECT call.id, next.id AS connection, next.since, next.id IS NULL AND NOT call.waits AS is_lost
             FROM switchboard.calls AS call
             LEFT JOIN LATERAL (
                 SELECT connection.id, connection.since
                 FROM switchboard.connections AS connection
                 JOIN switchboard.instances AS instance ON instance.id = connection.instance_id
                 WHERE connection.user_id = call.user_id AND instance.expires_at > clock_timestamp()
                 ORDER BY (connection.since, connection.id) < (call.offered_since, call.offered_to) DESC,
                          connection.since DESC, connection.id DESC
                 LIMIT 1
             ) AS next ON true
             WHERE call.id = ANY($1) AND call.state = 'offered'
         )
         UPDATE switchboard.calls AS call
         SET offered_to = connection, offered_since = since,
             offer_until = CASE WHEN connection IS NOT NULL
                                THEN clock_timestamp() + $2 * interval '1 millisecond' END,
             state = CASE WHEN is_lost THEN 'failed' ELSE call.state END,
             error = CASE WHEN is_lost THEN $3 END,
             ended_at = CASE WHEN is_lost THEN clock_timestamp() END
         FROM chosen
         WHERE call.id = chosen.id
         RETURNING call.id, call.user_id, call.state, call.offered_to",
    )
    .bind(due)
    .bind(OFFER_TIME.as_millis_i64())
    .bind(error_text(&no_responder())?.as_str())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}
