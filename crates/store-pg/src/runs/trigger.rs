//! Triggers and retries: runs that somebody asks for, under the overlap policy of their task.

use std::sync::Arc;

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{NewRun, RunState, Trigger};
use switchboard_model::span::Span;
use switchboard_model::task::{Overlap, TaskSpec};
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{OnceRecord, RetryOutcome, StoreError, StoreResult, TriggerOutcome, WriteContext, Written};
use uuid::Uuid;

use super::cancel::cancel_active;
use super::lock;
use crate::connect::{Database, Tx};
use crate::context::{audit, claim, collided, complete};
use crate::error::fault;
use crate::rows::int;

pub(super) async fn trigger(
    database: &Arc<Database>,
    context: &WriteContext,
    run: &NewRun,
) -> StoreResult<Written<TriggerOutcome>> {
    let mut tx = database.begin().await?;
    if let Some(before) = claim(&mut tx, context, run.id.as_uuid()).await? {
        return tx.undo(before).await;
    }
    let outcome = place_one(&mut tx, run).await?;
    match outcome {
        TriggerOutcome::Created(_) => {}
        TriggerOutcome::Adopted(id) => {
            complete(&mut tx, context, &OnceRecord { result_id: id.as_uuid(), result: None }).await?;
        }
        refused => return tx.undo(Written::Now(refused)).await,
    }
    audit(&mut tx, context).await?;
    fail_point::hit(FailPoint::BeforeTriggerCommit);
    tx.commit().await?;
    fail_point::hit(FailPoint::AfterTriggerCommit);
    Ok(Written::Now(outcome))
}

/// Makes runs in order, each under the overlap policy of its task; returns one outcome for each.
pub(crate) async fn place(tx: &mut Tx, runs: &[NewRun]) -> StoreResult<Vec<TriggerOutcome>> {
    let tasks: Vec<Uuid> = runs.iter().map(|run| run.task_id.as_uuid()).collect();
    lock_in_order(tx, &tasks).await?;
    let mut outcomes = Vec::with_capacity(runs.len());
    for run in runs {
        outcomes.push(place_one(tx, run).await?);
    }
    Ok(outcomes)
}

/// Makes a run under the overlap policy of its task, if that allows it.
async fn place_one(tx: &mut Tx, run: &NewRun) -> StoreResult<TriggerOutcome> {
    let Some(spec) = lock_task(tx, run.task_id).await? else { return Ok(TriggerOutcome::TaskNotFound) };
    if let Some(outcome) = obstacle(tx, run, &spec).await? {
        return Ok(outcome);
    }
    if spec.overlap == Overlap::Replace {
        cancel_active(tx, &[run.task_id.as_uuid()]).await?;
    }
    if !insert(tx, run, &spec).await? {
        return active_with_key(tx, run).await?.map(TriggerOutcome::Duplicate).ok_or_else(collided);
    }
    Ok(TriggerOutcome::Created(run.id))
}

/// Locks those of the tasks whose policy asks for it, in the order of their ids, so that runs of many tasks can be
/// made in any order.
async fn lock_in_order(tx: &mut Tx, tasks: &[Uuid]) -> StoreResult<()> {
    let specs: Vec<(Uuid, String)> = sqlx::query_as(
        "-- tasks.read_policies
         SELECT id, spec FROM switchboard.tasks WHERE id = ANY ($1) AND deleted_at IS NULL",
    )
    .bind(tasks)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let is_exclusive = |spec: String| read(spec).is_ok_and(|spec| spec.overlap != Overlap::Allow);
    let exclusive: Vec<Uuid> = specs.into_iter().filter_map(|(id, spec)| is_exclusive(spec).then_some(id)).collect();
    if exclusive.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "-- tasks.lock_in_order
         SELECT FROM switchboard.tasks WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE",
    )
    .bind(exclusive)
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}

/// Locks a task as strongly as its policy asks for and reads its definition.
async fn lock_task(tx: &mut Tx, id: TaskId) -> StoreResult<Option<TaskSpec>> {
    let shared: Option<String> = sqlx::query_scalar(
        "-- tasks.share
         SELECT spec FROM switchboard.tasks WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE",
    )
    .bind(id.as_uuid())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)?;
    let Some(spec) = shared.map(read).transpose()? else { return Ok(None) };
    if spec.overlap == Overlap::Allow {
        return Ok(Some(spec));
    }
    let locked: Option<String> = sqlx::query_scalar(
        "-- tasks.lock_for_trigger
         SELECT spec FROM switchboard.tasks WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE",
    )
    .bind(id.as_uuid())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)?;
    locked.map(read).transpose()
}

