//! Edits of tasks: create, update, pause, resume, delete. Each locks the row, then looks at it.

use std::sync::Arc;

use chrono::TimeDelta;
use sqlx::PgConnection;
use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::TaskId;
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{SkipCause, SkipRange};
use switchboard_model::schedule::{Every, Schedule, ScheduleError};
use switchboard_model::task::{Task, TaskSpec, TaskSpecError};
use switchboard_store_api::{StoreError, StoreResult, TaskCreateOutcome, TaskUpdateOutcome, WriteContext, Written};

use super::record_skips;
use crate::connect::{Database, Tx};
use crate::context::{audit, claim, collided};
use crate::error::fault;
use crate::rows::TaskRow;

pub(super) async fn create(
    database: &Arc<Database>,
    context: &WriteContext,
    id: TaskId,
    spec: &TaskSpec,
) -> StoreResult<Written<TaskCreateOutcome>> {
    let mut tx = database.begin().await?;
    if let Some(before) = claim(&mut tx, context, id.as_uuid()).await? {
        return tx.undo(before).await;
    }
    let now = tx.schedule_now().await?;
    let spec = match spec.clone().checked(now).and_then(|spec| with_future(spec, now)) {
        Ok(spec) => spec,
        Err(error) => return tx.undo(Written::Now(TaskCreateOutcome::Refused(error))).await,
    };
    let created: Option<TaskRow> = sqlx::query_as(
        "-- tasks.create
         INSERT INTO switchboard.tasks
             (id, name, spec, has_schedule, is_active, next_run_at, created_at, updated_at)
         SELECT $1, $2, $3, $4, $5, $6, moment, moment FROM clock_timestamp() AS moment
         ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING
         RETURNING id, spec, is_active, next_run_at, version, parked, created_at, updated_at",
    )
    .bind(id.as_uuid())
    .bind(spec.name.as_str())
    .bind(encode(&spec)?.as_str())
    .bind(spec.schedule.is_some())
    .bind(spec.is_active)
    .bind(next_after(&spec, now))
    .fetch_optional(&mut *tx)
    .await
    .map_err(fault)?;
    let Some(created) = created else {
        let other = holder_of(&mut tx, &spec.name, id).await?.ok_or_else(collided)?;
        return tx.undo(Written::Now(TaskCreateOutcome::NameTaken(other))).await;
    };
    audit(&mut tx, context).await?;
    tx.signal(SignalKind::TaskChanged, &id);
    tx.commit().await?;
    created.try_into().map(|task| Written::Now(TaskCreateOutcome::Created(task)))
}

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
    let Some(Locked { row, paused_at }) = lock(&mut tx, edit.id).await? else {
        return tx.undo(TaskUpdateOutcome::NotFound).await;
    };
    if row.version != edit.expected {
        return tx.undo(TaskUpdateOutcome::VersionMismatch(row.version)).await;
    }
    let now = tx.schedule_now().await?;
    // A definition that was parked or cannot be read is replaced as a whole.
    let before = if row.parked.is_some() { None } else { row.spec().ok() };
    let mut spec = edit.spec.clone();
    keep_anchor(&mut spec, before.as_ref());
    let is_armed = before.as_ref().is_some_and(|before| before.is_active && !spec.moves_next_run(before));
    let checked = spec.checked(now).and_then(|spec| if is_armed { Ok(spec) } else { with_future(spec, now) });
    let spec = match checked {
        Ok(spec) => spec,
        Err(error) => return tx.undo(TaskUpdateOutcome::Refused(error)).await,
    };
    if before.as_ref() == Some(&spec) {
        return tx.undo(TaskUpdateOutcome::Updated(row.try_into()?)).await;
    }
    if let Some(other) = holder_of(&mut tx, &spec.name, edit.id).await? {
        return tx.undo(TaskUpdateOutcome::NameTaken(other)).await;
    }
    let was = Arming { is_active: row.is_active, next_run_at: row.next_run_at, paused_at };
    let (arming, skip) = was.follow(before.as_ref(), &spec, now);
    let task = write(&mut tx, edit.id, &Change { spec, arming, skip }).await?;
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
    let Some(Locked { row, paused_at }) = lock(&mut tx, id).await? else { return tx.undo(None).await };
    let before = row.spec().map_err(|error| StoreError::corrupt("task", error))?;
    let now = tx.schedule_now().await?;
    // A schedule without a future cannot come into force.
    let active = active && (row.is_active || before.schedule.as_ref().is_none_or(|s| s.next_after(now).is_some()));
    if row.is_active == active {
        return tx.undo(Some(row.try_into()?)).await;
    }
    let spec = TaskSpec { is_active: active, ..before.clone() };
    let was = Arming { is_active: row.is_active, next_run_at: row.next_run_at, paused_at };
    let (arming, skip) = was.follow(Some(&before), &spec, now);
    let task = write(&mut tx, id, &Change { spec, arming, skip }).await?;
    audit(&mut tx, context).await?;
    tx.commit().await?;
    Ok(Some(task))
}

pub(super) async fn delete(database: &Arc<Database>, context: &WriteContext, id: TaskId) -> StoreResult<bool> {
    let mut tx = database.begin().await?;
    let deleted = sqlx::query(
        "-- tasks.delete
         UPDATE switchboard.tasks
         SET deleted_at = clock_timestamp(), is_active = false, next_run_at = NULL, version = version + 1
         WHERE id = $1 AND deleted_at IS NULL",
    )
    .bind(id.as_uuid())
    .execute(&mut *tx)
    .await
    .map_err(fault)?
    .rows_affected();
    if deleted == 0 {
        return tx.undo(false).await;
    }
    // A statement of its own, which sees a secret that was added while the first one waited for the task.
    sqlx::query(
        "-- webhooks.delete_of_task
         DELETE FROM switchboard.webhook_secrets WHERE task_id = $1",
    )
    .bind(id.as_uuid())
    .execute(&mut *tx)
    .await
    .map_err(fault)?;
    audit(&mut tx, context).await?;
    tx.signal(SignalKind::TaskChanged, &id);
    tx.commit().await?;
    Ok(true)
}

