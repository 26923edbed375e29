//! Retention: what exceeds the bounds of a room is forgotten, oldest first.

use sqlx::SqlitePool;
use uuid::Uuid;

use crate::connect;
use crate::error::DbResult;
use crate::writer::Change;

/// The most expired message ids that one sweep deletes.
const MESSAGES_PER_SWEEP: i64 = 5_000;

/// Finds rooms whose oldest kept event exceeds a bound.
pub(super) async fn excessive(readers: &SqlitePool, limit: u32) -> DbResult<Vec<Uuid>> {
    let rooms = sqlx::query_scalar(
        "-- rooms.excessive
        SELECT rooms.id FROM rooms JOIN room_events ON room_id = rooms.id AND pos = first_kept
        WHERE top - first_kept >= max_count OR at < ? - max_age_ms * 1000
            OR rooms.bytes_total - room_events.bytes_total + octet_length(payload) > max_bytes
        LIMIT ?",
    )
    .bind(connect::now())
    .bind(limit)
    .fetch_all(readers)
    .await?;
    Ok(rooms)
}

/// Raises `first_kept` of a room to the oldest event within its bounds, then deletes what is older.
/// All three bounds grow with the position, so the first event that fits ends the search.
pub(super) async fn trim(change: &mut Change, room_id: Uuid) -> DbResult<u64> {
    let first_kept: Option<i64> = sqlx::query_scalar(
        "-- rooms.raise_first_kept
        UPDATE rooms SET first_kept = COALESCE(
            (SELECT pos FROM room_events
             WHERE room_id = rooms.id AND pos >= first_kept AND pos > top - max_count
                AND at >= ?2 - max_age_ms * 1000
                AND rooms.bytes_total - room_events.bytes_total + octet_length(payload) <= max_bytes
             ORDER BY pos LIMIT 1),
            top + 1)
        WHERE id = ?1 RETURNING first_kept",
    )
    .bind(room_id)
    .bind(change.now)
    .fetch_optional(&mut change.connection)
    .await?;
    let deleted = sqlx::query(
        "-- rooms.delete_older
        DELETE FROM room_events WHERE room_id = ? AND pos < ?",
    )
    .bind(room_id)
    .bind(first_kept)
    .execute(&mut change.connection)
    .await?;
    Ok(deleted.rows_affected())
}

/// Deletes expired message ids.
pub(super) async fn forget_messages(change: &mut Change) -> DbResult<()> {
    sqlx::query(
        "-- rooms.forget_messages
        DELETE FROM room_dedupe WHERE rowid IN
            (SELECT rowid FROM room_dedupe WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)",
    )
    .bind(change.now)
    .bind(MESSAGES_PER_SWEEP)
    .execute(&mut change.connection)
    .await?;
    Ok(())
}
