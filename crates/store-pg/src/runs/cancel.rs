//! Cancelling: at once before a run starts, an intent on the row afterwards.

use std::collections::HashMap;
use std::sync::Arc;

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::RunId;
use switchboard_model::run::RunState;
use switchboard_model::run_rule::{Note, Step};
use switchboard_store_api::{CancelOutcome, StoreResult, WriteContext};
use uuid::Uuid;

use super::finish::{Change, settle};
use super::{LockedRow, LockedRun, lock};
use crate::connect::{Database, Tx};
use crate::context::audit;
use crate::error::fault;

pub(super) async fn cancel(database: &Arc<Database>, context: &WriteContext, id: RunId) -> StoreResult<CancelOutcome> {
    let mut tx = database.begin().await?;
    let locked = lock(&mut tx, &[id.as_uuid()]).await?;
    let outcome = match locked.first().map(|run| run.state) {
        None => return tx.undo(CancelOutcome::NotFound).await,
        Some(state) if state.is_terminal() => return tx.undo(CancelOutcome::Ended(state)).await,
        Some(RunState::Running) => CancelOutcome::Requested,
        Some(_) => CancelOutcome::Cancelled,
    };
    cancel_locked(&mut tx, locked).await?;
    audit(&mut tx, context).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// Cancels the active runs of tasks, under the locks on the tasks.
pub(crate) async fn cancel_active(tx: &mut Tx, tasks: &[Uuid]) -> StoreResult<()> {
    if tasks.is_empty() {
        return Ok(());
    }
    let rows: Vec<LockedRow> = sqlx::query_as(
        "-- runs.lock_active
         SELECT id, state, fence, attempt, max_attempts, key,
                cancel_requested_at IS NOT NULL AS is_to_be_cancelled, false AS is_past_deadline
         FROM switchboard.runs
         WHERE task_id = ANY ($1) AND state IN ('scheduled', 'queued', 'waiting', 'running')
         ORDER BY id FOR UPDATE",
    )
    .bind(tasks)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let runs = rows.into_iter().map(LockedRun::try_from).collect::<StoreResult<Vec<_>>>()?;
    cancel_locked(tx, runs).await
}

/// Cancels locked runs that have not ended.
async fn cancel_locked(tx: &mut Tx, runs: Vec<LockedRun>) -> StoreResult<()> {
    let (running, idle): (Vec<LockedRun>, Vec<LockedRun>) =
        runs.into_iter().partition(|run| run.state == RunState::Running);
    request(tx, &running).await?;
    cancel_idle(tx, &idle, None).await
}

/// Cancels locked runs that are not leased, for the reason in `note` if there is one.
pub(super) async fn cancel_idle(tx: &mut Tx, idle: &[LockedRun], note: Option<&Note>) -> StoreResult<()> {
    if idle.is_empty() {
        return Ok(());
    }
    // A run that waits for its next attempt may hold a key; the others touch none.
    let holds: Vec<(Uuid, String)> = sqlx::query_as(
        "-- runs.holds_of
         SELECT run_id, key FROM switchboard.run_holds WHERE run_id = ANY ($1)",
    )
    .bind(idle.iter().map(|run| run.id).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let mut holds: HashMap<Uuid, String> = holds.into_iter().collect();
    let changes: Vec<Change> = idle
        .iter()
        .map(|run| {
            let step = Step { note: note.cloned(), ..Step::to(RunState::Cancelled, run.standing.attempt) };
            Change { id: run.id, step, freed: holds.remove(&run.id) }
        })
        .collect();
    settle(tx, &changes).await
}

/// Asks the holders of running runs to stop; the first request counts.
async fn request(tx: &mut Tx, running: &[LockedRun]) -> StoreResult<()> {
    let ids: Vec<Uuid> = running.iter().filter(|run| !run.standing.is_to_be_cancelled).map(|run| run.id).collect();
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "-- runs.request_cancel
         UPDATE switchboard.runs SET cancel_requested_at = clock_timestamp() WHERE id = ANY ($1)",
    )
    .bind(&ids)
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    for id in &ids {
        tx.signal(SignalKind::RunCancelled, id);
    }
    Ok(())
}