/// Whether, when and since when a schedule is in force.
struct Arming {
    is_active: bool,
    next_run_at: Option<Timestamp>,
    /// The first instant whose occurrence was not fired because of a pause.
    paused_at: Option<Timestamp>,
}

impl Arming {
    /// Says how the arming follows an edit, and which occurrences a pause that ends with it skipped.
    fn follow(self, before: Option<&TaskSpec>, spec: &TaskSpec, now: Timestamp) -> (Self, Option<SkipRange>) {
        let moves = before.is_none_or(|before| spec.moves_next_run(before));
        let next_run_at = next_after(spec, now);
        match (self.is_active, spec.is_active) {
            (true, true) if !moves => (self, None),
            (true, true) => (Self { next_run_at, ..self }, None),
            (true, false) => {
                // An occurrence that is due and not fired yet belongs to the pause.
                let paused_at = self.next_run_at.map_or(now, |next| next.min(now));
                (Self { is_active: false, next_run_at: None, paused_at: Some(paused_at) }, None)
            }
            (false, false) => (Self { paused_at: self.paused_at.map(|at| if moves { now } else { at }), ..self }, None),
            (false, true) => {
                let schedule = before.and_then(|before| before.schedule.as_ref());
                let skip = schedule.zip(self.paused_at).and_then(|(schedule, at)| paused_range(schedule, at, now));
                (Self { is_active: true, next_run_at, paused_at: None }, skip)
            }
        }
    }
}

/// Returns the occurrences from `paused_at` to `now`.
fn paused_range(schedule: &Schedule, paused_at: Timestamp, now: Timestamp) -> Option<SkipRange> {
    let first = schedule.next_after(paused_at - TimeDelta::microseconds(1))?;
    let occurrences = schedule.between(first, now)?;
    Some(SkipRange { from: first, to: occurrences.last(), count: occurrences.count, cause: SkipCause::Paused })
}

fn next_after(spec: &TaskSpec, now: Timestamp) -> Option<Timestamp> {
    spec.schedule.as_ref().filter(|_| spec.is_active)?.next_after(now)
}

/// Refuses to put a schedule into force that has no occurrence left.
fn with_future(spec: TaskSpec, now: Timestamp) -> Result<TaskSpec, TaskSpecError> {
    if spec.is_active && spec.schedule.is_some() && next_after(&spec, now).is_none() {
        let reason = ScheduleError::NeverFires.to_string();
        return Err(TaskSpecError { field: "schedule", never_fires: true, reason });
    }
    Ok(spec)
}

/// Gives an interval that names no anchor the one it had, if it is the same interval.
fn keep_anchor(spec: &mut TaskSpec, before: Option<&TaskSpec>) {
    let had = before.and_then(|before| before.schedule.as_ref());
    if let (Some(Schedule::Every(new)), Some(Schedule::Every(old))) = (&mut spec.schedule, had)
        && new.anchor.is_none()
        && new.interval == old.interval
    {
        *new = Every { anchor: old.anchor, ..new.clone() };
    }
}

struct Locked {
    row: TaskRow,
    paused_at: Option<Timestamp>,
}

async fn lock(tx: &mut Tx, id: TaskId) -> StoreResult<Option<Locked>> {
    #[derive(sqlx::FromRow)]
    struct LockedRow {
        #[sqlx(flatten)]
        row: TaskRow,
        paused_at: Option<Timestamp>,
    }
    let locked: Option<LockedRow> = sqlx::query_as(
        "-- tasks.lock
         SELECT id, spec, is_active, next_run_at, version, parked, created_at, updated_at, paused_at
         FROM switchboard.tasks WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE",
    )
    .bind(id.as_uuid())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(locked.map(|LockedRow { row, paused_at }| Locked { row, paused_at }))
}

/// What an edit writes.
struct Change {
    spec: TaskSpec,
    arming: Arming,
    skip: Option<SkipRange>,
}

async fn write(tx: &mut Tx, id: TaskId, change: &Change) -> StoreResult<Task> {
    let row: TaskRow = sqlx::query_as(
        "-- tasks.update
         UPDATE switchboard.tasks
         SET name = $2, spec = $3, has_schedule = $4, is_active = $5, next_run_at = $6, paused_at = $7,
             parked = NULL, version = version + 1, updated_at = clock_timestamp()
         WHERE id = $1
         RETURNING id, spec, is_active, next_run_at, version, parked, created_at, updated_at",
    )
    .bind(id.as_uuid())
    .bind(change.spec.name.as_str())
    .bind(encode(&change.spec)?.as_str())
    .bind(change.spec.schedule.is_some())
    .bind(change.arming.is_active)
    .bind(change.arming.next_run_at)
    .bind(change.arming.paused_at)
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)?;
    if let Some(skip) = &change.skip {
        record_skips(tx, &[(id, skip.clone())]).await?;
    }
    tx.signal(SignalKind::TaskChanged, &id);
    row.try_into()
}

/// Finds another task that has this name.
async fn holder_of(connection: &mut PgConnection, name: &TaskName, except: TaskId) -> StoreResult<Option<TaskId>> {
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

fn encode(spec: &TaskSpec) -> StoreResult<JsonText> {
    JsonText::encode(spec).map_err(|error| StoreError::Backend(error.into()))
}
