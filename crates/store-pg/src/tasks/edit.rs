//! Edits of tasks: update, pause, resume, delete. Each locks the row, then looks at it.

use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::fire::{self, Armed};
use switchboard_model::identity::TaskName;
use switchboard_model::ids::TaskId;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_model::webhook::SecretPurpose;
use switchboard_store_api::{StoreError, StoreResult, TaskUpdateOutcome, WriteContext};
use uuid::Uuid;

use super::{encode, skips};
use crate::connect::{Database, Tx};
use crate::context::audit;
use crate::error::fault;
use crate::link::Link;
use crate::rows::TaskRow;

/// What an update was asked for.
pub(super) struct Edit<'a> {
    pub(super) id: TaskId,
    pub(super) expected: i64,
    pub(super) spec: &'a TaskSpec,
}

pub(super) async fn update(
    database: &Arc<Database>,
    context: &WriteContext,
    edit: Edit<'_>,
) -> StoreResult<TaskUpdateOutcome> {
    let mut tx = database.begin().await?;
    let Some(row) = lock(&mut tx, edit.id).await? else { return tx.undo(TaskUpdateOutcome::NotFound).await };
    if row.version != edit.expected {
        return tx.undo(TaskUpdateOutcome::VersionMismatch(row.version)).await;
    }
    let now = tx.now().await?;
    let due_by = tx.set_time().unwrap_or(now);
    // A definition that was parked or cannot be read is replaced as a whole.
    let before = if row.parked.is_some() { None } else { row.spec().ok() };
    let armed = match fire::edit(before.as_ref(), row.arming(), edit.spec.clone(), due_by) {
        Ok(Some(armed)) => armed,
        Ok(None) => return tx.undo(TaskUpdateOutcome::Updated(row.try_into()?)).await,
        Err(error) => return tx.undo(TaskUpdateOutcome::Refused(error)).await,
    };
    if let Some(other) = holder_of(&mut tx, &armed.spec.name, edit.id).await? {
        return tx.undo(TaskUpdateOutcome::NameTaken(other)).await;
    }
    if before.is_none_or(|before| before.action.is_pull() != armed.spec.action.is_pull()) {
        follow_action(&mut tx, edit.id, armed.spec.action.is_pull()).await?;
    }
    let task = write(&mut tx, edit.id, armed, now).await?;
    audit(&mut tx, context).await?;
    tx.commit().await?;
    Ok(TaskUpdateOutcome::Updated(task))
}

pub(super) async fn set_active(
    database: &Arc<Database>,
    context: &WriteContext,
    id: TaskId,
    active: bool,
) -> StoreResult<Option<Task>> {
    let mut tx = database.begin().await?;
    let Some(row) = lock(&mut tx, id).await? else { return tx.undo(None).await };
    let before = row.spec().map_err(|error| StoreError::corrupt("task", error))?;
    let now = tx.now().await?;
    let due_by = tx.set_time().unwrap_or(now);
    let spec = TaskSpec { is_active: active, ..before.clone() };
    // A schedule without a future cannot come into force.
    let armed = Some(spec).filter(|_| row.is_active != active);
    let armed = armed.and_then(|spec| fire::rearm(Some(&before), row.arming(), spec, due_by).ok());
    let Some(armed) = armed else { return tx.undo(Some(row.try_into()?)).await };
    let task = write(&mut tx, id, armed, now).await?;
    audit(&mut tx, context).await?;
    tx.commit().await?;
    Ok(Some(task))
}

