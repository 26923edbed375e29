//! Creating tasks, one or many.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::fire::{Armed, arm};
use switchboard_model::ids::TaskId;
use switchboard_model::json_text::JsonText;
use switchboard_model::task::{Task, TaskSpec, TaskSpecError};
use switchboard_store_api::{OnceRecord, StoreError, StoreResult, TaskCreateOutcome, WriteContext, Written, arm_all};
use uuid::Uuid;

use super::{encode, skips};
use crate::connect::{Database, Tx};
use crate::context::{audit, claim, collided, complete};
use crate::error::fault;

pub(super) async fn create(
    database: &Arc<Database>,
    context: &WriteContext,
    id: TaskId,
    spec: &TaskSpec,
) -> StoreResult<Written<TaskCreateOutcome>> {
    let (now, due_by) = times(database).await?;
    let armed = arm(spec.clone(), due_by);
    let mut tx = database.begin().await?;
    if let Some(before) = claim(&mut tx, context, id.as_uuid()).await? {
        return tx.undo(before).await;
    }
    let outcome = make(&mut tx, vec![(id, armed)], now).await?.pop().ok_or_else(collided)?;
    if !matches!(outcome, TaskCreateOutcome::Created(_)) {
        return tx.undo(Written::Now(outcome)).await;
    }
    audit(&mut tx, context).await?;
    tx.signal(SignalKind::TaskChanged, &id);
    tx.commit().await?;
    Ok(Written::Now(outcome))
}

pub(super) async fn create_many(
    database: &Arc<Database>,
    context: &WriteContext,
    tasks: &[(TaskId, TaskSpec)],
) -> StoreResult<Written<Vec<TaskCreateOutcome>>> {
    let Some((first, _)) = tasks.first() else { return Ok(Written::Now(vec![])) };
    let (now, due_by) = times(database).await?;
    let armed = arm_all(tasks, due_by).await;
    let mut tx = database.begin().await?;
    if let Some(before) = claim(&mut tx, context, first.as_uuid()).await? {
        return tx.undo(before).await;
    }
    let outcomes = make(&mut tx, tasks.iter().map(|(id, _)| *id).zip(armed).collect(), now).await?;
    let created = |outcome: &TaskCreateOutcome| match outcome {
        TaskCreateOutcome::Created(task) => Some(task.id),
        TaskCreateOutcome::NameTaken(_) | TaskCreateOutcome::Refused(_) => None,
    };
    let created: Vec<Option<TaskId>> = outcomes.iter().map(created).collect();
    if created.iter().all(Option::is_none) {
        return tx.undo(Written::Now(outcomes)).await;
    }
    let result = Some(JsonText::encode(&created).map_err(|error| StoreError::Backend(error.into()))?);
    complete(&mut tx, context, &OnceRecord { result_id: first.as_uuid(), result }).await?;
    audit(&mut tx, context).await?;
    tx.signal(SignalKind::TaskChanged, &"*");
    tx.commit().await?;
    Ok(Written::Now(outcomes))
}

/// Reads database time, outside any transaction; returns too the time by which tasks become due.
async fn times(database: &Arc<Database>) -> StoreResult<(Timestamp, Timestamp)> {
    let now = database.session().await?.now().await?;
    Ok((now, database.schedule_clock.set_time().unwrap_or(now)))
}

/// A new task, armed unless its definition was refused.
type Planned = (TaskId, Result<Armed, TaskSpecError>);

/// Makes the tasks whose definitions are right and whose names are free, each seeing the ones before it.
async fn make(tx: &mut Tx, tasks: Vec<Planned>, now: Timestamp) -> StoreResult<Vec<TaskCreateOutcome>> {
    // The first one of each name, in the order of the names.
    let mut wanted: BTreeMap<&str, (TaskId, &Armed)> = BTreeMap::new();
    for (id, armed) in &tasks {
        if let Ok(armed) = armed {
            wanted.entry(armed.spec.name.as_str()).or_insert((*id, armed));
        }
    }
    let (names, wanted): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
    let made = insert(tx, &wanted, now).await?;
    let mut holders = made.clone();
    if made.len() < names.len() {
        let taken = names.into_iter().filter(|name| !made.contains_key(*name)).collect();
        holders.extend(holders_of(tx, taken).await?);
    }
    let is_made = |(_, armed): &&(TaskId, &Armed)| made.contains_key(armed.spec.name.as_str());
    let skips =
        wanted.iter().filter(is_made).flat_map(|(id, armed)| armed.skips.iter().map(|skip| (*id, skip.clone())));
    skips::record(tx, skips.collect()).await?;

    let outcomes = tasks.into_iter().map(|(id, armed)| match armed {
        Err(error) => Ok(TaskCreateOutcome::Refused(error)),
        Ok(Armed { spec, arming, .. }) => {
            let holder = TaskId::from_uuid(*holders.get(spec.name.as_str()).ok_or_else(collided)?);
            Ok(if holder == id {
                TaskCreateOutcome::Created(Task {
                    id,
                    spec,
                    next_run_at: arming.next_run_at,
                    version: 1,
                    paused_from: arming.paused_from,
                    parked: None,
                    created_at: now,
                    updated_at: now,
                })
            } else {
                TaskCreateOutcome::NameTaken(holder)
            })
        }
    });
    outcomes.collect()
}

/// Inserts tasks whose names are free, and returns the names and identities of those.
async fn insert(tx: &mut Tx, tasks: &[(TaskId, &Armed)], now: Timestamp) -> StoreResult<HashMap<String, Uuid>> {
    let specs = tasks.iter().map(|(_, armed)| encode(&armed.spec)).collect::<StoreResult<Vec<_>>>()?;
    let made: Vec<(String, Uuid)> = sqlx::query_as(
        "-- tasks.create
         INSERT INTO switchboard.tasks
             (id, name, spec, has_schedule, is_active, next_run_at, paused_at, created_at, updated_at)
         SELECT given.*, $8, $8
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::boolean[], $5::boolean[], $6::timestamptz[],
                     $7::timestamptz[]) AS given (id, name, spec, has_schedule, is_active, next_run_at, paused_at)
         ORDER BY name
         ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING
         RETURNING name, id",
    )
    .bind(tasks.iter().map(|(id, _)| id.as_uuid()).collect::<Vec<_>>())
    .bind(tasks.iter().map(|(_, armed)| armed.spec.name.as_str()).collect::<Vec<_>>())
    .bind(specs.iter().map(JsonText::as_str).collect::<Vec<_>>())
    .bind(tasks.iter().map(|(_, armed)| armed.spec.schedule.is_some()).collect::<Vec<_>>())
    .bind(tasks.iter().map(|(_, armed)| armed.arming.is_active).collect::<Vec<_>>())
    .bind(tasks.iter().map(|(_, armed)| armed.arming.next_run_at).collect::<Vec<_>>())
    .bind(tasks.iter().map(|(_, armed)| armed.arming.paused_from).collect::<Vec<_>>())
    .bind(now)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(made.into_iter().collect())
}

/// Finds the tasks that have these names.
async fn holders_of(tx: &mut Tx, names: Vec<&str>) -> StoreResult<Vec<(String, Uuid)>> {
    sqlx::query_as(
        "-- tasks.holders_of_names
         SELECT name, id FROM switchboard.tasks WHERE name = ANY ($1) AND deleted_at IS NULL",
    )
    .bind(names)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}
