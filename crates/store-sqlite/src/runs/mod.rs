//! Runs: reads, and the way of each write to its transaction.

mod cancel;
mod dedupe;
mod finish;
mod insert;
pub(crate) mod lease;
mod permits;
mod promote;
mod recover;
mod request;
mod retry;
mod room;
mod sweep;
mod trigger;

use async_trait::async_trait;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{Finish, NewRun, OccurrenceRun, Run, RunState};
use switchboard_model::span::Span;
use switchboard_store_api::{
    CancelOutcome, FinishOutcome, LeaseBatch, LeaseRequest, OccurrenceRange, PromoteReport, RecoverReport, Redrive,
    RedriveReport, RenewOutcome, Renewal, RetryOutcome, RunFilter, RunStore, StoreResult, TriggerOutcome, WorkerKind,
    WriteContext, Written,
};
use uuid::Uuid;

use crate::Database;
use crate::error::DbResult;
use crate::rows::{Stored, cursor, micros};
use crate::writer::Lane;

pub(crate) use cancel::cancel_all;
pub(crate) use insert::{Draft, insert};
pub(crate) use trigger::active_of_task;

async fn get(database: &Database, id: RunId) -> DbResult<Option<Run>> {
    let run: Option<Stored<Run>> = sqlx::query_as(
        "-- runs.get
        SELECT runs.*, input, result, error FROM runs LEFT JOIN run_details ON run_id = id WHERE id = ?",
    )
    .bind(id.as_uuid())
    .fetch_optional(&database.readers)
    .await?;
    Ok(run.map(Stored::into_inner))
}

async fn list(database: &Database, filter: &RunFilter, page: &PageRequest) -> DbResult<Page<Run>> {
    // Two statements, so that each has its own index to follow.
    let list = match filter.task_id {
        None => {
            "-- runs.list
            SELECT runs.*, input, result, error FROM runs LEFT JOIN run_details ON run_id = id
            WHERE ?1 IS NULL AND id < ?2 AND (?3 IS NULL OR state = ?3) ORDER BY id DESC LIMIT ?4"
        }
        Some(_) => {
            "-- runs.list_of_task
            SELECT runs.*, input, result, error FROM runs LEFT JOIN run_details ON run_id = id
            WHERE task_id = ?1 AND id < ?2 AND (?3 IS NULL OR state = ?3) ORDER BY id DESC LIMIT ?4"
        }
    };
    let rows: Vec<Stored<Run>> = sqlx::query_as(list)
        .bind(filter.task_id.map(|id| id.as_uuid()))
        .bind(cursor(page, Uuid::max())?)
        .bind(filter.state.map(RunState::as_str))
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&database.readers)
        .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(run)| run.id.to_string()).map(Stored::into_inner))
}

async fn of_occurrences(database: &Database, task: TaskId, range: OccurrenceRange) -> DbResult<Vec<OccurrenceRun>> {
    let runs: Vec<Stored<OccurrenceRun>> = sqlx::query_as(
        "-- runs.of_occurrences
        SELECT runs.*, error FROM runs LEFT JOIN run_details ON run_id = id
        WHERE task_id = ? AND scheduled_for IS NOT NULL AND scheduled_for BETWEEN ? AND ?
        ORDER BY scheduled_for DESC LIMIT ?",
    )
    .bind(task.as_uuid())
    .bind(micros(range.from))
    .bind(micros(range.to))
    .bind(range.limit)
    .fetch_all(&database.readers)
    .await?;
    Ok(runs.into_iter().map(Stored::into_inner).collect())
}

#[async_trait]
impl RunStore for Database {
    #[tracing::instrument(name = "db.runs.trigger", level = "debug", skip_all)]
    async fn trigger(&self, context: &WriteContext, run: &NewRun) -> StoreResult<Written<TriggerOutcome>> {
        let (context, run) = (context.clone(), run.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(trigger::trigger(change, context, run))).await
    }