fn read(spec: String) -> StoreResult<TaskSpec> {
    serde_json::from_str(&spec).map_err(|error| StoreError::corrupt("task", error))
}

/// Says what makes a new run impossible or needless, if anything does, under the lock on its task.
async fn obstacle(tx: &mut Tx, run: &NewRun, spec: &TaskSpec) -> StoreResult<Option<TriggerOutcome>> {
    if run.dedupe_key.is_some()
        && let Some(other) = active_with_key(tx, run).await?
    {
        return Ok(Some(TriggerOutcome::Duplicate(other)));
    }
    Ok(match spec.overlap {
        Overlap::Allow | Overlap::Replace => None,
        Overlap::Skip if run.trigger == Trigger::Webhook => adoption(tx, run.task_id).await?,
        Overlap::Skip => active(tx, run.task_id).await?.oldest.map(TriggerOutcome::Active),
        Overlap::Queue => {
            let is_full = active(tx, run.task_id).await?.runs >= u64::from(spec.queue_max);
            is_full.then_some(TriggerOutcome::QueueFull)
        }
    })
}

/// Finds the active run that carries out a webhook too, or else the one that refuses it.
///
/// A run that is being leased, or ends, is waited for; one that stays as it is cannot be leased before this
/// transaction ends.
async fn adoption(tx: &mut Tx, task: TaskId) -> StoreResult<Option<TriggerOutcome>> {
    let active: Vec<(Uuid, bool)> = sqlx::query_as(
        "-- runs.lock_for_adoption
         SELECT id, started_at IS NULL FROM switchboard.runs
         WHERE task_id = $1 AND state IN ('scheduled', 'queued', 'waiting', 'running') ORDER BY id FOR UPDATE",
    )
    .bind(task.as_uuid())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let not_started = active.iter().find(|(_, is_not_started)| *is_not_started);
    let adopted = not_started.map(|(id, _)| TriggerOutcome::Adopted(RunId::from_uuid(*id)));
    Ok(adopted.or_else(|| active.first().map(|(id, _)| TriggerOutcome::Active(RunId::from_uuid(*id)))))
}

/// The active runs of a task.
struct Active {
    runs: u64,
    oldest: Option<RunId>,
}

async fn active(tx: &mut Tx, task: TaskId) -> StoreResult<Active> {
    let ids: Vec<Uuid> = sqlx::query_scalar(
        "-- runs.active_of_task
         SELECT id FROM switchboard.runs
         WHERE task_id = $1 AND state IN ('scheduled', 'queued', 'waiting', 'running') ORDER BY id",
    )
    .bind(task.as_uuid())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(Active { runs: ids.len() as u64, oldest: ids.first().copied().map(RunId::from_uuid) })
}

async fn active_with_key(tx: &mut Tx, run: &NewRun) -> StoreResult<Option<RunId>> {
    let id = sqlx::query_scalar(
        "-- runs.active_with_dedupe_key
         SELECT id FROM switchboard.runs
         WHERE task_id = $1 AND dedupe_key = $2 AND state IN ('scheduled', 'queued', 'waiting', 'running')",
    )
    .bind(run.task_id.as_uuid())
    .bind(run.dedupe_key.as_ref().map(|key| key.as_str()))
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(id.map(RunId::from_uuid))
}

