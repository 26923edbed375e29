//! How runs come into being: triggers, retries of ended runs, and the row that firing uses too.

use switchboard_model::feed::SignalKind;
use switchboard_model::identity::ClientKey;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{NewRun, RunState, Trigger};
use switchboard_model::span::Span;
use switchboard_model::task::{Overlap, TaskSpec};
use switchboard_store_api::fail_point::FailPoint;
use switchboard_store_api::{RetryOutcome, StoreError, TriggerOutcome, WriteContext, Written};
use uuid::Uuid;

use super::cancel_all;
use super::finish::{Current, record};
use crate::error::DbResult;
use crate::rows::later;
use crate::writer::Change;
use crate::{context, tasks};

/// A run about to be inserted.
pub(crate) struct Draft<'a> {
    pub(crate) id: RunId,
    pub(crate) task_id: TaskId,
    pub(crate) spec: &'a TaskSpec,
    pub(crate) trigger: Trigger,
    /// When it is ready, in microseconds.
    pub(crate) run_at: i64,
    /// The occurrence, in microseconds.
    pub(crate) scheduled_for: Option<i64>,
    pub(crate) dedupe_key: Option<&'a ClientKey>,
    pub(crate) input: Option<&'a JsonText>,
}

/// Inserts a run, ready or scheduled; `false` means that its occurrence has a run already.
pub(crate) async fn insert(change: &mut Change, draft: &Draft<'_>) -> DbResult<bool> {
    let state = if draft.run_at > change.schedule_now { RunState::Scheduled } else { RunState::Queued };
    let terms = draft.spec.terms(draft.task_id);
    let (key, key_max) = terms.permit.unzip();
    let (pace_key, pace) = terms.pace.map(|(key, rate)| (key, rate.to_string())).unzip();
    let inserted = sqlx::query(
        "-- runs.insert
        INSERT INTO runs (id, task_id, state, trigger, pool, priority, run_at, scheduled_for, max_attempts, timeout_ms,
            key, key_max, dedupe_key, created_at, is_pull, start_by, pace_key, pace, keep_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (task_id, scheduled_for) WHERE scheduled_for IS NOT NULL DO NOTHING",
    )
    .bind(draft.id.as_uuid())
    .bind(draft.task_id.as_uuid())
    .bind(state.as_str())
    .bind(draft.trigger.as_str())
    .bind(terms.pool.as_str())
    .bind(terms.priority)
    .bind(draft.run_at)
    .bind(draft.scheduled_for)
    .bind(terms.max_attempts)
    .bind(terms.timeout.map(Span::as_millis_i64))
    .bind(key)
    .bind(key_max)
    .bind(draft.dedupe_key.map(ClientKey::as_str))
    .bind(change.now)
    .bind(terms.is_pull)
    .bind(terms.start_deadline.map(|deadline| later(draft.run_at, deadline)))
    .bind(pace_key)
    .bind(pace)
    .bind(terms.retention.map(Span::as_millis_i64))
    .execute(&mut change.connection)
    .await?;
    if let Some(input) = draft.input {
        sqlx::query(
            "-- runs.insert_input
            INSERT INTO run_details (run_id, input) VALUES (?, ?)",
        )
        .bind(draft.id.as_uuid())
        .bind(input.as_str())
        .execute(&mut change.connection)
        .await?;
    }
    Ok(inserted.rows_affected() > 0)
}

/// Reads the runs of a task that have not ended, oldest first.
pub(crate) async fn active_of_task(change: &mut Change, id: TaskId) -> DbResult<Vec<RunId>> {
    // Left alone, the planner takes the order from the index of all runs and reads the whole history.
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "-- runs.active_of_task
        SELECT id FROM runs INDEXED BY runs_active_by_task
        WHERE task_id = ? AND state IN ('scheduled', 'queued', 'waiting', 'running') ORDER BY id",
    )
    .bind(id.as_uuid())
    .fetch_all(&mut change.connection)
    .await?;
    Ok(ids.into_iter().map(RunId::from_uuid).collect())
}

/// Finds the oldest active run of a task that was never leased, or not since it was retried.
async fn not_started_of_task(change: &mut Change, id: TaskId) -> DbResult<Option<RunId>> {
    let found: Option<Uuid> = sqlx::query_scalar(
        "-- runs.not_started_of_task
        SELECT id FROM runs INDEXED BY runs_active_by_task
        WHERE task_id = ? AND state IN ('scheduled', 'queued', 'waiting', 'running') AND started_at IS NULL
        ORDER BY id LIMIT 1",
    )
    .bind(id.as_uuid())
    .fetch_optional(&mut change.connection)
    .await?;
    Ok(found.map(RunId::from_uuid))
}