    #[tracing::instrument(name = "db.runs.trigger_many", level = "debug", skip_all)]
    async fn trigger_many(&self, context: &WriteContext, runs: &[NewRun]) -> StoreResult<Written<Vec<TriggerOutcome>>> {
        let (context, runs) = (context.clone(), runs.to_vec());
        self.writer.write(Lane::Normal, |change| Box::pin(trigger::trigger_many(change, context, runs))).await
    }

    #[tracing::instrument(name = "db.runs.get", level = "debug", skip_all)]
    async fn get(&self, id: RunId) -> StoreResult<Option<Run>> {
        Ok(get(self, id).await?)
    }

    #[tracing::instrument(name = "db.runs.list", level = "debug", skip_all)]
    async fn list(&self, filter: &RunFilter, page: &PageRequest) -> StoreResult<Page<Run>> {
        Ok(list(self, filter, page).await?)
    }

    #[tracing::instrument(name = "db.runs.of_occurrences", level = "debug", skip_all)]
    async fn of_occurrences(&self, task: TaskId, range: &OccurrenceRange) -> StoreResult<Vec<OccurrenceRun>> {
        Ok(of_occurrences(self, task, *range).await?)
    }

    #[tracing::instrument(name = "db.runs.lease", level = "debug", skip_all)]
    async fn lease(&self, request: &LeaseRequest) -> StoreResult<LeaseBatch> {
        let request = request.clone();
        self.writer.write(Lane::Urgent, |change| Box::pin(lease::lease(change, request))).await
    }

    #[tracing::instrument(name = "db.runs.renew", level = "debug", skip_all)]
    async fn renew(&self, by: WorkerKind, renewals: &[Renewal], lease: Span) -> StoreResult<Vec<RenewOutcome>> {
        let renewals = renewals.to_vec();
        let lane = match by {
            WorkerKind::Replica => Lane::Urgent,
            WorkerKind::External => Lane::Normal,
        };
        self.writer.write(lane, move |change| Box::pin(lease::renew(change, renewals, lease))).await
    }

    #[tracing::instrument(name = "db.runs.finish", level = "debug", skip_all)]
    async fn finish(&self, finishes: &[Finish]) -> StoreResult<Vec<FinishOutcome>> {
        let finishes = finishes.to_vec();
        self.writer.write(Lane::Urgent, |change| Box::pin(finish::finish(change, finishes))).await
    }

    #[tracing::instrument(name = "db.runs.recover", level = "debug", skip_all)]
    async fn recover(&self, limit: u32) -> StoreResult<RecoverReport> {
        self.writer.write(Lane::Normal, move |change| Box::pin(recover::recover(change, limit))).await
    }

    #[tracing::instrument(name = "db.runs.promote", level = "debug", skip_all)]
    async fn promote(&self, limit: u32) -> StoreResult<PromoteReport> {
        self.writer.write(Lane::Normal, move |change| Box::pin(promote::promote(change, limit))).await
    }

    #[tracing::instrument(name = "db.runs.cancel", level = "debug", skip_all)]
    async fn cancel(&self, context: &WriteContext, id: RunId) -> StoreResult<CancelOutcome> {
        let context = context.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(cancel::cancel(change, context, id))).await
    }

    #[tracing::instrument(name = "db.runs.retry", level = "debug", skip_all)]
    async fn retry(&self, context: &WriteContext, id: RunId) -> StoreResult<RetryOutcome> {
        let context = context.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(retry::retry(change, context, id))).await
    }

    #[tracing::instrument(name = "db.runs.redrive", level = "debug", skip_all)]
    async fn redrive(&self, context: &WriteContext, which: &Redrive, limit: u32) -> StoreResult<RedriveReport> {
        let (context, which) = (context.clone(), *which);
        self.writer.write(Lane::Normal, move |change| Box::pin(retry::redrive(change, context, which, limit))).await
    }

    #[tracing::instrument(name = "db.runs.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep::sweep(change, age, limit))).await
    }
}
