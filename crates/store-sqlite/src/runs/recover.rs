//! Upkeep of runs: expired leases are taken back, old history is deleted.

use switchboard_model::run::RunState;
use switchboard_model::span::Span;
use switchboard_store_api::RecoverReport;

use super::finish::{Current, Departure, depart, record};
use super::permits::Freed;
use crate::error::DbResult;
use crate::rows::earlier;
use crate::writer::Change;

pub(super) async fn recover(change: &mut Change, limit: u32) -> DbResult<RecoverReport> {
    let expired: Vec<Current> = sqlx::query_as(
        "-- runs.expired
        SELECT * FROM runs WHERE state = 'running' AND lease_until <= ? ORDER BY lease_until LIMIT ?",
    )
    .bind(change.now)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    let mut report = RecoverReport::default();
    let mut freed = Freed::default();
    for run in expired {
        let (state, error) = verdict(&run, change.now, &mut report);
        if let Some(error) = error {
            record(change, run.id, None, Some(error)).await?;
        }
        let departure = Departure { is_reclaimed: true, ..Departure::to(&run, state) };
        depart(change, &run, departure, &mut freed).await?;
    }
    freed.promote(change).await?;
    Ok(report)
}

/// Decides on a run whose holder is gone, and counts it under the reason that decided.
fn verdict(run: &Current, now: i64, report: &mut RecoverReport) -> (RunState, Option<&'static str>) {
    if run.is_cancel_requested {
        report.cancelled += 1;
        return (RunState::Cancelled, None);
    }
    let state = if run.has_attempts_left() { RunState::Queued } else { RunState::Dead };
    if run.deadline_at.is_some_and(|deadline| deadline <= now) {
        report.timed_out += 1;
        return (state, Some("the attempt timed out and its worker did not report it"));
    }
    match state {
        RunState::Queued => report.requeued += 1,
        _ => report.dead += 1,
    }
    (state, Some("the worker lost its lease"))
}

pub(super) async fn sweep(change: &mut Change, age: Span, limit: u32) -> DbResult<u64> {
    let before = earlier(change.now, age);
    sqlx::query(
        "-- runs.sweep_details
        DELETE FROM run_details WHERE run_id IN
            (SELECT id FROM runs WHERE finished_at < ? ORDER BY finished_at, id LIMIT ?)",
    )
    .bind(before)
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    let runs = sqlx::query(
        "-- runs.sweep
        DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE finished_at < ? ORDER BY finished_at, id LIMIT ?)",
    )
    .bind(before)
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    let skips = sqlx::query(
        "-- tasks.sweep_skips
        DELETE FROM task_skips WHERE rowid IN (SELECT rowid FROM task_skips WHERE to_at < ? ORDER BY to_at LIMIT ?)",
    )
    .bind(before)
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    Ok(runs.rows_affected() + skips.rows_affected())
}