async fn active_with_dedupe_key(change: &mut Change, id: TaskId, key: &str) -> DbResult<Option<RunId>> {
    let found: Option<Uuid> = sqlx::query_scalar(
        "-- runs.active_with_dedupe_key
        SELECT id FROM runs
        WHERE task_id = ? AND dedupe_key = ? AND state IN ('scheduled', 'queued', 'waiting', 'running')",
    )
    .bind(id.as_uuid())
    .bind(key)
    .fetch_optional(&mut change.connection)
    .await?;
    Ok(found.map(RunId::from_uuid))
}

pub(super) async fn trigger(
    change: &mut Change,
    context: WriteContext,
    run: NewRun,
) -> DbResult<Written<TriggerOutcome>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    change.pass_at_commit([FailPoint::BeforeTriggerCommit, FailPoint::AfterTriggerCommit]);
    let Some(task) = tasks::row(&mut change.connection, run.task_id).await? else {
        return Ok(Written::Now(TriggerOutcome::TaskNotFound));
    };
    let spec = task.spec().map_err(|error| StoreError::corrupt("task", error))?;
    if let Some(outcome) = obstacle(change, &run, &spec).await? {
        if let TriggerOutcome::Adopted(id) = &outcome {
            context::complete(change, &context, id.as_uuid()).await?;
        }
        return Ok(Written::Now(outcome));
    }
    let draft = Draft {
        id: run.id,
        task_id: run.task_id,
        spec: &spec,
        trigger: run.trigger,
        run_at: later(change.schedule_now, run.delay),
        scheduled_for: None,
        dedupe_key: run.dedupe_key.as_ref(),
        input: run.input.as_ref(),
    };
    insert(change, &draft).await?;
    if draft.run_at <= change.schedule_now {
        change.signal(SignalKind::PoolQueued, spec.pool.as_str(), 0);
    }
    context::complete(change, &context, run.id.as_uuid()).await?;
    Ok(Written::Now(TriggerOutcome::Created(run.id)))
}

/// Finds what makes a new run impossible or needless; under `replace` the active runs give way instead.
async fn obstacle(change: &mut Change, run: &NewRun, spec: &TaskSpec) -> DbResult<Option<TriggerOutcome>> {
    if let Some(key) = &run.dedupe_key
        && let Some(id) = active_with_dedupe_key(change, run.task_id, key.as_str()).await?
    {
        return Ok(Some(TriggerOutcome::Duplicate(id)));
    }
    if spec.overlap == Overlap::Allow {
        return Ok(None);
    }
    if spec.overlap == Overlap::Skip
        && run.trigger == Trigger::Webhook
        && let Some(id) = not_started_of_task(change, run.task_id).await?
    {
        return Ok(Some(TriggerOutcome::Adopted(id)));
    }
    let active = active_of_task(change, run.task_id).await?;
    Ok(match spec.overlap {
        Overlap::Skip => active.first().copied().map(TriggerOutcome::Active),
        Overlap::Queue if active.len() >= spec.queue_max as usize => Some(TriggerOutcome::QueueFull),
        Overlap::Replace => {
            cancel_all(change, active).await?;
            None
        }
        Overlap::Allow | Overlap::Queue => None,
    })
}

pub(super) async fn retry(change: &mut Change, context: WriteContext, id: RunId) -> DbResult<RetryOutcome> {
    let Some(run) = Current::read(change, id).await? else { return Ok(RetryOutcome::NotFound) };
    if !run.state.is_terminal() {
        return Ok(RetryOutcome::NotEnded(run.state));
    }
    if let Some(active) = rival(change, &run).await? {
        return Ok(RetryOutcome::Active(active));
    }
    sqlx::query(
        "-- runs.retry
        UPDATE runs SET state = 'queued', trigger = 'retry', run_at = ?1, attempt = 0, is_reclaimed = 0,
            cancel_requested_at = NULL, started_at = NULL, finished_at = NULL
        WHERE id = ?2",
    )
    .bind(change.schedule_now)
    .bind(id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    record(change, id, None, None).await?;
    change.signal(SignalKind::PoolQueued, run.pool, 0);
    context::audit(change, &context).await?;
    Ok(RetryOutcome::Queued)
}

/// Finds the active run beside which an ended one cannot be active again.
async fn rival(change: &mut Change, run: &Current) -> DbResult<Option<RunId>> {
    if let Some(key) = &run.dedupe_key
        && let Some(id) = active_with_dedupe_key(change, run.task_id, key).await?
    {
        return Ok(Some(id));
    }
    // A deleted task has no policy any more.
    let Some(task) = tasks::row(&mut change.connection, run.task_id).await? else { return Ok(None) };
    let spec = task.spec().map_err(|error| StoreError::corrupt("task", error))?;
    match spec.overlap {
        Overlap::Skip | Overlap::Replace => Ok(active_of_task(change, run.task_id).await?.first().copied()),
        Overlap::Allow | Overlap::Queue => Ok(None),
    }
}
