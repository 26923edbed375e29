//! Creating, editing, pausing and deleting tasks, each inside one command of the writer.

use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::ids::TaskId;
use switchboard_model::run::{SkipCause, SkipRange};
use switchboard_model::schedule::{Schedule, ScheduleError};
use switchboard_model::task::{Task, TaskSpec, TaskSpecError};
use switchboard_store_api::{StoreError, TaskCreateOutcome, TaskUpdateOutcome, WriteContext, Written};

use super::{find, fire, row};
use crate::context;
use crate::error::DbResult;
use crate::rows::{TaskRow, instant, micros};
use crate::writer::Change;

/// An edit of a task that was read at version `expected`.
pub(super) struct Edit {
    pub(super) id: TaskId,
    pub(super) expected: i64,
    pub(super) spec: TaskSpec,
}

/// A definition that was checked, and when it is due next.
struct Armed {
    spec: TaskSpec,
    next_run_at: Option<Timestamp>,
}

impl Armed {
    /// Computes the next occurrence from `now`.
    fn from_now(spec: TaskSpec, now: Timestamp) -> Result<Self, TaskSpecError> {
        let next_run_at = match &spec.schedule {
            Some(schedule) if spec.is_active => Some(schedule.next_after(now).ok_or_else(|| TaskSpecError {
                field: "schedule",
                never_fires: true,
                reason: ScheduleError::NeverFires.to_string(),
            })?),
            _ => None,
        };
        Ok(Self { spec, next_run_at })
    }
}

pub(super) async fn create(
    change: &mut Change,
    context: WriteContext,
    id: TaskId,
    spec: TaskSpec,
) -> DbResult<Written<TaskCreateOutcome>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    let now = instant(change.schedule_now)?;
    let Armed { spec, next_run_at } = match spec.checked(now).and_then(|spec| Armed::from_now(spec, now)) {
        Ok(armed) => armed,
        Err(error) => return Ok(Written::Now(TaskCreateOutcome::Refused(error))),
    };
    if let Some(other) = find(&mut change.connection, &spec.name).await? {
        return Ok(Written::Now(TaskCreateOutcome::NameTaken(TaskId::from_uuid(other.id))));
    }
    sqlx::query(
        "-- tasks.create
        INSERT INTO tasks (id, name, spec, has_schedule, is_active, next_run_at, created_at, updated_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)",
    )
    .bind(id.as_uuid())
    .bind(spec.name.as_str())
    .bind(serde_json::to_string(&spec)?)
    .bind(spec.schedule.is_some())
    .bind(spec.is_active)
    .bind(next_run_at.map(micros))
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::TaskChanged, id.to_string(), 1);
    context::complete(change, &context, id.as_uuid()).await?;
    let created_at = instant(change.now)?;
    let task = Task { id, spec, next_run_at, version: 1, parked: None, created_at, updated_at: created_at };
    Ok(Written::Now(TaskCreateOutcome::Created(task)))
}

pub(super) async fn update(change: &mut Change, context: WriteContext, edit: Edit) -> DbResult<TaskUpdateOutcome> {
    let Some(mut row) = row(&mut change.connection, edit.id).await? else { return Ok(TaskUpdateOutcome::NotFound) };
    if row.version != edit.expected {
        return Ok(TaskUpdateOutcome::VersionMismatch(row.version));
    }
    let now = instant(change.schedule_now)?;
    // A definition that was parked or cannot be read is replaced as a whole.
    let before = if row.parked.is_some() { None } else { row.spec().ok() };
    let spec = match keep_anchor(edit.spec, before.as_ref()).checked(now) {
        Ok(spec) => spec,
        Err(error) => return Ok(TaskUpdateOutcome::Refused(error)),
    };
    if let Some(other) = find(&mut change.connection, &spec.name).await?
        && other.id != row.id
    {
        return Ok(TaskUpdateOutcome::NameTaken(TaskId::from_uuid(other.id)));
    }
    if before.as_ref() == Some(&spec) {
        return Ok(TaskUpdateOutcome::Updated(row.try_into()?));
    }
    let stays =
        before.as_ref().is_some_and(|before| !spec.moves_next_run(before) && spec.is_active == before.is_active);
    let armed = if stays {
        Armed { spec, next_run_at: row.next_run_at.map(instant).transpose()? }
    } else {
        match Armed::from_now(spec, now) {
            Ok(armed) => armed,
            Err(error) => return Ok(TaskUpdateOutcome::Refused(error)),
        }
    };
    if let Some(before) = before.filter(|before| !before.is_active && armed.spec.is_active) {
        record_pause(change, &row, &before).await?;
    } else if !stays {
        // A pause that goes on under another schedule counts from here.
        row.paused_at = row.paused_at.map(|_| change.schedule_now);
    }
    Ok(TaskUpdateOutcome::Updated(write(change, context, row, armed).await?))
}