/// Inserts the run; `false` means that an active run has the same deduplication key.
async fn insert(tx: &mut Tx, run: &NewRun, spec: &TaskSpec) -> StoreResult<bool> {
    let terms = spec.terms(run.task_id);
    let (key, key_max) = terms.permit.map(|(key, max)| (key, int(max))).unzip();
    let (pace_key, pace) = terms.pace.map(|(key, rate)| (key, rate.to_string())).unzip();
    let is_ready = run.delay.as_millis() == 0;
    let inserted = sqlx::query(
        "-- runs.insert_triggered
         WITH moment AS MATERIALIZED (
             SELECT clock.now, coalesce($19, clock.now) AS due FROM clock_timestamp() AS clock (now)
         ),
         made AS (
             INSERT INTO switchboard.runs
                 (id, task_id, state, trigger, pool, priority, run_at, max_attempts, timeout_ms, key, key_max,
                  dedupe_key, created_at, is_pull, start_by, pace_key, pace, keep_ms)
             SELECT $1, $2, $3, $4, $5, $6, moment.due + $7 * interval '1 millisecond', $8, $9, $10, $11, $12,
                    moment.now, $14, moment.due + ($7 + $15::bigint) * interval '1 millisecond', $16, $17, $18
             FROM moment
             ON CONFLICT (task_id, dedupe_key)
                 WHERE dedupe_key IS NOT NULL AND state IN ('scheduled', 'queued', 'waiting', 'running')
                 DO NOTHING
             RETURNING id
         ),
         described AS (
             INSERT INTO switchboard.run_details (run_id, input)
             SELECT id, $13 FROM made WHERE $13 IS NOT NULL
         )
         SELECT FROM made",
    )
    .bind(run.id.as_uuid())
    .bind(run.task_id.as_uuid())
    .bind(if is_ready { RunState::Queued } else { RunState::Scheduled }.as_str())
    .bind(run.trigger.as_str())
    .bind(terms.pool.as_str())
    .bind(terms.priority)
    .bind(run.delay.as_millis_i64())
    .bind(int(terms.max_attempts))
    .bind(terms.timeout.map(Span::as_millis_i64))
    .bind(key)
    .bind(key_max)
    .bind(run.dedupe_key.as_ref().map(|key| key.as_str()))
    .bind(run.input.as_ref().map(JsonText::as_str))
    .bind(terms.is_pull)
    .bind(terms.start_deadline.map(Span::as_millis_i64))
    .bind(pace_key)
    .bind(pace)
    .bind(terms.retention.map(Span::as_millis_i64))
    .bind(tx.set_time())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)?;
    if inserted.is_some() && is_ready {
        tx.signal(SignalKind::PoolQueued, &spec.pool);
    }
    Ok(inserted.is_some())
}

pub(super) async fn retry(database: &Arc<Database>, context: &WriteContext, id: RunId) -> StoreResult<RetryOutcome> {
    let mut tx = database.begin().await?;
    let task: Option<Uuid> = sqlx::query_scalar(
        "-- runs.task_of
         SELECT task_id FROM switchboard.runs WHERE id = $1",
    )
    .bind(id.as_uuid())
    .fetch_optional(&mut *tx)
    .await
    .map_err(fault)?;
    let Some(task) = task.map(TaskId::from_uuid) else { return tx.undo(RetryOutcome::NotFound).await };
    // A deleted task has no policy any more; its runs may still be retried.
    let spec = lock_task(&mut tx, task).await?;
    match lock(&mut tx, &[id.as_uuid()]).await?.first().map(|run| run.state) {
        None => return tx.undo(RetryOutcome::NotFound).await,
        Some(state) if !state.is_terminal() => return tx.undo(RetryOutcome::NotEnded(state)).await,
        Some(_) => {}
    }
    let forbids = spec.is_some_and(|spec| matches!(spec.overlap, Overlap::Skip | Overlap::Replace));
    if let Some(other) = rival(&mut tx, id, forbids.then_some(task)).await? {
        return tx.undo(RetryOutcome::Active(other)).await;
    }
    let pool: String = sqlx::query_scalar(
        "-- runs.retry
         WITH forgotten AS (
             UPDATE switchboard.run_details SET result = NULL, error = NULL WHERE run_id = $1
         )
         UPDATE switchboard.runs
         SET state = 'queued', trigger = 'retry', attempt = 0, run_at = coalesce($2, clock_timestamp()), is_reclaimed = false,
             cancel_requested_at = NULL, started_at = NULL, finished_at = NULL
         WHERE id = $1 RETURNING pool",
    )
    .bind(id.as_uuid())
    .bind(tx.set_time())
    .fetch_one(&mut *tx)
    .await
    .map_err(fault)?;
    tx.signal(SignalKind::PoolQueued, &pool);
    audit(&mut tx, context).await?;
    tx.commit().await?;
    Ok(RetryOutcome::Queued)
}

/// Finds an active run beside which a retried one may not be: one with the same deduplication key, or
/// any run of `exclusive`.
async fn rival(tx: &mut Tx, id: RunId, exclusive: Option<TaskId>) -> StoreResult<Option<RunId>> {
    let other = sqlx::query_scalar(
        "-- runs.rival
         SELECT other.id FROM switchboard.runs AS run
         JOIN switchboard.runs AS other ON other.task_id = run.task_id
         WHERE run.id = $1 AND other.state IN ('scheduled', 'queued', 'waiting', 'running')
           AND (other.task_id = $2 OR other.dedupe_key = run.dedupe_key)
         ORDER BY other.id LIMIT 1",
    )
    .bind(id.as_uuid())
    .bind(exclusive.map(|task| task.as_uuid()))
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(other.map(RunId::from_uuid))
}
