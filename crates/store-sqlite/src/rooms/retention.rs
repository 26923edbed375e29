//! Retention: what exceeds the bounds of a room is forgotten, oldest first, and so is what a deleted room left.
//!
//! Each deletion is as many commands as it needs, so that other commands of the writer get their turn in between.

use futures_util::future::BoxFuture;
use sqlx::SqlitePool;
use switchboard_store_api::StoreResult;
use uuid::Uuid;

use crate::error::DbResult;
use crate::writer::{Change, Lane, Writer};
use crate::{Database, connect};

/// The most rows that one command deletes, which takes it a part of a chunk.
const ROWS_PER_COMMAND: u32 = 2_000;

pub(super) async fn sweep(database: &Database, limit: u32) -> StoreResult<u64> {
    let (readers, writer) = (&database.readers, &database.writer);
    let mut deleted = 0;
    for room in excessive(readers, limit).await? {
        deleted += drain(writer, move |change| Box::pin(trim(change, room))).await?;
    }
    for room in abandoned(readers, limit).await? {
        deleted += delete_events(writer, room).await?;
    }
    deleted += drain(writer, |change| Box::pin(forget_messages(change))).await?;
    Ok(deleted)
}

/// Deletes all events of a room that has no row any more. Its message ids expire like any others.
pub(super) async fn delete_events(writer: &Writer, room: Uuid) -> StoreResult<u64> {
    drain(writer, move |change| Box::pin(delete_some_events(change, room))).await
}

/// Repeats a command until it deletes less than it may; returns how many rows were deleted.
async fn drain<W>(writer: &Writer, work: W) -> StoreResult<u64>
where
    W: for<'c> Fn(&'c mut Change) -> BoxFuture<'c, DbResult<u64>> + Copy + Send + 'static,
{
    let mut total = 0;
    loop {
        let deleted = writer.write(Lane::Normal, work).await?;
        total += deleted;
        if deleted < u64::from(ROWS_PER_COMMAND) {
            return Ok(total);
        }
    }
}

/// Finds rooms whose oldest kept event exceeds a bound.
async fn excessive(readers: &SqlitePool, limit: u32) -> DbResult<Vec<Uuid>> {
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

/// Finds rooms whose rows are gone while events are left; it goes from room to room, not over all events.
async fn abandoned(readers: &SqlitePool, limit: u32) -> DbResult<Vec<Uuid>> {
    let rooms = sqlx::query_scalar(
        "-- rooms.abandoned
        WITH RECURSIVE known (id) AS (
            SELECT MIN(room_id) FROM room_events
            UNION ALL
            SELECT (SELECT MIN(room_id) FROM room_events WHERE room_id > known.id) FROM known WHERE id IS NOT NULL
        )
        SELECT id FROM known WHERE id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM rooms WHERE rooms.id = known.id)
        LIMIT ?",
    )
    .bind(limit)
    .fetch_all(readers)
    .await?;
    Ok(rooms)
}

/// Raises `first_kept` of a room to the oldest event within its bounds, or as far as one command may
/// go, then deletes what is older. All three bounds grow with the position, so the first event that
/// fits ends the search.
async fn trim(change: &mut Change, room_id: Uuid) -> DbResult<u64> {
    let first_kept: Option<i64> = sqlx::query_scalar(
        "-- rooms.raise_first_kept
        UPDATE rooms SET first_kept = COALESCE(
            (SELECT pos FROM room_events
             WHERE room_id = rooms.id AND pos >= first_kept AND pos < first_kept + ?3 AND pos > top - max_count
                AND at >= ?2 - max_age_ms * 1000
                AND rooms.bytes_total - room_events.bytes_total + octet_length(payload) <= max_bytes
             ORDER BY pos LIMIT 1),
            MIN(top + 1, first_kept + ?3))
        WHERE id = ?1 RETURNING first_kept",
    )
    .bind(room_id)
    .bind(change.now)
    .bind(ROWS_PER_COMMAND)
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

async fn delete_some_events(change: &mut Change, room_id: Uuid) -> DbResult<u64> {
    let deleted = sqlx::query(
        "-- rooms.delete_events
        DELETE FROM room_events WHERE rowid IN (SELECT rowid FROM room_events WHERE room_id = ? LIMIT ?)",
    )
    .bind(room_id)
    .bind(ROWS_PER_COMMAND)
    .execute(&mut change.connection)
    .await?;
    Ok(deleted.rows_affected())
}

/// Deletes expired message ids.
async fn forget_messages(change: &mut Change) -> DbResult<u64> {
    let forgotten = sqlx::query(
        "-- rooms.forget_messages
        DELETE FROM room_dedupe WHERE rowid IN
            (SELECT rowid FROM room_dedupe WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)",
    )
    .bind(change.now)
    .bind(ROWS_PER_COMMAND)
    .execute(&mut change.connection)
    .await?;
    Ok(forgotten.rows_affected())
}
