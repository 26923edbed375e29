//! Retention: raises `first_kept` of rooms that keep too much, then deletes what lies below; forgets expired
//! message ids.

use std::sync::Arc;

use switchboard_store_api::StoreResult;
use uuid::Uuid;

use crate::connect::Database;
use crate::error::fault;

/// The most events that a pass deletes, shared by its rooms; the next pass goes on.
const EVENTS: i64 = 10_000;
/// The most expired message ids that a pass deletes.
const MESSAGE_IDS: i64 = 10_000;

pub(super) async fn sweep(database: &Arc<Database>, limit: u32) -> StoreResult<u64> {
    let forgotten = forget_message_ids(database).await?;
    let mut tx = database.begin().await?;
    // The oldest kept event tells of each bound whether the room is over it. It is read room by room: a plain
    // join would let the planner read all events.
    let rooms: Vec<Uuid> = sqlx::query_scalar(
        "-- rooms.lock_overfull
         WITH overfull AS MATERIALIZED (
             SELECT room.id
             FROM switchboard.rooms AS room
             CROSS JOIN LATERAL (
                 SELECT at, bytes_total - octet_length(payload) AS bytes_before FROM switchboard.room_events
                 WHERE room_id = room.id AND pos = room.first_kept LIMIT 1
             ) AS oldest
             WHERE room.top - room.first_kept + 1 > room.max_count
                OR oldest.at < statement_timestamp() - room.max_age_ms * interval '1 millisecond'
                OR room.bytes_total - oldest.bytes_before > room.max_bytes
             LIMIT $1
         )
         SELECT id FROM switchboard.rooms WHERE id = ANY (ARRAY (SELECT id FROM overfull))
         ORDER BY id FOR UPDATE SKIP LOCKED",
    )
    .bind(i64::from(limit))
    .fetch_all(&mut *tx)
    .await
    .map_err(fault)?;
    if rooms.is_empty() {
        return tx.undo(forgotten).await;
    }
    let share = (EVENTS / i64::try_from(rooms.len()).unwrap_or(EVENTS)).max(1);
    // All three bounds grow with the position, so none has to be looked for beyond what this pass may delete.
    let deleted = sqlx::query(
        "-- rooms.apply_retention
         WITH kept AS (
             SELECT room.id, least(room.first_kept + $2, greatest(
                        room.top - room.max_count + 1,
                        coalesce((
                            SELECT pos FROM switchboard.room_events
                            WHERE room_id = room.id AND pos >= room.first_kept AND pos <= room.first_kept + $2
                              AND at >= statement_timestamp() - room.max_age_ms * interval '1 millisecond'
                            ORDER BY pos LIMIT 1
                        ), room.top + 1),
                        coalesce((
                            SELECT pos FROM switchboard.room_events
                            WHERE room_id = room.id AND pos >= room.first_kept AND pos <= room.first_kept + $2
                              AND room.bytes_total - bytes_total + octet_length(payload) <= room.max_bytes
                            ORDER BY pos LIMIT 1
                        ), room.top + 1)
                    )) AS first_kept
             FROM switchboard.rooms AS room WHERE room.id = ANY ($1)
         ),
         raised AS (
             UPDATE switchboard.rooms AS room SET first_kept = kept.first_kept
             FROM kept WHERE room.id = kept.id AND kept.first_kept > room.first_kept
             RETURNING room.id, room.first_kept
         )
         DELETE FROM switchboard.room_events AS event USING raised
         WHERE event.room_id = raised.id AND event.pos < raised.first_kept",
    )
    .bind(rooms)
    .bind(share)
    .execute(&mut *tx)
    .await
    .map_err(fault)?
    .rows_affected();
    tx.commit().await?;
    Ok(forgotten + deleted)
}

async fn forget_message_ids(database: &Arc<Database>) -> StoreResult<u64> {
    let mut session = database.session().await?;
    let forgotten = sqlx::query(
        "-- rooms.forget_message_ids
         WITH expired AS MATERIALIZED (
             SELECT room_id, sender, msg_id FROM switchboard.room_dedupe WHERE expires_at <= statement_timestamp()
             ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
         )
         DELETE FROM switchboard.room_dedupe AS known USING expired
         WHERE known.room_id = expired.room_id AND known.sender = expired.sender AND known.msg_id = expired.msg_id",
    )
    .bind(MESSAGE_IDS)
    .execute(&mut *session)
    .await
    .map_err(fault)?
    .rows_affected();
    session.commit().await?;
    Ok(forgotten)
}
