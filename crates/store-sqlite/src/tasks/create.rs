//! Creating tasks, one or many, each inside one command of the writer, which is given planned schedules.

use switchboard_model::feed::SignalKind;
use switchboard_model::fire::Armed;
use switchboard_model::ids::TaskId;
use switchboard_model::json_text::JsonText;
use switchboard_model::task::{Task, TaskSpecError};
use switchboard_store_api::{OnceRecord, TaskCreateOutcome, WriteContext, Written};

use super::{find, skips};
use crate::context;
use crate::error::DbResult;
use crate::rows::{instant, micros};
use crate::writer::Change;

/// A new task, armed unless its definition was refused.
pub(super) type Planned = (TaskId, Result<Armed, TaskSpecError>);

pub(super) async fn create(
    change: &mut Change,
    context: WriteContext,
    task: Planned,
    now: i64,
) -> DbResult<Written<TaskCreateOutcome>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    let id = task.0;
    let outcome = make(change, task, now).await?;
    if let TaskCreateOutcome::Created(_) = &outcome {
        change.signal(SignalKind::TaskChanged, id.to_string(), 1);
        context::complete(change, &context, id.as_uuid()).await?;
    }
    Ok(Written::Now(outcome))
}

pub(super) async fn create_many(
    change: &mut Change,
    context: WriteContext,
    tasks: Vec<Planned>,
    now: i64,
) -> DbResult<Written<Vec<TaskCreateOutcome>>> {
    let Some(first) = tasks.first().map(|(id, _)| id.as_uuid()) else { return Ok(Written::Now(vec![])) };
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    let mut outcomes = Vec::with_capacity(tasks.len());
    let mut created = Vec::with_capacity(tasks.len());
    for task in tasks {
        let id = task.0;
        let outcome = make(change, task, now).await?;
        created.push(matches!(outcome, TaskCreateOutcome::Created(_)).then_some(id));
        outcomes.push(outcome);
    }
    if created.iter().any(Option::is_some) {
        change.signal(SignalKind::TaskChanged, "*", 0);
        let record = OnceRecord { result_id: first, result: Some(JsonText::encode(&created)?) };
        context::complete_with(change, &context, record).await?;
    }
    Ok(Written::Now(outcomes))
}

/// Makes a task that was planned at `now` if its definition is right and its name is free.
async fn make(change: &mut Change, (id, armed): Planned, now: i64) -> DbResult<TaskCreateOutcome> {
    let created_at = instant(now)?;
    let Armed { spec, arming, skips } = match armed {
        Ok(armed) => armed,
        Err(error) => return Ok(TaskCreateOutcome::Refused(error)),
    };
    if let Some(other) = find(&mut change.connection, &spec.name).await? {
        return Ok(TaskCreateOutcome::NameTaken(TaskId::from_uuid(other.id)));
    }
    sqlx::query(
        "-- tasks.create
        INSERT INTO tasks (id, name, spec, has_schedule, is_active, next_run_at, paused_at, created_at, updated_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)",
    )
    .bind(id.as_uuid())
    .bind(spec.name.as_str())
    .bind(serde_json::to_string(&spec)?)
    .bind(spec.schedule.is_some())
    .bind(arming.is_active)
    .bind(arming.next_run_at.map(micros))
    .bind(arming.paused_from.map(micros))
    .bind(now)
    .execute(&mut change.connection)
    .await?;
    skips::record(change, id, skips).await?;
    Ok(TaskCreateOutcome::Created(Task {
        id,
        spec,
        next_run_at: arming.next_run_at,
        version: 1,
        paused_from: arming.paused_from,
        parked: None,
        created_at,
        updated_at: created_at,
    }))
}
