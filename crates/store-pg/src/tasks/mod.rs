//! Tasks: reads and lists; edits and firing have files of their own.

mod edit;
mod fire;

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::fire::FirePlan;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::TaskId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::SkipRange;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_store_api::{
    DueTasks, FireReport, StoreError, StoreResult, TaskCreateOutcome, TaskStore, TaskUpdateOutcome, WriteContext,
    Written,
};

use crate::connect::Database;
use crate::context::twice;
use crate::error::fault;
use crate::link::Link;
use crate::rows::{SkipRow, TaskRow, after_id, count, parsed};

pub(crate) struct Tasks(pub(crate) Arc<Database>);

#[async_trait]
impl TaskStore for Tasks {
    #[tracing::instrument(name = "db.tasks.create", level = "debug", skip_all)]
    async fn create(
        &self,
        context: &WriteContext,
        id: TaskId,
        spec: &TaskSpec,
    ) -> StoreResult<Written<TaskCreateOutcome>> {
        twice(|| edit::create(&self.0, context, id, spec)).await
    }

    #[tracing::instrument(name = "db.tasks.get", level = "debug", skip_all)]
    async fn get(&self, id: TaskId) -> StoreResult<Option<Task>> {
        let mut session = self.0.session().await?;
        let row: Option<TaskRow> = sqlx::query_as(
            "-- tasks.get
             SELECT id, spec, is_active, next_run_at, version, parked, created_at, updated_at
             FROM switchboard.tasks WHERE id = $1 AND deleted_at IS NULL",
        )
        .bind(id.as_uuid())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(Task::try_from).transpose()
    }

    #[tracing::instrument(name = "db.tasks.find", level = "debug", skip_all)]
    async fn find(&self, name: &TaskName) -> StoreResult<Option<Task>> {
        let mut session = self.0.session().await?;
        let row: Option<TaskRow> = sqlx::query_as(
            "-- tasks.find
             SELECT id, spec, is_active, next_run_at, version, parked, created_at, updated_at
             FROM switchboard.tasks WHERE name = $1 AND deleted_at IS NULL",
        )
        .bind(name.as_str())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(Task::try_from).transpose()
    }

    #[tracing::instrument(name = "db.tasks.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Task>> {
        let after = after_id(page)?;
        let mut session = self.0.session().await?;
        let rows: Vec<TaskRow> = sqlx::query_as(
            "-- tasks.list
             SELECT id, spec, is_active, next_run_at, version, parked, created_at, updated_at
             FROM switchboard.tasks
             WHERE deleted_at IS NULL AND id > $1 ORDER BY id LIMIT $2",
        )
        .bind(after.unwrap_or_default())
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let Page { items, next_cursor } = Page::from_rows(rows, page.limit, |row| row.id.to_string());
        Ok(Page { items: items.into_iter().filter_map(readable).collect(), next_cursor })
    }

    #[tracing::instrument(name = "db.tasks.update", level = "debug", skip_all)]
    async fn update(
        &self,
        context: &WriteContext,
        id: TaskId,
        expected: i64,
        spec: &TaskSpec,
    ) -> StoreResult<TaskUpdateOutcome> {
        twice(|| edit::update(&self.0, context, edit::Edit { id, expected, spec })).await
    }

    #[tracing::instrument(name = "db.tasks.set_active", level = "debug", skip_all)]
    async fn set_active(&self, context: &WriteContext, id: TaskId, active: bool) -> StoreResult<Option<Task>> {
        edit::set_active(&self.0, context, id, active).await
    }

    #[tracing::instrument(name = "db.tasks.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, id: TaskId) -> StoreResult<bool> {
        edit::delete(&self.0, context, id).await
    }

    #[tracing::instrument(name = "db.tasks.due", level = "debug", skip_all)]
    async fn due(&self, limit: u32) -> StoreResult<DueTasks> {
        fire::due(&self.0, limit).await
    }

    #[tracing::instrument(name = "db.tasks.fire", level = "debug", skip_all)]
    async fn fire(&self, plans: &[FirePlan]) -> StoreResult<FireReport> {
        fire::fire(&self.0, plans).await
    }

    #[tracing::instrument(name = "db.tasks.skips", level = "debug", skip_all)]
    async fn skips(&self, id: TaskId, page: &PageRequest) -> StoreResult<Page<SkipRange>> {
        let after = page.after.as_deref().map(parse_skip_cursor).transpose()?.unzip();
        let mut session = self.0.session().await?;
        let rows: Vec<SkipRow> = sqlx::query_as(
            "-- tasks.skips
             SELECT from_at, to_at, count, cause FROM switchboard.task_skips
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
        let ranges = rows.into_iter().map(SkipRange::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(ranges, page.limit, |range| format!("{}/{}", range.from.timestamp_micros(), range.cause)))
    }

    #[tracing::instrument(name = "db.tasks.count_unarmed", level = "debug", skip_all)]
    async fn count_unarmed(&self) -> StoreResult<u64> {
        let mut session = self.0.session().await?;
        let unarmed = sqlx::query_scalar(
            "-- tasks.count_unarmed
             SELECT count(*) FROM switchboard.tasks
             WHERE has_schedule AND is_active AND deleted_at IS NULL AND next_run_at IS NULL",
        )
        .fetch_one(&mut *session)
        .await
        .map_err(fault)?;
        Ok(count(unarmed))
    }
}

/// Leaves out a row that this binary cannot read, so that it does not hide the others.
fn readable(row: TaskRow) -> Option<Task> {
    let id = row.id;
    Task::try_from(row)
        .inspect_err(
            |error| tracing::warn!(task = %id, error = error as &dyn std::error::Error, "task left out of a list"),
        )
        .ok()
}

fn parse_skip_cursor(text: &str) -> StoreResult<(Timestamp, String)> {
    let malformed = || StoreError::corrupt(StoreError::PAGE_CURSOR, "not an instant and a cause");
    let (micros, cause) = text.split_once('/').ok_or_else(malformed)?;
    let from = Timestamp::from_timestamp_micros(parsed(StoreError::PAGE_CURSOR, micros)?).ok_or_else(malformed)?;
    Ok((from, cause.to_owned()))
}

/// Records skipped ranges; one that starts where a stored one does replaces it.
async fn record_skips(connection: &mut Link, skips: &[(TaskId, SkipRange)]) -> StoreResult<()> {
    if skips.is_empty() {
        return Ok(());
    }
    let tasks: Vec<_> = skips.iter().map(|(task, _)| task.as_uuid()).collect();
    let from: Vec<_> = skips.iter().map(|(_, range)| range.from).collect();
    let to: Vec<_> = skips.iter().map(|(_, range)| range.to).collect();
    let counts: Vec<_> = skips.iter().map(|(_, range)| range.count.cast_signed()).collect();
    let causes: Vec<_> = skips.iter().map(|(_, range)| range.cause.as_str()).collect();
    sqlx::query(
        "-- tasks.record_skips
         INSERT INTO switchboard.task_skips (task_id, from_at, to_at, count, cause)
         SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::bigint[], $5::text[])
         ON CONFLICT (task_id, from_at, cause) DO UPDATE SET to_at = excluded.to_at, count = excluded.count",
    )
    .bind(tasks)
    .bind(from)
    .bind(to)
    .bind(counts)
    .bind(causes)
    .execute(connection)
    .await
    .map_err(fault)?;
    Ok(())
}
