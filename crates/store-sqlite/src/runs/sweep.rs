//! The end of what is kept: old runs and skipped ranges. No key is kept on this backend.

use switchboard_model::span::Span;
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::earlier;
use crate::writer::Change;

/// Deletes runs that are older than their own retention, or than `age` without one, and skipped ranges.
pub(super) async fn sweep(change: &mut Change, age: Span, limit: u32) -> DbResult<u64> {
    let before = earlier(change.now, age);
    let gone: Vec<Uuid> = sqlx::query_scalar(
        "-- runs.outlived
        SELECT id FROM (SELECT id FROM runs WHERE finished_at < ?1 AND prune_at IS NULL ORDER BY finished_at LIMIT ?3)
        UNION ALL
        SELECT id FROM (
            SELECT id FROM runs WHERE prune_at <= ?2 AND finished_at IS NOT NULL ORDER BY prune_at LIMIT ?3)
        LIMIT ?3",
    )
    .bind(before)
    .bind(change.now)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    let ids = serde_json::to_string(&gone)?;
    for delete in [
        "-- runs.sweep_details
        DELETE FROM run_details WHERE run_id IN (SELECT unhex(value, '-') FROM json_each(?))",
        "-- runs.sweep
        DELETE FROM runs WHERE id IN (SELECT unhex(value, '-') FROM json_each(?))",
    ] {
        sqlx::query(delete).bind(&ids).execute(&mut change.connection).await?;
    }
    let skips = sqlx::query(
        "-- tasks.sweep_skips
        DELETE FROM task_skips WHERE rowid IN (SELECT rowid FROM task_skips WHERE to_at < ? ORDER BY to_at LIMIT ?)",
    )
    .bind(before)
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    Ok(gone.len() as u64 + skips.rows_affected())
}
