//! Room in pools with a maximum: those who wait for it are told when runs leave some.

use crate::error::DbResult;
use crate::writer::Change;

/// The runs that have left a pool.
#[derive(Default)]
pub(super) struct Left {
    pub(super) runs: u32,
    /// Whether no replica looks by itself for what may follow one of them.
    pub(super) is_unattended: bool,
}

/// Tells whether a pool was full before these runs left it, and somebody waits for the room.
///
/// The replica that executed a run looks for the next one by itself. Nobody does so for runs that external workers have
/// executed or await, nor for what was taken away from a holder that is gone.
pub(super) async fn is_awaited(change: &mut Change, pool: &str, left: &Left) -> DbResult<bool> {
    let is_awaited: Option<bool> = sqlx::query_scalar(
        "-- runs.is_room_awaited
        SELECT max > 0
            AND EXISTS (SELECT 1 FROM runs WHERE state = 'queued' AND pool = ?1 AND (?3 OR is_pull))
            AND (SELECT COUNT(*) FROM runs WHERE state = 'running' AND pool = ?1) BETWEEN max - ?2 AND max - 1
        FROM (SELECT value -> 'pools' -> ?1 ->> 'max_running' AS max FROM settings WHERE name = 'fleet')
        WHERE max IS NOT NULL",
    )
    .bind(pool)
    .bind(left.runs)
    .bind(left.is_unattended)
    .fetch_optional(&mut change.connection)
    .await?;
    Ok(is_awaited == Some(true))
}
