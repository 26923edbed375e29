//! Triggers: runs that somebody asks for, one or many, under the overlap policies of their tasks.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{NewRun, Trigger};
use switchboard_model::task::{Overlap, TaskSpec};
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{OnceRecord, StoreError, StoreResult, TriggerOutcome, WriteContext, Written};
use uuid::Uuid;

use super::cancel::cancel_active;
use super::dedupe::{Forever, active_with_keys};
use super::insert::{Draft, insert};
use crate::connect::{Database, Tx};
use crate::context::{audit, claim, collided, complete};
use crate::error::fault;
use crate::rows::count;

pub(super) async fn trigger(
    database: &Arc<Database>,
    context: &WriteContext,
    run: &NewRun,
) -> StoreResult<Written<TriggerOutcome>> {
    let mut tx = database.begin_planned().await?;
    if let Some(before) = claim(&mut tx, context, run.id.as_uuid()).await? {
        return tx.undo(before).await;
    }
    let outcome = place(&mut tx, std::slice::from_ref(run)).await?.pop().ok_or_else(collided)?;
    match outcome {
        TriggerOutcome::Created(_) => {}
        TriggerOutcome::Adopted(id) => {
            complete(&mut tx, context, &OnceRecord { result_id: id.as_uuid(), result: None }).await?;
        }
        refused => return tx.undo(Written::Now(refused)).await,
    }
    commit(tx, context).await?;
    Ok(Written::Now(outcome))
}

pub(super) async fn trigger_many(
    database: &Arc<Database>,
    context: &WriteContext,
    runs: &[NewRun],
) -> StoreResult<Written<Vec<TriggerOutcome>>> {
    let Some(first) = runs.first() else { return Ok(Written::Now(vec![])) };
    let mut tx = database.begin().await?;
    if let Some(before) = claim(&mut tx, context, first.id.as_uuid()).await? {
        return tx.undo(before).await;
    }
    let outcomes = place(&mut tx, runs).await?;
    if !outcomes.iter().any(has_effect) {
        return tx.undo(Written::Now(outcomes)).await;
    }
    if context.once.is_some() {
        let result = JsonText::encode(&outcomes).map_err(|error| StoreError::Backend(error.into()))?;
        complete(&mut tx, context, &OnceRecord { result_id: first.id.as_uuid(), result: Some(result) }).await?;
    }
    commit(tx, context).await?;
    Ok(Written::Now(outcomes))
}

const fn has_effect(outcome: &TriggerOutcome) -> bool {
    matches!(outcome, TriggerOutcome::Created(_) | TriggerOutcome::Adopted(_))
}

async fn commit(mut tx: Tx, context: &WriteContext) -> StoreResult<()> {
    audit(&mut tx, context).await?;
    fail_point::hit(FailPoint::BeforeTriggerCommit);
    tx.commit().await?;
    fail_point::hit(FailPoint::AfterTriggerCommit);
    Ok(())
}

/// Makes runs in order, or says of each what is in its way. When none has an effect, the caller rolls back.
///
/// Runs of tasks that let them go side by side are inserted by one statement.
pub(crate) async fn place(tx: &mut Tx, runs: &[NewRun]) -> StoreResult<Vec<TriggerOutcome>> {
    let mut forever = Forever::claim(tx, runs).await?;
    let mut specs = BTreeMap::new();
    for (id, spec) in lock_tasks(tx, runs.iter().map(|run| run.task_id)).await? {
        specs.insert(id, spec?);
    }
    let mut outcomes = vec![TriggerOutcome::TaskNotFound; runs.len()];
    let mut beside = Vec::new();
    for (run, outcome) in runs.iter().zip(&mut outcomes) {
        let Some(spec) = specs.get(&run.task_id) else { continue };
        if spec.overlap == Overlap::Allow {
            beside.push(Wanted { run, spec, outcome });
            continue;
        }
        *outcome = match forever.holder(run) {
            Some(holder) => TriggerOutcome::Duplicate(holder),
            None => place_one(tx, run, spec).await?,
        };
        if let TriggerOutcome::Created(id) | TriggerOutcome::Adopted(id) = *outcome {
            forever.give(run, Some(id));
        }
    }
    place_beside(tx, beside, &mut forever).await?;
    forever.settle(tx).await?;
    Ok(outcomes)
}

/// A run that is asked for, and what came of it.
struct Wanted<'a, 'o> {
    run: &'a NewRun,
    spec: &'a TaskSpec,
    outcome: &'o mut TriggerOutcome,
}

fn draft<'a>(run: &'a NewRun, spec: &'a TaskSpec) -> Draft<'a> {
    Draft {
        id: run.id,
        task_id: run.task_id,
        spec,
        trigger: run.trigger,
        scheduled_for: None,
        delay: run.delay,
        dedupe_key: run.dedupe_key.as_ref(),
        input: run.input.as_ref(),
    }
}

