//! Runs: reads and lists, and what the files of triggers, leases and endings share.

pub(crate) mod cancel;
mod dedupe;
mod finish;
pub(crate) mod insert;
mod lease;
mod permits;
mod promote;
mod recover;
mod request;
mod retry;
mod room;
mod sweep;
pub(crate) mod trigger;

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::ids::{Fence, RunId, TaskId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{Finish, NewRun, OccurrenceRun, Run, RunState};
use switchboard_model::run_rule::Standing;
use switchboard_model::span::Span;
use switchboard_store_api::{
    CancelOutcome, FinishOutcome, LeaseBatch, LeaseRequest, OccurrenceRange, PromoteReport, RecoverReport, Redrive,
    RedriveReport, RenewOutcome, Renewal, RetryOutcome, RunFilter, RunStore, StoreError, StoreResult, TriggerOutcome,
    WorkerKind, WriteContext, Written,
};
use uuid::Uuid;

use crate::connect::{Database, Tx};
use crate::context::twice;
use crate::error::fault;
use crate::rows::{OccurrenceRow, RunRow, after_id, parsed, storable_instant};

pub(crate) struct Runs(pub(crate) Arc<Database>);

#[async_trait]
impl RunStore for Runs {
    #[tracing::instrument(name = "db.runs.trigger", level = "debug", skip_all)]
    async fn trigger(&self, context: &WriteContext, run: &NewRun) -> StoreResult<Written<TriggerOutcome>> {
        twice(|| trigger::trigger(&self.0, context, run)).await
    }

    #[tracing::instrument(name = "db.runs.trigger_many", level = "debug", skip_all)]
    async fn trigger_many(&self, context: &WriteContext, runs: &[NewRun]) -> StoreResult<Written<Vec<TriggerOutcome>>> {
        twice(|| trigger::trigger_many(&self.0, context, runs)).await
    }

    #[tracing::instrument(name = "db.runs.get", level = "debug", skip_all)]
    async fn get(&self, id: RunId) -> StoreResult<Option<Run>> {
        let mut session = self.0.session().await?;
        let row: Option<RunRow> = sqlx::query_as(
            "-- runs.get
             SELECT id, task_id, state, trigger, pool, priority, run_at, scheduled_for, attempt, max_attempts, fence,
                    leased_by, lease_until, deadline_at, cancel_requested_at, key, pace_key, start_by, dedupe_key, created_at,
                    started_at, finished_at, input, result, error
             FROM switchboard.runs LEFT JOIN switchboard.run_details ON run_id = id
             WHERE id = $1",
        )
        .bind(id.as_uuid())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(Run::try_from).transpose()
    }

    #[tracing::instrument(name = "db.runs.list", level = "debug", skip_all)]
    async fn list(&self, filter: &RunFilter, page: &PageRequest) -> StoreResult<Page<Run>> {
        let after = after_id(page)?;
        let mut session = self.0.session().await?;
        // Not persistent, so that it is planned for the filter at hand: each has an index of its own.
        let rows: Vec<RunRow> = sqlx::query_as(
            "-- runs.list
             WITH page AS (
                 (SELECT * FROM switchboard.runs
                  WHERE $1 IS NULL AND ($2 IS NULL OR state = $2) AND ($3 IS NULL OR id < $3)
                  ORDER BY id DESC LIMIT $4)
                 UNION ALL
                 (SELECT * FROM switchboard.runs
                  WHERE task_id = $1 AND state IN ('scheduled', 'queued', 'waiting', 'running')
                    AND ($2 IS NULL OR state = $2) AND ($3 IS NULL OR id < $3)
                  ORDER BY id DESC LIMIT $4)
                 UNION ALL
                 (SELECT * FROM switchboard.runs
                  WHERE task_id = $1 AND state IN ('succeeded', 'failed', 'cancelled', 'dead')
                    AND ($2 IS NULL OR state = $2) AND ($3 IS NULL OR id < $3)
                  ORDER BY id DESC LIMIT $4)
             )
             SELECT id, task_id, state, trigger, pool, priority, run_at, scheduled_for, attempt, max_attempts, fence,
                    leased_by, lease_until, deadline_at, cancel_requested_at, key, pace_key, start_by, dedupe_key, created_at,
                    started_at, finished_at, input, result, error
             FROM page LEFT JOIN switchboard.run_details ON run_id = id
             ORDER BY id DESC LIMIT $4",
        )
        .bind(filter.task_id.map(|id| id.as_uuid()))
        .bind(filter.state.map(RunState::as_str))
        .bind(after)
        .bind(i64::from(page.limit) + 1)
        .persistent(false)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let runs = rows.into_iter().map(Run::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(runs, page.limit, |run| run.id.to_string()))
    }

    #[tracing::instrument(name = "db.runs.of_occurrences", level = "debug", skip_all)]
    async fn of_occurrences(&self, task: TaskId, range: &OccurrenceRange) -> StoreResult<Vec<OccurrenceRun>> {
        let mut session = self.0.session().await?;
        let rows: Vec<OccurrenceRow> = sqlx::query_as(
            "-- runs.of_occurrences
             SELECT id, scheduled_for, state, trigger, started_at, finished_at, error
             FROM switchboard.runs LEFT JOIN switchboard.run_details ON run_id = id
             WHERE task_id = $1 AND scheduled_for BETWEEN $2 AND $3
             ORDER BY scheduled_for DESC LIMIT $4",
        )
        .bind(task.as_uuid())
        .bind(storable_instant(range.from))
        .bind(storable_instant(range.to))
        .bind(i64::from(range.limit))
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        rows.into_iter().map(OccurrenceRun::try_from).collect()
    }

    #[tracing::instrument(name = "db.runs.lease", level = "debug", skip_all)]
    async fn lease(&self, request: &LeaseRequest) -> StoreResult<LeaseBatch> {
        lease::lease(&self.0, request).await
    }

    #[tracing::instrument(name = "db.runs.renew", level = "debug", skip_all)]
    async fn renew(&self, by: WorkerKind, renewals: &[Renewal], lease: Span) -> StoreResult<Vec<RenewOutcome>> {
        lease::renew(&self.0, by, renewals, lease).await
    }

    #[tracing::instrument(name = "db.runs.finish", level = "debug", skip_all)]
    async fn finish(&self, finishes: &[Finish]) -> StoreResult<Vec<FinishOutcome>> {
        finish::finish(&self.0, finishes).await
    }

    #[tracing::instrument(name = "db.runs.recover", level = "debug", skip_all)]
    async fn recover(&self, limit: u32) -> StoreResult<RecoverReport> {
        recover::recover(&self.0, limit).await
    }

    #[tracing::instrument(name = "db.runs.promote", level = "debug", skip_all)]
    async fn promote(&self, limit: u32) -> StoreResult<PromoteReport> {
        promote::promote(&self.0, limit).await
    }

    #[tracing::instrument(name = "db.runs.cancel", level = "debug", skip_all)]
    async fn cancel(&self, context: &WriteContext, id: RunId) -> StoreResult<CancelOutcome> {
        cancel::cancel(&self.0, context, id).await
    }

    #[tracing::instrument(name = "db.runs.retry", level = "debug", skip_all)]
    async fn retry(&self, context: &WriteContext, id: RunId) -> StoreResult<RetryOutcome> {
        twice(|| retry::retry(&self.0, context, id)).await
    }

    #[tracing::instrument(name = "db.runs.redrive", level = "debug", skip_all)]
    async fn redrive(&self, context: &WriteContext, which: &Redrive, limit: u32) -> StoreResult<RedriveReport> {
        twice(|| retry::redrive(&self.0, context, which, limit)).await
    }

    #[tracing::instrument(name = "db.runs.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        sweep::sweep(&self.0, age, limit).await
    }
}

