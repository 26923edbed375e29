//! Firing: due tasks are read without a lock, plans are applied in one command of the writer.

use std::collections::BTreeSet;

use sqlx::SqlitePool;
use switchboard_model::feed::SignalKind;
use switchboard_model::fire::{DueTask, FirePlan, PlannedRun};
use switchboard_model::ids::RunId;
use switchboard_model::run::Trigger;
use switchboard_model::task::Overlap;
use switchboard_store_api::{DueTasks, FireReport, StoreError};

use super::repair::Unreadable;
use super::skips;
use crate::error::DbResult;
use crate::rows::{TaskRow, instant, micros};
use crate::runs::{self, Draft};
use crate::writer::Change;

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
            Err(error) => unreadable.push(Unreadable { row, error: StoreError::from(error).to_string() }),
        }
    }
    Ok((due, unreadable))
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
        let DueTask { id, spec, .. } = &plan.task;
        let active = match spec.overlap {
            Overlap::Allow => vec![],
            Overlap::Skip | Overlap::Queue | Overlap::Replace => runs::active_of_task(change, *id).await?,
        };
        let (admitted, left_out) = plan.admit(active.len() as u64);
        if spec.overlap == Overlap::Replace && !admitted.is_empty() {
            runs::cancel_all(change, active).await?;
        }
        for run in admitted {
            if insert(change, &plan.task, *run).await? {
                report.runs += 1;
                pools.insert(spec.pool.clone());
            }
        }
        let skips: Vec<_> = plan.skips.iter().cloned().chain(left_out).map(|range| plan.stored(range)).collect();
        report.skipped += skips.iter().map(|skip| skip.range.count).sum::<u64>();
        skips::record(change, *id, skips).await?;
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

async fn insert(change: &mut Change, task: &DueTask, run: PlannedRun) -> DbResult<bool> {
    let scheduled_for = micros(run.scheduled_for);
    let draft = Draft {
        id: RunId::new(),
        task_id: task.id,
        spec: &task.spec,
        trigger: if run.is_catch_up { Trigger::CatchUp } else { Trigger::Schedule },
        run_at: scheduled_for,
        scheduled_for: Some(scheduled_for),
        dedupe_key: None,
        input: None,
    };
    runs::insert(change, &draft).await
}