/// Gives a schedule without an anchor the one it had, if nothing else of it changed.
fn keep_anchor(mut spec: TaskSpec, before: Option<&TaskSpec>) -> TaskSpec {
    if let Some(Schedule::Every(every)) = &mut spec.schedule
        && every.anchor.is_none()
        && let Some(Schedule::Every(old)) = before.and_then(|before| before.schedule.as_ref())
        && old.interval == every.interval
    {
        every.anchor = old.anchor;
    }
    spec
}

pub(super) async fn set_active(
    change: &mut Change,
    context: WriteContext,
    id: TaskId,
    active: bool,
) -> DbResult<Option<Task>> {
    let Some(row) = row(&mut change.connection, id).await? else { return Ok(None) };
    if row.is_active == active {
        return Ok(Some(row.try_into()?));
    }
    let before = row.spec().map_err(|error| StoreError::corrupt("task", error))?;
    if active {
        record_pause(change, &row, &before).await?;
    }
    let spec = TaskSpec { is_active: active, ..before.clone() };
    // A schedule that has no future any more cannot be resumed.
    let armed = Armed::from_now(spec, instant(change.schedule_now)?)
        .unwrap_or(Armed { spec: TaskSpec { is_active: false, ..before }, next_run_at: None });
    Ok(Some(write(change, context, row, armed).await?))
}

pub(super) async fn delete(change: &mut Change, context: WriteContext, id: TaskId) -> DbResult<bool> {
    let deleted = sqlx::query(
        "-- tasks.delete
        UPDATE tasks SET deleted_at = ?, next_run_at = NULL WHERE id = ? AND deleted_at IS NULL",
    )
    .bind(change.now)
    .bind(id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    if deleted.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query(
        "-- webhooks.delete_of_task
        DELETE FROM webhook_secrets WHERE task_id = ?",
    )
    .bind(id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::TaskChanged, id.to_string(), 0);
    context::audit(change, &context).await?;
    Ok(true)
}

/// Records the occurrences between the pause and now as skipped.
async fn record_pause(change: &mut Change, row: &TaskRow, spec: &TaskSpec) -> DbResult<()> {
    let (Some(schedule), Some(paused_at)) = (&spec.schedule, row.paused_at) else { return Ok(()) };
    let Some(first) = schedule.next_after(instant(paused_at)?) else { return Ok(()) };
    let Some(paused) = schedule.between(first, instant(change.schedule_now)?) else { return Ok(()) };
    let range = SkipRange { from: first, to: paused.last(), count: paused.count, cause: SkipCause::Paused };
    fire::record_skip(change, TaskId::from_uuid(row.id), &range).await
}

/// Writes a changed definition over the row and returns the task as it is now.
async fn write(change: &mut Change, context: WriteContext, row: TaskRow, armed: Armed) -> DbResult<Task> {
    let Armed { spec, next_run_at } = armed;
    let paused_at = match (row.is_active, spec.is_active) {
        (_, true) => None,
        (false, false) => row.paused_at,
        // An occurrence that was due and not fired yet belongs to the pause.
        (true, false) => Some(row.next_run_at.map_or(change.schedule_now, |due| change.schedule_now.min(due - 1))),
    };
    sqlx::query(
        "-- tasks.update
        UPDATE tasks SET name = ?, spec = ?, has_schedule = ?, is_active = ?, next_run_at = ?, paused_at = ?,
            version = version + 1, parked = NULL, updated_at = ?
        WHERE id = ?",
    )
    .bind(spec.name.as_str())
    .bind(serde_json::to_string(&spec)?)
    .bind(spec.schedule.is_some())
    .bind(spec.is_active)
    .bind(next_run_at.map(micros))
    .bind(paused_at)
    .bind(change.now)
    .bind(row.id)
    .execute(&mut change.connection)
    .await?;
    let task = Task {
        id: TaskId::from_uuid(row.id),
        spec,
        next_run_at,
        version: row.version + 1,
        parked: None,
        created_at: instant(row.created_at)?,
        updated_at: instant(change.now)?,
    };
    change.signal(SignalKind::TaskChanged, task.id.to_string(), task.version);
    context::audit(change, &context).await?;
    Ok(task)
}
