//! Skipped ranges: how they are recorded and read.

use switchboard_model::ids::TaskId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{SkipRange, StoredSkip};
use switchboard_store_api::{OccurrenceRange, StoreError};

use crate::Database;
use crate::error::DbResult;
use crate::rows::{Stored, micros};
use crate::writer::Change;

pub(super) async fn list(database: &Database, id: TaskId, page: &PageRequest) -> DbResult<Page<SkipRange>> {
    let (from, cause) = match &page.after {
        None => (i64::MAX, ""),
        Some(text) => text
            .split_once(':')
            .and_then(|(from, cause)| Some((from.parse().ok()?, cause)))
            .ok_or_else(|| StoreError::corrupt(StoreError::PAGE_CURSOR, "not an instant and a cause"))?,
    };
    let rows: Vec<Stored<StoredSkip>> = sqlx::query_as(
        "-- tasks.skips
        SELECT * FROM task_skips WHERE task_id = ? AND (from_at, cause) < (?, ?)
        ORDER BY from_at DESC, cause DESC LIMIT ?",
    )
    .bind(id.as_uuid())
    .bind(from)
    .bind(cause)
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    let ranges = rows.into_iter().map(|Stored(skip)| skip.range).collect();
    Ok(Page::from_rows(ranges, page.limit, |range: &SkipRange| format!("{}:{}", micros(range.from), range.cause)))
}

pub(super) async fn between(database: &Database, id: TaskId, range: OccurrenceRange) -> DbResult<Vec<StoredSkip>> {
    let rows: Vec<Stored<StoredSkip>> = sqlx::query_as(
        "-- tasks.skips_between
        SELECT * FROM task_skips WHERE task_id = ? AND to_at >= ? AND from_at <= ?
        ORDER BY to_at DESC, from_at DESC, cause DESC LIMIT ?",
    )
    .bind(id.as_uuid())
    .bind(micros(range.from))
    .bind(micros(range.to))
    .bind(range.limit)
    .fetch_all(&database.readers)
    .await?;
    Ok(rows.into_iter().map(Stored::into_inner).collect())
}

/// Records skipped ranges of a task. One that goes on where the newest stored range ends extends that; one that starts
/// where a stored range does replaces it.
pub(super) async fn record(change: &mut Change, id: TaskId, skips: Vec<StoredSkip>) -> DbResult<()> {
    for skip in skips {
        let newest: Option<Stored<StoredSkip>> = sqlx::query_as(
            "-- tasks.newest_skip
            SELECT * FROM task_skips WHERE task_id = ? ORDER BY from_at DESC LIMIT 1",
        )
        .bind(id.as_uuid())
        .fetch_optional(&mut change.connection)
        .await?;
        let skip = newest.and_then(|Stored(newest)| newest.joined(&skip)).unwrap_or(skip);
        write(change, id, &skip).await?;
    }
    Ok(())
}

async fn write(change: &mut Change, id: TaskId, skip: &StoredSkip) -> DbResult<()> {
    let StoredSkip { range, schedule } = skip;
    sqlx::query(
        "-- tasks.record_skip
        INSERT INTO task_skips (task_id, from_at, to_at, count, cause, schedule) VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET to_at = excluded.to_at, count = excluded.count, schedule = excluded.schedule",
    )
    .bind(id.as_uuid())
    .bind(micros(range.from))
    .bind(micros(range.to))
    .bind(range.count.cast_signed())
    .bind(range.cause.as_str())
    .bind(schedule.as_ref().map(serde_json::to_string).transpose()?)
    .execute(&mut change.connection)
    .await?;
    Ok(())
}