pub(super) async fn delete(database: &Arc<Database>, context: &WriteContext, id: TaskId) -> StoreResult<bool> {
    let mut tx = database.begin().await?;
    if lock(&mut tx, id).await?.is_none() {
        return tx.undo(false).await;
    }
    // After the lock, every run and every secret of the task is there to be seen.
    sqlx::query(
        "-- tasks.delete
         WITH unneeded AS (
             DELETE FROM switchboard.webhook_secrets AS secret
             WHERE task_id = $1
               AND (purpose <> $2 OR NOT EXISTS (
                        SELECT FROM switchboard.runs AS run
                        WHERE run.task_id = $1 AND run.state IN ('scheduled', 'queued', 'waiting', 'running')
                        UNION ALL
                        SELECT FROM switchboard.runs AS run
                        WHERE run.task_id = $1 AND run.state IN ('succeeded', 'failed', 'cancelled', 'dead')
                   ))
         )
         UPDATE switchboard.tasks
         SET deleted_at = clock_timestamp(), is_active = false, next_run_at = NULL, version = version + 1
         WHERE id = $1",
    )
    .bind(id.as_uuid())
    .bind(SecretPurpose::Sign.as_str())
    .execute(&mut *tx)
    .await
    .map_err(fault)?;
    audit(&mut tx, context).await?;
    tx.signal(SignalKind::TaskChanged, &id);
    tx.commit().await?;
    Ok(true)
}

async fn lock(tx: &mut Tx, id: TaskId) -> StoreResult<Option<TaskRow>> {
    // The strongest lock, which waits for triggers that have read the definition and not inserted their run yet.
    sqlx::query_as(
        "-- tasks.lock
         SELECT id, spec, is_active, next_run_at, version, paused_at, parked, created_at, updated_at
         FROM switchboard.tasks WHERE id = $1 AND deleted_at IS NULL FOR UPDATE",
    )
    .bind(id.as_uuid())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)
}

async fn write(tx: &mut Tx, id: TaskId, armed: Armed, now: Timestamp) -> StoreResult<Task> {
    let Armed { spec, arming, skips } = armed;
    let row: TaskRow = sqlx::query_as(
        "-- tasks.update
         UPDATE switchboard.tasks
         SET name = $2, spec = $3, has_schedule = $4, is_active = $5, next_run_at = $6, paused_at = $7,
             parked = NULL, version = version + 1, updated_at = $8
         WHERE id = $1
         RETURNING id, spec, is_active, next_run_at, version, paused_at, parked, created_at, updated_at",
    )
    .bind(id.as_uuid())
    .bind(spec.name.as_str())
    .bind(encode(&spec)?.as_str())
    .bind(spec.schedule.is_some())
    .bind(arming.is_active)
    .bind(arming.next_run_at)
    .bind(arming.paused_from)
    .bind(now)
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)?;
    skips::record(tx, skips.into_iter().map(|skip| (id, skip)).collect()).await?;
    tx.signal(SignalKind::TaskChanged, &id);
    row.try_into()
}

/// Lets the runs of a task that have not ended follow its action to those who execute it, and tells them.
async fn follow_action(tx: &mut Tx, id: TaskId, is_pull: bool) -> StoreResult<()> {
    let runs: Vec<Uuid> = sqlx::query_scalar(
        "-- runs.lock_to_follow
         SELECT id FROM switchboard.runs
         WHERE task_id = $1 AND state IN ('scheduled', 'queued', 'waiting', 'running') AND is_pull <> $2
         ORDER BY id FOR UPDATE",
    )
    .bind(id.as_uuid())
    .bind(is_pull)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    if runs.is_empty() {
        return Ok(());
    }
    let pools: Vec<String> = sqlx::query_scalar(
        "-- runs.follow_action
         WITH moved AS (
             UPDATE switchboard.runs SET is_pull = $2 WHERE id = ANY ($1) RETURNING pool
         )
         SELECT DISTINCT pool FROM moved",
    )
    .bind(runs)
    .bind(is_pull)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    for pool in &pools {
        tx.signal(SignalKind::PoolQueued, pool);
    }
    Ok(())
}

/// Finds another task that has this name.
async fn holder_of(connection: &mut Link, name: &TaskName, except: TaskId) -> StoreResult<Option<TaskId>> {
    let id = sqlx::query_scalar(
        "-- tasks.holder_of_name
         SELECT id FROM switchboard.tasks WHERE name = $1 AND deleted_at IS NULL AND id <> $2",
    )
    .bind(name.as_str())
    .bind(except.as_uuid())
    .fetch_optional(connection)
    .await
    .map_err(fault)?;
    Ok(id.map(TaskId::from_uuid))
}
