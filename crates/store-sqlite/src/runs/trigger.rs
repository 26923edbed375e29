//! Triggers: runs that somebody asks for, one or many, under the overlap policies of their tasks.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{NewRun, Trigger};
use switchboard_model::task::{Overlap, TaskSpec};
use switchboard_store_api::fail_point::FailPoint;
use switchboard_store_api::{OnceRecord, StoreError, TriggerOutcome, WriteContext, Written};
use uuid::Uuid;

use super::insert::{Draft, insert};
use super::{cancel_all, dedupe};
use crate::error::DbResult;
use crate::rows::later;
use crate::writer::Change;
use crate::{context, tasks};

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

pub(super) async fn trigger(
    change: &mut Change,
    context: WriteContext,
    run: NewRun,
) -> DbResult<Written<TriggerOutcome>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    change.pass_at_commit([FailPoint::BeforeTriggerCommit, FailPoint::AfterTriggerCommit]);
    let mut placing = Placing::default();
    let outcome = placing.place(change, &run).await?;
    placing.signal(change);
    if let TriggerOutcome::Created(id) | TriggerOutcome::Adopted(id) = &outcome {
        context::complete(change, &context, id.as_uuid()).await?;
    }
    Ok(Written::Now(outcome))
}

pub(super) async fn trigger_many(
    change: &mut Change,
    context: WriteContext,
    runs: Vec<NewRun>,
) -> DbResult<Written<Vec<TriggerOutcome>>> {
    let Some(first) = runs.first() else { return Ok(Written::Now(vec![])) };
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    change.pass_at_commit([FailPoint::BeforeTriggerCommit, FailPoint::AfterTriggerCommit]);
    let mut placing = Placing::default();
    let mut outcomes = Vec::with_capacity(runs.len());
    for run in &runs {
        outcomes.push(placing.place(change, run).await?);
    }
    placing.signal(change);
    if outcomes.iter().any(|outcome| matches!(outcome, TriggerOutcome::Created(_) | TriggerOutcome::Adopted(_))) {
        let result = context.once.is_some().then(|| JsonText::encode(&outcomes)).transpose()?;
        context::complete_with(change, &context, OnceRecord { result_id: first.id.as_uuid(), result }).await?;
    }
    Ok(Written::Now(outcomes))
}

/// Makes runs one after the other within one command.
#[derive(Default)]
pub(crate) struct Placing {
    /// The definitions of the tasks that were read.
    specs: HashMap<TaskId, Option<TaskSpec>>,
    /// The pools of the runs that are ready.
    pools: BTreeSet<String>,
}

impl Placing {
    /// Makes a run, or says what is in its way.
    pub(crate) async fn place(&mut self, change: &mut Change, run: &NewRun) -> DbResult<TriggerOutcome> {
        if let Some(holder) = dedupe::holder(change, run).await? {
            return Ok(TriggerOutcome::Duplicate(holder));
        }
        let spec = match self.specs.entry(run.task_id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let row = tasks::row(&mut change.connection, run.task_id).await?;
                let spec = row.map(|row| row.spec()).transpose();
                unknown.insert(spec.map_err(|error| StoreError::corrupt("task", error))?)
            }
        };
        let Some(spec) = spec else { return Ok(TriggerOutcome::TaskNotFound) };
        if let Some(outcome) = obstacle(change, run, spec).await? {
            if let TriggerOutcome::Adopted(id) = outcome {
                dedupe::keep(change, run, id).await?;
            }
            return Ok(outcome);
        }
        let draft = Draft {
            id: run.id,
            task_id: run.task_id,
            spec,
            trigger: run.trigger,
            run_at: later(change.schedule_now, run.delay),
            scheduled_for: None,
            dedupe_key: run.dedupe_key.as_ref(),
            input: run.input.as_ref(),
        };
        insert(change, &draft).await?;
        if draft.run_at <= change.schedule_now && !self.pools.contains(spec.pool.as_str()) {
            self.pools.insert(spec.pool.to_string());
        }
        dedupe::keep(change, run, run.id).await?;
        Ok(TriggerOutcome::Created(run.id))
    }

    /// Tells the pools that have runs that are ready.
    pub(crate) fn signal(self, change: &mut Change) {
        for pool in self.pools {
            change.signal(SignalKind::PoolQueued, pool, 0);
        }
    }
}

/// Finds what makes a new run impossible or needless; under `replace` the active runs give way instead.
async fn obstacle(change: &mut Change, run: &NewRun, spec: &TaskSpec) -> DbResult<Option<TriggerOutcome>> {
    if let Some(key) = &run.dedupe_key
        && let Some(id) = dedupe::active_with_key(change, run.task_id, key.as_str()).await?
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
    if spec.overlap == Overlap::Replace {
        let active = active_of_task(change, run.task_id).await?;
        cancel_all(change, active).await?;
        return Ok(None);
    }
    let (active, oldest) = count_active(change, run.task_id).await?;
    Ok(match oldest {
        _ if spec.room(active) > 0 => None,
        Some(oldest) if spec.overlap == Overlap::Skip => Some(TriggerOutcome::Active(oldest)),
        _ => Some(TriggerOutcome::QueueFull),
    })
}

/// Counts the active runs of a task, and names the oldest one.
async fn count_active(change: &mut Change, task: TaskId) -> DbResult<(u64, Option<RunId>)> {
    let (active, oldest): (u64, Option<Uuid>) = sqlx::query_as(
        "-- runs.count_active
        SELECT COUNT(*), MIN(id) FROM runs INDEXED BY runs_active_by_task
        WHERE task_id = ? AND state IN ('scheduled', 'queued', 'waiting', 'running')",
    )
    .bind(task.as_uuid())
    .fetch_one(&mut change.connection)
    .await?;
    Ok((active, oldest.map(RunId::from_uuid)))
}
