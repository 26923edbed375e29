//! Firing: due tasks are read without a lock, plans are applied in one command of the writer.

use std::collections::BTreeSet;
use std::ops::Range;

use sqlx::SqlitePool;
use switchboard_model::feed::SignalKind;
use switchboard_model::fire::{DueTask, FirePlan, PlannedRun};
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::{SkipCause, SkipRange, Trigger, clean_error};
use switchboard_model::task::{Overlap, TaskSpec};
use switchboard_store_api::{DueTasks, FireReport, StoreError};

use crate::error::DbResult;
use crate::rows::{Stored, TaskRow, instant, micros};
use crate::runs::{self, Draft};
use crate::writer::Change;

/// A task that cannot be fired, and why.
pub(super) struct Unreadable {
    row: TaskRow,
    error: String,
}

/// Reads the tasks that are due at `now`, and apart from them those that this binary cannot read.
pub(super) async fn due(readers: &SqlitePool, now: i64, limit: u32) -> DbResult<(DueTasks, Vec<Unreadable>)> {
    let rows: Vec<TaskRow> = sqlx::query_as(
        "-- tasks.due
        SELECT * FROM tasks
        WHERE is_active AND deleted_at IS NULL AND parked IS NULL AND next_run_at IS NOT NULL AND next_run_at <= ?
        ORDER BY next_run_at LIMIT ?",
    )
    .bind(now)
    .bind(limit)
    .fetch_all(readers)
    .await?;
    let mut due = DueTasks { now: instant(now)?, tasks: Vec::new() };
    let mut unreadable = Vec::new();
    for row in rows {
        match DueTask::try_from(&row) {
            Ok(task) => due.tasks.push(task),
            Err(error) => unreadable.push(Unreadable { row, error: clean_error(&StoreError::from(error).to_string()) }),
        }
    }
    Ok((due, unreadable))
}

/// Parks tasks with their errors, unless somebody edited them in between.
pub(super) async fn park(change: &mut Change, unreadable: Vec<Unreadable>) -> DbResult<()> {
    for Unreadable { row, error } in unreadable {
        let id = TaskId::from_uuid(row.id);
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

pub(super) async fn fire(change: &mut Change, plans: Vec<FirePlan>) -> DbResult<FireReport> {
    let mut report = FireReport::default();
    let mut pools = BTreeSet::new();
    for plan in plans {
        if !advance(change, &plan).await? {
            report.lost += 1;
            continue;
        }
        report.fired += 1;
        for skip in &plan.skips {
            report.skipped += skip.count;
            extend_skip(change, &plan.task, skip.clone()).await?;
        }
        let (admitted, cause) = admit(change, &plan).await?;
        for run in &plan.runs[admitted.clone()] {
            if insert(change, plan.task.id, &plan.task.spec, *run).await? {
                report.runs += 1;
                pools.insert(plan.task.spec.pool.clone());
            }
        }
        // An overlap policy admits from one end, so what it leaves out is one range.
        let left_out = if admitted.start == 0 { &plan.runs[admitted.end..] } else { &plan.runs[..admitted.start] };
        if let [first, ..] = left_out
            && let [.., last] = left_out
        {
            let count = left_out.len() as u64;
            let skip = SkipRange { from: first.scheduled_for, to: last.scheduled_for, count, cause };
            extend_skip(change, &plan.task, skip).await?;
            report.skipped += count;
        }
    }
    for pool in pools {
        change.signal(SignalKind::PoolQueued, pool.as_str(), 0);
    }
    Ok(report)
}

/// Moves a task on if it still is as it was when the plan was made.
async fn advance(change: &mut Change, plan: &FirePlan) -> DbResult<bool> {
    let advanced = sqlx::query(
        "-- tasks.advance
        UPDATE tasks SET next_run_at = ?1, is_active = ?1 IS NOT NULL
        WHERE id = ?2 AND version = ?3 AND next_run_at = ?4 AND is_active AND deleted_at IS NULL AND parked IS NULL",
    )
    .bind(plan.next_run_at.map(micros))
    .bind(plan.task.id.as_uuid())
    .bind(plan.task.version)
    .bind(micros(plan.task.next_run_at))
    .execute(&mut change.connection)
    .await?;
    Ok(advanced.rows_affected() > 0)
}

/// Applies the overlap policy: which planned runs come into being, and why the others do not.
async fn admit(change: &mut Change, plan: &FirePlan) -> DbResult<(Range<usize>, SkipCause)> {
    let planned = plan.runs.len();
    let spec = &plan.task.spec;
    if planned == 0 || spec.overlap == Overlap::Allow {
        return Ok((0..planned, SkipCause::Overlap));
    }
    let active = runs::active_of_task(change, plan.task.id).await?;
    Ok(match spec.overlap {
        Overlap::Allow => (0..planned, SkipCause::Overlap),
        Overlap::Skip => (0..usize::from(active.is_empty()), SkipCause::Overlap),
        Overlap::Queue => {
            let room = (spec.queue_max as usize).saturating_sub(active.len());
            (0..planned.min(room), SkipCause::Limit)
        }
        Overlap::Replace => {
            runs::cancel_all(change, active).await?;
            (planned - 1..planned, SkipCause::Overlap)
        }
    })
}

async fn insert(change: &mut Change, task_id: TaskId, spec: &TaskSpec, run: PlannedRun) -> DbResult<bool> {
    let scheduled_for = micros(run.scheduled_for);
    let draft = Draft {
        id: RunId::new(),
        task_id,
        spec,
        trigger: if run.is_catch_up { Trigger::CatchUp } else { Trigger::Schedule },
        run_at: scheduled_for,
        scheduled_for: Some(scheduled_for),
        dedupe_key: None,
        input: None,
    };
    runs::insert(change, &draft).await
}

/// Records occurrences that a firing skipped. The newest range of the task grows if this one begins
/// with the occurrence after it and has the same cause.
async fn extend_skip(change: &mut Change, task: &DueTask, skip: SkipRange) -> DbResult<()> {
    let newest: Option<Stored<SkipRange>> = sqlx::query_as(
        "-- tasks.newest_skip
        SELECT * FROM task_skips WHERE task_id = ? ORDER BY from_at DESC LIMIT 1",
    )
    .bind(task.id.as_uuid())
    .fetch_optional(&mut change.connection)
    .await?;
    let next = |last: &SkipRange| task.spec.schedule.as_ref().and_then(|schedule| schedule.next_after(last.to));
    let range = match newest {
        Some(Stored(last)) if last.cause == skip.cause && next(&last) == Some(skip.from) => {
            SkipRange { from: last.from, count: last.count + skip.count, ..skip }
        }
        _ => skip,
    };
    record_skip(change, task.id, &range).await
}

/// Records a range of skipped occurrences over the one that begins with the same, if there is one.
pub(super) async fn record_skip(change: &mut Change, id: TaskId, skip: &SkipRange) -> DbResult<()> {
    sqlx::query(
        "-- tasks.record_skip
        INSERT INTO task_skips (task_id, from_at, to_at, count, cause) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET to_at = excluded.to_at, count = excluded.count",
    )
    .bind(id.as_uuid())
    .bind(micros(skip.from))
    .bind(micros(skip.to))
    .bind(skip.count.cast_signed())
    .bind(skip.cause.as_str())
    .execute(&mut change.connection)
    .await?;
    Ok(())
}
