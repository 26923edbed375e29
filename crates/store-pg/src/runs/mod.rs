//! Runs: reads, lists and pruning, and what the files of triggers, leases and endings share.

pub(crate) mod cancel;
mod finish;
mod lease;
mod recover;
pub(crate) mod trigger;

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::ids::{Fence, RunId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{Finish, NewRun, Run, RunState};
use switchboard_model::span::Span;
use switchboard_store_api::{
    CancelOutcome, FinishOutcome, LeaseBatch, LeaseRequest, PromoteReport, RecoverReport, RenewOutcome, Renewal,
    RetryOutcome, RunFilter, RunStore, StoreError, StoreResult, TriggerOutcome, WriteContext, Written,
};
use uuid::Uuid;

use crate::connect::{Database, Tx};
use crate::context::twice;
use crate::error::fault;
use crate::rows::{RunRow, after_id, count, parsed};

pub(crate) struct Runs(pub(crate) Arc<Database>);

#[async_trait]
impl RunStore for Runs {
    #[tracing::instrument(name = "db.runs.trigger", level = "debug", skip_all)]
    async fn trigger(&self, context: &WriteContext, run: &NewRun) -> StoreResult<Written<TriggerOutcome>> {
        twice(|| trigger::trigger(&self.0, context, run)).await
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
             SELECT id, task_id, state, trigger, pool, priority, run_at, scheduled_for, attempt, max_attempts, fence,
                    leased_by, lease_until, deadline_at, cancel_requested_at, key, pace_key, start_by, dedupe_key, created_at,
                    started_at, finished_at, input, result, error
             FROM switchboard.runs LEFT JOIN switchboard.run_details ON run_id = id
             WHERE ($1 IS NULL OR task_id = $1) AND ($2 IS NULL OR state = $2) AND ($3 IS NULL OR id < $3)
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

    #[tracing::instrument(name = "db.runs.lease", level = "debug", skip_all)]
    async fn lease(&self, request: &LeaseRequest) -> StoreResult<LeaseBatch> {
        lease::lease(&self.0, request).await
    }

    #[tracing::instrument(name = "db.runs.renew", level = "debug", skip_all)]
    async fn renew(&self, renewals: &[Renewal], lease: Span) -> StoreResult<Vec<RenewOutcome>> {
        lease::renew(&self.0, renewals, lease).await
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
        recover::promote(&self.0, limit).await
    }

    #[tracing::instrument(name = "db.runs.cancel", level = "debug", skip_all)]
    async fn cancel(&self, context: &WriteContext, id: RunId) -> StoreResult<CancelOutcome> {
        cancel::cancel(&self.0, context, id).await
    }

    #[tracing::instrument(name = "db.runs.retry", level = "debug", skip_all)]
    async fn retry(&self, context: &WriteContext, id: RunId) -> StoreResult<RetryOutcome> {
        twice(|| trigger::retry(&self.0, context, id)).await
    }

    #[tracing::instrument(name = "db.runs.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        let mut session = self.0.session().await?;
        let deleted = sqlx::query_scalar(
            "-- runs.sweep
             WITH old AS MATERIALIZED (
                 SELECT id FROM switchboard.runs
                 WHERE finished_at IS NOT NULL
                   AND finished_at < statement_timestamp() - $1 * interval '1 millisecond'
                 ORDER BY finished_at LIMIT $2 FOR UPDATE SKIP LOCKED
             ),
             old_skips AS MATERIALIZED (
                 SELECT task_id, from_at, cause FROM switchboard.task_skips
                 WHERE to_at < statement_timestamp() - $1 * interval '1 millisecond'
                 ORDER BY to_at LIMIT $2 FOR UPDATE SKIP LOCKED
             ),
             runs AS (
                 DELETE FROM switchboard.runs WHERE id = ANY (ARRAY (SELECT id FROM old)) RETURNING id
             ),
             details AS (
                 DELETE FROM switchboard.run_details WHERE run_id = ANY (ARRAY (SELECT id FROM old))
             ),
             skips AS (
                 DELETE FROM switchboard.task_skips AS skip USING old_skips AS old
                 WHERE skip.task_id = old.task_id AND skip.from_at = old.from_at AND skip.cause = old.cause
                 RETURNING skip.task_id
             )
             SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM skips)",
        )
        .bind(age.as_millis_i64())
        .bind(i64::from(limit))
        .fetch_one(&mut *session)
        .await
        .map_err(fault)?;
        session.commit().await?;
        Ok(count(deleted))
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
    attempt: i32,
    max_attempts: i32,
    key: Option<String>,
    is_to_be_cancelled: bool,
    is_past_deadline: bool,
}

impl LockedRun {
    /// Returns the key that a run gives back when it leaves `running` for `next`. A key that keeps
    /// the runs of a task apart is held until the run has ended; any other only while it runs.
    fn key_freed_by(&self, next: RunState) -> Option<&str> {
        self.key.as_deref().filter(|key| next.is_terminal() || !key.starts_with("task:"))
    }
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
            attempt: row.attempt,
            max_attempts: row.max_attempts,
            key: row.key,
            is_to_be_cancelled: row.is_to_be_cancelled,
            is_past_deadline: row.is_past_deadline,
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