/// A run under its lock, with what decisions about it need.
///
/// A statement that locks returns the row as it is once the lock is held, so its own columns may be
/// decided on at once; every other table needs a statement after it.
struct LockedRun {
    id: Uuid,
    state: RunState,
    fence: Fence,
    standing: Standing,
    key: Option<String>,
}

#[derive(sqlx::FromRow)]
struct LockedRow {
    id: Uuid,
    state: String,
    fence: i64,
    attempt: i32,
    max_attempts: i32,
    key: Option<String>,
    is_to_be_cancelled: bool,
    is_past_deadline: bool,
}

impl TryFrom<LockedRow> for LockedRun {
    type Error = StoreError;

    fn try_from(row: LockedRow) -> StoreResult<Self> {
        Ok(Self {
            id: row.id,
            state: parsed("run", &row.state)?,
            fence: Fence(row.fence),
            standing: Standing {
                attempt: row.attempt.cast_unsigned(),
                max_attempts: row.max_attempts.cast_unsigned(),
                is_to_be_cancelled: row.is_to_be_cancelled,
                is_past_deadline: row.is_past_deadline,
            },
            key: row.key,
        })
    }
}

/// Locks runs in the order of their ids, waiting for each.
async fn lock(tx: &mut Tx, ids: &[Uuid]) -> StoreResult<Vec<LockedRun>> {
    let rows: Vec<LockedRow> = sqlx::query_as(
        "-- runs.lock
         SELECT id, state, fence, attempt, max_attempts, key,
                cancel_requested_at IS NOT NULL AS is_to_be_cancelled,
                coalesce(deadline_at <= clock_timestamp(), false) AS is_past_deadline
         FROM switchboard.runs WHERE id = ANY ($1) ORDER BY id FOR UPDATE",
    )
    .bind(ids)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    rows.into_iter().map(LockedRun::try_from).collect()
}
