//! Tasks: reads and lists; edits and firing have files of their own.

mod create;
mod edit;
mod fire;
mod repair;
mod skips;

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::fire::FirePlan;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::TaskId;
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{SkipRange, StoredSkip};
use switchboard_model::span::Span;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_store_api::{
    DueTasks, FireReport, OccurrenceRange, StoreError, StoreResult, TaskCreateOutcome, TaskStore, TaskUpdateOutcome,
    UnarmedReport, WriteContext, Written,
};

use crate::connect::Database;
use crate::context::twice;
use crate::error::fault;
use crate::rows::{TaskRow, after_id};

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
        twice(|| create::create(&self.0, context, id, spec)).await
    }

    #[tracing::instrument(name = "db.tasks.create_many", level = "debug", skip_all)]
    async fn create_many(
        &self,
        context: &WriteContext,
        tasks: &[(TaskId, TaskSpec)],
    ) -> StoreResult<Written<Vec<TaskCreateOutcome>>> {
        twice(|| create::create_many(&self.0, context, tasks)).await
    }

    #[tracing::instrument(name = "db.tasks.get", level = "debug", skip_all)]
    async fn get(&self, id: TaskId) -> StoreResult<Option<Task>> {
        let mut session = self.0.session().await?;
        let row: Option<TaskRow> = sqlx::query_as(
            "-- tasks.get
             SELECT id, spec, is_active, next_run_at, version, paused_at, parked, created_at, updated_at
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
             SELECT id, spec, is_active, next_run_at, version, paused_at, parked, created_at, updated_at
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
             SELECT id, spec, is_active, next_run_at, version, paused_at, parked, created_at, updated_at
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
        skips::list(&self.0, id, page).await
    }

    #[tracing::instrument(name = "db.tasks.skips_between", level = "debug", skip_all)]
    async fn skips_between(&self, id: TaskId, range: &OccurrenceRange) -> StoreResult<Vec<StoredSkip>> {
        skips::between(&self.0, id, range).await
    }

    #[tracing::instrument(name = "db.tasks.count_unarmed", level = "debug", skip_all)]
    async fn count_unarmed(&self) -> StoreResult<u64> {
        repair::count_unarmed(&self.0).await
    }

    #[tracing::instrument(name = "db.tasks.repair_unarmed", level = "debug", skip_all)]
    async fn repair_unarmed(&self, limit: u32) -> StoreResult<UnarmedReport> {
        repair::repair_unarmed(&self.0, limit).await
    }

    #[tracing::instrument(name = "db.tasks.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        repair::sweep(&self.0, age, limit).await
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

/// Writes what a column keeps as JSON.
fn encode(value: &impl serde::Serialize) -> StoreResult<JsonText> {
    JsonText::encode(value).map_err(|error| StoreError::Backend(error.into()))
}
