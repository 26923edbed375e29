//! Task definitions: reads, and the way of each write to its transaction.

mod create;
mod edit;
mod fire;
mod repair;
mod skips;

use async_trait::async_trait;
use sqlx::SqliteExecutor;
use switchboard_model::fire::{FirePlan, arm};
use switchboard_model::identity::TaskName;
use switchboard_model::ids::TaskId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{SkipRange, StoredSkip};
use switchboard_model::span::Span;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_store_api::{
    DueTasks, FireReport, OccurrenceRange, StoreError, StoreResult, TaskCreateOutcome, TaskStore, TaskUpdateOutcome,
    UnarmedReport, WriteContext, Written, arm_all,
};
use uuid::Uuid;

use crate::Database;
use crate::error::DbResult;
use crate::rows::{TaskRow, cursor};
use crate::writer::Lane;

/// Reads the row of a task that is not deleted.
pub(crate) async fn row(executor: impl SqliteExecutor<'_>, id: TaskId) -> DbResult<Option<TaskRow>> {
    let row = sqlx::query_as(
        "-- tasks.get
        SELECT * FROM tasks WHERE id = ? AND deleted_at IS NULL",
    )
    .bind(id.as_uuid())
    .fetch_optional(executor)
    .await?;
    Ok(row)
}

async fn find(executor: impl SqliteExecutor<'_>, name: &TaskName) -> DbResult<Option<TaskRow>> {
    let row = sqlx::query_as(
        "-- tasks.find
        SELECT * FROM tasks WHERE name = ? AND deleted_at IS NULL",
    )
    .bind(name.as_str())
    .fetch_optional(executor)
    .await?;
    Ok(row)
}

async fn list(database: &Database, page: &PageRequest) -> DbResult<Page<Task>> {
    let rows: Vec<TaskRow> = sqlx::query_as(
        "-- tasks.list
        SELECT * FROM tasks WHERE id > ? AND deleted_at IS NULL ORDER BY id LIMIT ?",
    )
    .bind(cursor(page, Uuid::nil())?)
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    let Page { items, next_cursor } = Page::from_rows(rows, page.limit, |row| row.id.to_string());
    Ok(Page { items: items.into_iter().filter_map(readable).collect(), next_cursor })
}

/// Leaves out a row that this binary cannot read, so that it does not hide the others.
fn readable(row: TaskRow) -> Option<Task> {
    let id = row.id;
    Task::try_from(row)
        .map_err(StoreError::from)
        .inspect_err(
            |error| tracing::warn!(task = %id, error = error as &dyn std::error::Error, "task left out of a list"),
        )
        .ok()
}

#[async_trait]
impl TaskStore for Database {
    #[tracing::instrument(name = "db.tasks.create", level = "debug", skip_all)]
    async fn create(
        &self,
        context: &WriteContext,
        id: TaskId,
        spec: &TaskSpec,
    ) -> StoreResult<Written<TaskCreateOutcome>> {
        let context = context.clone();
        let (now, due_by) = self.times()?;
        let task = (id, arm(spec.clone(), due_by));
        self.writer.write(Lane::Normal, move |change| Box::pin(create::create(change, context, task, now))).await
    }

    #[tracing::instrument(name = "db.tasks.create_many", level = "debug", skip_all)]
    async fn create_many(
        &self,
        context: &WriteContext,
        tasks: &[(TaskId, TaskSpec)],
    ) -> StoreResult<Written<Vec<TaskCreateOutcome>>> {
        let (now, due_by) = self.times()?;
        let armed = arm_all(tasks, due_by).await;
        let context = context.clone();
        let tasks = tasks.iter().map(|(id, _)| *id).zip(armed).collect();
        self.writer.write(Lane::Normal, move |change| Box::pin(create::create_many(change, context, tasks, now))).await
    }

    #[tracing::instrument(name = "db.tasks.get", level = "debug", skip_all)]
    async fn get(&self, id: TaskId) -> StoreResult<Option<Task>> {
        Ok(row(&self.readers, id).await?.map(Task::try_from).transpose()?)
    }

    #[tracing::instrument(name = "db.tasks.find", level = "debug", skip_all)]
    async fn find(&self, name: &TaskName) -> StoreResult<Option<Task>> {
        Ok(find(&self.readers, name).await?.map(Task::try_from).transpose()?)
    }

    #[tracing::instrument(name = "db.tasks.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Task>> {
        Ok(list(self, page).await?)
    }

    #[tracing::instrument(name = "db.tasks.update", level = "debug", skip_all)]
    async fn update(
        &self,
        context: &WriteContext,
        id: TaskId,
        expected: i64,
        spec: &TaskSpec,
    ) -> StoreResult<TaskUpdateOutcome> {
        let (context, edit) = (context.clone(), edit::Edit { id, expected, spec: spec.clone() });
        self.writer.write(Lane::Normal, |change| Box::pin(edit::update(change, context, edit))).await
    }

    #[tracing::instrument(name = "db.tasks.set_active", level = "debug", skip_all)]
    async fn set_active(&self, context: &WriteContext, id: TaskId, active: bool) -> StoreResult<Option<Task>> {
        let context = context.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(edit::set_active(change, context, id, active))).await
    }

    #[tracing::instrument(name = "db.tasks.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, id: TaskId) -> StoreResult<bool> {
        let context = context.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(edit::delete(change, context, id))).await
    }

    #[tracing::instrument(name = "db.tasks.due", level = "debug", skip_all)]
    async fn due(&self, limit: u32) -> StoreResult<DueTasks> {
        let (due, unreadable) = fire::due(&self.readers, self.schedule_now(), limit).await?;
        if !unreadable.is_empty() {
            self.writer.write(Lane::Normal, |change| Box::pin(repair::park(change, unreadable))).await?;
        }
        Ok(due)
    }

    #[tracing::instrument(name = "db.tasks.fire", level = "debug", skip_all)]
    async fn fire(&self, plans: &[FirePlan]) -> StoreResult<FireReport> {
        let plans = plans.to_vec();
        self.writer.write(Lane::Normal, |change| Box::pin(fire::fire(change, plans))).await
    }

    #[tracing::instrument(name = "db.tasks.skips", level = "debug", skip_all)]
    async fn skips(&self, id: TaskId, page: &PageRequest) -> StoreResult<Page<SkipRange>> {
        Ok(skips::list(self, id, page).await?)
    }

    #[tracing::instrument(name = "db.tasks.skips_between", level = "debug", skip_all)]
    async fn skips_between(&self, id: TaskId, range: &OccurrenceRange) -> StoreResult<Vec<StoredSkip>> {
        Ok(skips::between(self, id, *range).await?)
    }

    #[tracing::instrument(name = "db.tasks.count_unarmed", level = "debug", skip_all)]
    async fn count_unarmed(&self) -> StoreResult<u64> {
        Ok(repair::count_unarmed(self).await?)
    }

    #[tracing::instrument(name = "db.tasks.repair_unarmed", level = "debug", skip_all)]
    async fn repair_unarmed(&self, limit: u32) -> StoreResult<UnarmedReport> {
        self.writer.write(Lane::Normal, move |change| Box::pin(repair::repair_unarmed(change, limit))).await
    }

    #[tracing::instrument(name = "db.tasks.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(repair::sweep(change, age, limit))).await
    }
}
