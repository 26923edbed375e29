//! Cancelling: a run that has not started ends at once, the holder of a running one is asked to stop.

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::RunId;
use switchboard_model::run::RunState;
use switchboard_model::run_rule::Step;
use switchboard_store_api::{CancelOutcome, WriteContext};

use super::finish::{Current, depart};
use super::permits::Freed;
use crate::context;
use crate::error::DbResult;
use crate::writer::Change;

pub(super) async fn cancel(change: &mut Change, context: WriteContext, id: RunId) -> DbResult<CancelOutcome> {
    let mut freed = Freed::default();
    let outcome = cancel_one(change, id, &mut freed).await?;
    freed.promote(change).await?;
    if matches!(outcome, CancelOutcome::Cancelled | CancelOutcome::Requested) {
        context::audit(change, &context).await?;
    }
    Ok(outcome)
}

/// Cancels every run that a newer one replaces.
pub(crate) async fn cancel_all(change: &mut Change, ids: Vec<RunId>) -> DbResult<()> {
    let mut freed = Freed::default();
    for id in ids {
        cancel_one(change, id, &mut freed).await?;
    }
    freed.promote(change).await
}

async fn cancel_one(change: &mut Change, id: RunId, freed: &mut Freed) -> DbResult<CancelOutcome> {
    let Some(run) = Current::read(change, id).await? else { return Ok(CancelOutcome::NotFound) };
    if run.state.is_terminal() {
        return Ok(CancelOutcome::Ended(run.state));
    }
    if run.state != RunState::Running {
        depart(change, &run, &Step::to(RunState::Cancelled, run.attempt), freed).await?;
        return Ok(CancelOutcome::Cancelled);
    }
    if !run.is_cancel_requested {
        sqlx::query(
            "-- runs.request_cancel
            UPDATE runs SET cancel_requested_at = ? WHERE id = ?",
        )
        .bind(change.now)
        .bind(id.as_uuid())
        .execute(&mut change.connection)
        .await?;
        change.signal(SignalKind::RunCancelled, id.to_string(), 0);
    }
    Ok(CancelOutcome::Requested)
}