/// Makes runs that nothing but their deduplication keys can be in the way of.
async fn place_beside<'a>(tx: &mut Tx, mut wanted: Vec<Wanted<'a, '_>>, forever: &mut Forever<'a>) -> StoreResult<()> {
    let key = |run: &NewRun| run.dedupe_key.as_ref().map(|key| (run.task_id, key.to_string()));
    let mut holders = active_with_keys(tx, wanted.iter().map(|wanted| wanted.run)).await?;
    let mut drafts = Vec::new();
    for Wanted { run, spec, outcome } in &mut wanted {
        let key = key(run);
        if let Some(holder) = forever.holder(run).or_else(|| holders.get(key.as_ref()?).copied()) {
            **outcome = TriggerOutcome::Duplicate(holder);
            continue;
        }
        **outcome = TriggerOutcome::Created(run.id);
        forever.give(run, Some(run.id));
        holders.extend(key.map(|key| (key, run.id)));
        drafts.push(draft(run, spec));
    }
    let made = insert(tx, &drafts).await?;
    let lost: HashSet<RunId> = drafts.iter().map(|draft| draft.id).filter(|id| !made.contains(&id.as_uuid())).collect();
    if lost.is_empty() {
        return Ok(());
    }
    // Runs with the same keys were committed meanwhile; the next look finds them.
    let holders = active_with_keys(tx, wanted.iter().map(|wanted| wanted.run)).await?;
    for Wanted { run, outcome, .. } in &mut wanted {
        if let TriggerOutcome::Created(id) | TriggerOutcome::Duplicate(id) = **outcome
            && lost.contains(&id)
        {
            let holder = key(run).and_then(|key| holders.get(&key).copied()).ok_or_else(collided)?;
            **outcome = TriggerOutcome::Duplicate(holder);
            forever.give(run, None);
        }
    }
    Ok(())
}

/// Makes one run under an overlap policy, and the lock on its task that goes with it.
async fn place_one(tx: &mut Tx, run: &NewRun, spec: &TaskSpec) -> StoreResult<TriggerOutcome> {
    if let Some(outcome) = obstacle(tx, run, spec).await? {
        return Ok(outcome);
    }
    if spec.overlap == Overlap::Replace {
        cancel_active(tx, &[run.task_id.as_uuid()]).await?;
    }
    if insert(tx, &[draft(run, spec)]).await?.is_empty() {
        let other = active_with_key(tx, run).await?.ok_or_else(collided)?;
        return Ok(TriggerOutcome::Duplicate(other));
    }
    Ok(TriggerOutcome::Created(run.id))
}

/// Locks tasks in the order of their ids, as strongly as their policies ask for, and reads their definitions. Deleted
/// tasks are left out.
pub(super) async fn lock_tasks(
    tx: &mut Tx,
    ids: impl Iterator<Item = TaskId>,
) -> StoreResult<BTreeMap<TaskId, StoreResult<TaskSpec>>> {
    let ids: Vec<Uuid> = ids.map(|id| id.as_uuid()).collect::<BTreeSet<_>>().into_iter().collect();
    let shared: Vec<(Uuid, String)> = sqlx::query_as(
        "-- tasks.share
         SELECT id, spec FROM switchboard.tasks WHERE id = ANY ($1) AND deleted_at IS NULL ORDER BY id FOR KEY SHARE",
    )
    .bind(ids)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let mut specs: BTreeMap<_, _> = shared.into_iter().map(read).collect();
    let is_governed = |spec: &StoreResult<TaskSpec>| spec.as_ref().is_ok_and(|spec| spec.overlap != Overlap::Allow);
    let governed: Vec<Uuid> =
        specs.iter().filter(|(_, spec)| is_governed(spec)).map(|(id, _): (&TaskId, _)| id.as_uuid()).collect();
    if governed.is_empty() {
        return Ok(specs);
    }
    let locked: Vec<(Uuid, String)> = sqlx::query_as(
        "-- tasks.lock_for_trigger
         SELECT id, spec FROM switchboard.tasks
         WHERE id = ANY ($1) AND deleted_at IS NULL ORDER BY id FOR NO KEY UPDATE",
    )
    .bind(&governed)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    specs.retain(|_, spec| !is_governed(spec));
    specs.extend(locked.into_iter().map(read));
    Ok(specs)
}

fn read((id, spec): (Uuid, String)) -> (TaskId, StoreResult<TaskSpec>) {
    (TaskId::from_uuid(id), serde_json::from_str(&spec).map_err(|error| StoreError::corrupt("task", error)))
}

/// Says what makes a new run impossible or needless, if anything does, under the lock on its task.
async fn obstacle(tx: &mut Tx, run: &NewRun, spec: &TaskSpec) -> StoreResult<Option<TriggerOutcome>> {
    if run.dedupe_key.is_some()
        && let Some(other) = active_with_key(tx, run).await?
    {
        return Ok(Some(TriggerOutcome::Duplicate(other)));
    }
    match spec.overlap {
        Overlap::Allow | Overlap::Replace => return Ok(None),
        Overlap::Skip if run.trigger == Trigger::Webhook => return adoption(tx, run.task_id).await,
        Overlap::Skip | Overlap::Queue => {}
    }
    let (active, oldest) = active(tx, run.task_id).await?;
    Ok(match oldest {
        _ if spec.room(active) > 0 => None,
        Some(oldest) if spec.overlap == Overlap::Skip => Some(TriggerOutcome::Active(oldest)),
        _ => Some(TriggerOutcome::QueueFull),
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

/// Counts the active runs of a task, and names the oldest one.
async fn active(tx: &mut Tx, task: TaskId) -> StoreResult<(u64, Option<RunId>)> {
    // There is no minimum of identities before PostgreSQL 18.
    let (active, oldest): (i64, Option<Uuid>) = sqlx::query_as(
        "-- runs.active_of_task
         SELECT count(*), (array_agg(id ORDER BY id))[1] FROM switchboard.runs
         WHERE task_id = $1 AND state IN ('scheduled', 'queued', 'waiting', 'running')",
    )
    .bind(task.as_uuid())
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)?;
    Ok((count(active), oldest.map(RunId::from_uuid)))
}

async fn active_with_key(tx: &mut Tx, run: &NewRun) -> StoreResult<Option<RunId>> {
    Ok(active_with_keys(tx, std::iter::once(run)).await?.into_values().next())
}
