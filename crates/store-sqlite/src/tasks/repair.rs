//! Upkeep of tasks: what cannot be read is parked, what lost its next occurrence is armed again, what was deleted goes.

use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::ids::TaskId;
use switchboard_model::run::clean_error;
use switchboard_model::span::Span;
use switchboard_store_api::UnarmedReport;
use uuid::Uuid;

use crate::Database;
use crate::error::DbResult;
use crate::rows::{TaskRow, earlier, instant, micros};
use crate::writer::Change;

/// A task that cannot be read, and why.
pub(super) struct Unreadable {
    pub(super) row: TaskRow,
    pub(super) error: String,
}

/// Parks tasks with their errors, unless somebody edited them in between.
pub(super) async fn park(change: &mut Change, unreadable: Vec<Unreadable>) -> DbResult<()> {
    for Unreadable { row, error } in unreadable {
        let id = TaskId::from_uuid(row.id);
        let error = clean_error(&error);
        tracing::error!(task_id = %id, error, "parking a task that cannot be read");
        sqlx::query(
            "-- tasks.park
            UPDATE tasks SET parked = ? WHERE id = ? AND version = ?",
        )
        .bind(error)
        .bind(row.id)
        .bind(row.version)
        .execute(&mut change.connection)
        .await?;
        change.signal(SignalKind::TaskChanged, id.to_string(), row.version);
    }
    Ok(())
}

pub(super) async fn count_unarmed(database: &Database) -> DbResult<u64> {
    let count = sqlx::query_scalar(
        "-- tasks.count_unarmed
        SELECT COUNT(*) FROM tasks
        WHERE has_schedule AND is_active AND deleted_at IS NULL AND next_run_at IS NULL",
    )
    .fetch_one(&database.readers)
    .await?;
    Ok(count)
}

/// Nobody else writes meanwhile, so what is found is still so when it is repaired.
pub(super) async fn repair_unarmed(change: &mut Change, limit: u32) -> DbResult<UnarmedReport> {
    let unarmed: Vec<TaskRow> = sqlx::query_as(
        "-- tasks.unarmed
        SELECT * FROM tasks
        WHERE has_schedule AND is_active AND deleted_at IS NULL AND next_run_at IS NULL AND parked IS NULL
        ORDER BY id LIMIT ?",
    )
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    let mut report = UnarmedReport { found: unarmed.len() as u64, repaired: 0 };
    let now = instant(change.schedule_now)?;
    let mut unreadable = Vec::new();
    for row in unarmed {
        match next_of(&row, now) {
            Ok(next) => {
                arm(change, &row, next).await?;
                report.repaired += 1;
            }
            Err(error) => unreadable.push(Unreadable { row, error }),
        }
    }
    park(change, unreadable).await?;
    Ok(report)
}

/// Returns the next occurrence after now, if there is any.
fn next_of(row: &TaskRow, now: Timestamp) -> Result<Option<Timestamp>, String> {
    let spec = row.spec().map_err(|error| error.to_string())?;
    let Some(schedule) = spec.schedule else { return Ok(None) };
    schedule.check().map_err(|error| error.to_string())?;
    Ok(schedule.next_after(now))
}

/// Arms a task; one without a next occurrence is deactivated.
async fn arm(change: &mut Change, row: &TaskRow, next: Option<Timestamp>) -> DbResult<()> {
    let id = TaskId::from_uuid(row.id);
    tracing::error!(task_id = %id, "a task had lost its next occurrence and is armed again");
    sqlx::query(
        "-- tasks.arm
        UPDATE tasks SET next_run_at = ?1, is_active = ?1 IS NOT NULL WHERE id = ?2",
    )
    .bind(next.map(micros))
    .bind(row.id)
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::TaskChanged, id.to_string(), row.version);
    Ok(())
}

pub(super) async fn sweep(change: &mut Change, age: Span, limit: u32) -> DbResult<u64> {
    let old: Vec<Uuid> = sqlx::query_scalar(
        "-- tasks.sweepable
        SELECT id FROM tasks
        WHERE deleted_at IS NOT NULL AND deleted_at < ?
            AND NOT EXISTS (SELECT 1 FROM runs WHERE task_id = tasks.id)
            AND NOT EXISTS (SELECT 1 FROM task_skips WHERE task_id = tasks.id)
        ORDER BY deleted_at LIMIT ?",
    )
    .bind(earlier(change.now, age))
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    for id in &old {
        sqlx::query(
            "-- once.delete_dedupe_keys
            DELETE FROM once WHERE scope = ?",
        )
        .bind(format!("dedupe:{}", TaskId::from_uuid(*id)))
        .execute(&mut change.connection)
        .await?;
        sqlx::query(
            "-- tasks.sweep
            DELETE FROM tasks WHERE id = ?",
        )
        .bind(id)
        .execute(&mut change.connection)
        .await?;
    }
    Ok(old.len() as u64)
}
