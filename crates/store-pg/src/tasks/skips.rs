//! Skipped ranges: how they are recorded and read.

use std::collections::HashMap;
use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::ids::TaskId;
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{SkipRange, StoredSkip};
use switchboard_store_api::{OccurrenceRange, StoreError, StoreResult};
use uuid::Uuid;

use super::encode;
use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::rows::{SkipRow, parsed, storable_instant};

pub(super) async fn list(database: &Arc<Database>, id: TaskId, page: &PageRequest) -> StoreResult<Page<SkipRange>> {
    let after = page.after.as_deref().map(parse_cursor).transpose()?.unzip();
    let mut session = database.session().await?;
    let rows: Vec<SkipRow> = sqlx::query_as(
        "-- tasks.skips
         SELECT from_at, to_at, count, cause, schedule FROM switchboard.task_skips
         WHERE task_id = $1 AND ($2 IS NULL OR (from_at, cause) < ($2, $3))
         ORDER BY from_at DESC, cause DESC LIMIT $4",
    )
    .bind(id.as_uuid())
    .bind(after.0)
    .bind(after.1)
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&mut *session)
    .await
    .map_err(fault)?;
    let ranges = rows.into_iter().map(|row| StoredSkip::try_from(row).map(|skip| skip.range));
    let ranges = ranges.collect::<StoreResult<Vec<_>>>()?;
    Ok(Page::from_rows(ranges, page.limit, |range| format!("{}/{}", range.from.timestamp_micros(), range.cause)))
}

fn parse_cursor(text: &str) -> StoreResult<(Timestamp, String)> {
    let malformed = || StoreError::corrupt(StoreError::PAGE_CURSOR, "not an instant and a cause");
    let (micros, cause) = text.split_once('/').ok_or_else(malformed)?;
    let from = Timestamp::from_timestamp_micros(parsed(StoreError::PAGE_CURSOR, micros)?).ok_or_else(malformed)?;
    Ok((from, cause.to_owned()))
}

pub(super) async fn between(
    database: &Arc<Database>,
    id: TaskId,
    range: &OccurrenceRange,
) -> StoreResult<Vec<StoredSkip>> {
    let mut session = database.session().await?;
    let rows: Vec<SkipRow> = sqlx::query_as(
        "-- tasks.skips_between
         SELECT from_at, to_at, count, cause, schedule FROM switchboard.task_skips
         WHERE task_id = $1 AND to_at >= $2 AND from_at <= $3
         ORDER BY to_at DESC, from_at DESC, cause DESC LIMIT $4",
    )
    .bind(id.as_uuid())
    .bind(storable_instant(range.from))
    .bind(storable_instant(range.to))
    .bind(i64::from(range.limit))
    .fetch_all(&mut *session)
    .await
    .map_err(fault)?;
    rows.into_iter().map(StoredSkip::try_from).collect()
}

/// Records skipped ranges, under the locks on their tasks. One that goes on where the newest stored range of its task
/// ends extends that; one that starts where a stored range does replaces it.
pub(super) async fn record(tx: &mut Tx, mut skips: Vec<(TaskId, StoredSkip)>) -> StoreResult<()> {
    if skips.is_empty() {
        return Ok(());
    }
    let newest = newest(tx, &skips).await?;
    for (task, skip) in &mut skips {
        if let Some(joined) = newest.get(&task.as_uuid()).and_then(|newest| newest.joined(skip)) {
            *skip = joined;
        }
    }
    let schedules = skips.iter().map(|(_, skip)| skip.schedule.as_ref().map(encode).transpose());
    let schedules = schedules.collect::<StoreResult<Vec<_>>>()?;
    sqlx::query(
        "-- tasks.record_skips
         INSERT INTO switchboard.task_skips (task_id, from_at, to_at, count, cause, schedule)
         SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::bigint[], $5::text[], $6::text[])
         ON CONFLICT (task_id, from_at, cause) DO UPDATE
             SET to_at = excluded.to_at, count = excluded.count, schedule = excluded.schedule",
    )
    .bind(skips.iter().map(|(task, _)| task.as_uuid()).collect::<Vec<_>>())
    .bind(skips.iter().map(|(_, skip)| skip.range.from).collect::<Vec<_>>())
    .bind(skips.iter().map(|(_, skip)| skip.range.to).collect::<Vec<_>>())
    .bind(skips.iter().map(|(_, skip)| skip.range.count.cast_signed()).collect::<Vec<_>>())
    .bind(skips.iter().map(|(_, skip)| skip.range.cause.as_str()).collect::<Vec<_>>())
    .bind(schedules.iter().map(|schedule| schedule.as_ref().map(JsonText::as_str)).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}

async fn newest(tx: &mut Tx, skips: &[(TaskId, StoredSkip)]) -> StoreResult<HashMap<Uuid, StoredSkip>> {
    #[derive(sqlx::FromRow)]
    struct NewestRow {
        task_id: Uuid,
        #[sqlx(flatten)]
        skip: SkipRow,
    }
    let newest: Vec<NewestRow> = sqlx::query_as(
        "-- tasks.newest_skips
         SELECT newest.* FROM unnest($1::uuid[]) AS given (id)
         CROSS JOIN LATERAL (
             SELECT task_id, from_at, to_at, count, cause, schedule FROM switchboard.task_skips
             WHERE task_id = given.id ORDER BY from_at DESC LIMIT 1
         ) AS newest",
    )
    .bind(skips.iter().map(|(task, _)| task.as_uuid()).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    newest.into_iter().map(|row| Ok((row.task_id, row.skip.try_into()?))).collect()
}
