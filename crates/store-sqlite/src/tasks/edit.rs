//! Editing, pausing and deleting tasks, each inside one command of the writer.

use std::collections::BTreeSet;

use switchboard_model::feed::SignalKind;
use switchboard_model::fire::{self, Armed};
use switchboard_model::ids::TaskId;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_model::webhook::SecretPurpose;
use switchboard_store_api::{StoreError, TaskUpdateOutcome, WriteContext};

use super::{find, row, skips};
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

pub(super) async fn update(change: &mut Change, context: WriteContext, edit: Edit) -> DbResult<TaskUpdateOutcome> {
    let Some(row) = row(&mut change.connection, edit.id).await? else { return Ok(TaskUpdateOutcome::NotFound) };
    if row.version != edit.expected {
        return Ok(TaskUpdateOutcome::VersionMismatch(row.version));
    }
    // A definition that was parked or cannot be read is replaced as a whole.
    let before = if row.parked.is_some() { None } else { row.spec().ok() };
    let armed = match fire::edit(before.as_ref(), row.arming()?, edit.spec, instant(change.schedule_now)?) {
        Ok(Some(armed)) => armed,
        Ok(None) => return Ok(TaskUpdateOutcome::Updated(row.try_into()?)),
        Err(error) => return Ok(TaskUpdateOutcome::Refused(error)),
    };
    if let Some(other) = find(&mut change.connection, &armed.spec.name).await?
        && other.id != row.id
    {
        return Ok(TaskUpdateOutcome::NameTaken(TaskId::from_uuid(other.id)));
    }
    if before.is_none_or(|before| before.action.is_pull() != armed.spec.action.is_pull()) {
        follow_action(change, edit.id, armed.spec.action.is_pull()).await?;
    }
    Ok(TaskUpdateOutcome::Updated(write(change, context, row, armed).await?))
}

pub(super) async fn set_active(
    change: &mut Change,
    context: WriteContext,
    id: TaskId,
    active: bool,
) -> DbResult<Option<Task>> {
    let Some(row) = row(&mut change.connection, id).await? else { return Ok(None) };
    let before = row.spec().map_err(|error| StoreError::corrupt("task", error))?;
    let spec = TaskSpec { is_active: active, ..before.clone() };
    let (was, now) = (row.arming()?, instant(change.schedule_now)?);
    // A schedule without a future cannot come into force.
    let armed = Some(spec).filter(|_| row.is_active != active);
    let armed = armed.and_then(|spec| fire::rearm(Some(&before), was, spec, now).ok());
    let Some(armed) = armed else { return Ok(Some(row.try_into()?)) };
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
        DELETE FROM webhook_secrets
        WHERE task_id = ?1 AND (purpose <> ?2 OR NOT EXISTS (SELECT 1 FROM runs WHERE runs.task_id = ?1))",
    )
    .bind(id.as_uuid())
    .bind(SecretPurpose::Sign.as_str())
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::TaskChanged, id.to_string(), 0);
    context::audit(change, &context).await?;
    Ok(true)
}

/// Lets the runs of a task that have not ended follow its action to those who execute it, and tells them.
async fn follow_action(change: &mut Change, id: TaskId, is_pull: bool) -> DbResult<()> {
    let pools: Vec<String> = sqlx::query_scalar(
        "-- runs.follow_action
        UPDATE runs INDEXED BY runs_active_by_task SET is_pull = ?2
        WHERE task_id = ?1 AND state IN ('scheduled', 'queued', 'waiting', 'running') AND is_pull <> ?2
        RETURNING pool",
    )
    .bind(id.as_uuid())
    .bind(is_pull)
    .fetch_all(&mut change.connection)
    .await?;
    for pool in pools.into_iter().collect::<BTreeSet<_>>() {
        change.signal(SignalKind::PoolQueued, pool, 0);
    }
    Ok(())
}

/// Writes a changed definition over the row and returns the task as it is now.
async fn write(change: &mut Change, context: WriteContext, row: TaskRow, armed: Armed) -> DbResult<Task> {
    let Armed { spec, arming, skips } = armed;
    sqlx::query(
        "-- tasks.update
        UPDATE tasks SET name = ?, spec = ?, has_schedule = ?, is_active = ?, next_run_at = ?, paused_at = ?,
            version = version + 1, parked = NULL, updated_at = ?
        WHERE id = ?",
    )
    .bind(spec.name.as_str())
    .bind(serde_json::to_string(&spec)?)
    .bind(spec.schedule.is_some())
    .bind(arming.is_active)
    .bind(arming.next_run_at.map(micros))
    .bind(arming.paused_from.map(micros))
    .bind(change.now)
    .bind(row.id)
    .execute(&mut change.connection)
    .await?;
    let task = Task {
        id: TaskId::from_uuid(row.id),
        spec,
        next_run_at: arming.next_run_at,
        version: row.version + 1,
        paused_from: arming.paused_from,
        parked: None,
        created_at: instant(row.created_at)?,
        updated_at: instant(change.now)?,
    };
    skips::record(change, task.id, skips).await?;
    change.signal(SignalKind::TaskChanged, task.id.to_string(), task.version);
    context::audit(change, &context).await?;
    Ok(task)
}
