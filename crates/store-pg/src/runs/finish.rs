//! Endings: what workers report, and the one way by which a run leaves a state and frees its permit.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use switchboard_model::feed::SignalKind;
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{Ending, Finish, RunState, clean_error};
use switchboard_model::span::Span;
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{FinishOutcome, StoreError, StoreResult};
use uuid::Uuid;

use super::recover::promote_keys;
use super::{LockedRun, lock};
use crate::connect::{Database, Tx};
use crate::error::fault;

pub(super) async fn finish(database: &Arc<Database>, finishes: &[Finish]) -> StoreResult<Vec<FinishOutcome>> {
    if finishes.is_empty() {
        return Ok(Vec::new());
    }
    match finish_batch(database, finishes).await {
        Err(error) if !error.is_transient() => finish_one_by_one(database, finishes, &error).await,
        outcome => outcome,
    }
}

/// Finishes each run alone after their batch was refused. A report that the database refuses even then
/// ends its run as failed, with the reason, and its neighbours do not suffer.
///
/// A transient error is returned although earlier runs of the batch may have ended: a repetition finds them
/// fenced and changes nothing.
async fn finish_one_by_one(
    database: &Arc<Database>,
    finishes: &[Finish],
    refusal: &StoreError,
) -> StoreResult<Vec<FinishOutcome>> {
    tracing::error!(
        runs = finishes.len(),
        error = refusal as &dyn std::error::Error,
        "a batch of endings was refused and is written one by one"
    );
    let mut outcomes = Vec::with_capacity(finishes.len());
    for finish in finishes {
        let outcome = match finish_batch(database, std::slice::from_ref(finish)).await {
            Err(error) if !error.is_transient() => {
                let reason = format!("the result could not be stored: {}", root(&error));
                let failed = Finish { ending: Ending::Failed(reason), ..finish.clone() };
                finish_batch(database, &[failed]).await?
            }
            outcome => outcome?,
        };
        outcomes.extend(outcome);
    }
    Ok(outcomes)
}

fn root(error: &StoreError) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

async fn finish_batch(database: &Arc<Database>, finishes: &[Finish]) -> StoreResult<Vec<FinishOutcome>> {
    let mut tx = database.begin().await?;
    let ids: Vec<Uuid> = finishes.iter().map(|finish| finish.id.as_uuid()).collect();
    let mut held: HashMap<Uuid, LockedRun> = lock(&mut tx, &ids).await?.into_iter().map(|run| (run.id, run)).collect();
    let mut changes = Vec::with_capacity(finishes.len());
    let mut outcomes = Vec::with_capacity(finishes.len());
    for finish in finishes {
        let id = finish.id.as_uuid();
        let is_held = held.get(&id).is_some_and(|run| run.state == RunState::Running && run.fence == finish.fence);
        // The first report under the lease is the only one: it takes the run out.
        match if is_held { held.remove(&id) } else { None } {
            None => outcomes.push(FinishOutcome::Fenced),
            Some(run) => {
                let change = Change::by(&run, &finish.ending);
                outcomes.push(FinishOutcome::Accepted(change.state));
                changes.push(change);
            }
        }
    }
    settle(&mut tx, &changes).await?;
    fail_point::hit(FailPoint::BeforeFinishCommit);
    tx.commit().await?;
    fail_point::hit(FailPoint::AfterFinishCommit);
    Ok(outcomes)
}

/// What a locked run becomes.
pub(super) struct Change {
    pub(super) id: Uuid,
    pub(super) state: RunState,
    pub(super) attempt: i32,
    /// How long it is not ready; it stays ready since when it was if absent.
    pub(super) delay: Option<Span>,
    pub(super) is_reclaimed: bool,
    pub(super) note: Option<Note>,
    /// The hold that it gives back.
    pub(super) freed: Option<(String, Uuid)>,
}

/// What is remembered of an attempt.
pub(super) struct Note {
    pub(super) run: Uuid,
    pub(super) result: Option<JsonText>,
    pub(super) error: Option<String>,
}

impl Change {
    /// Moves a run to a state, and nothing else.
    pub(super) fn to(id: Uuid, state: RunState, attempt: i32) -> Self {
        Self { id, state, attempt, delay: None, is_reclaimed: false, note: None, freed: None }
    }

    /// Moves a running run, freeing what it holds no longer.
    pub(super) fn from_running(run: &LockedRun, state: RunState) -> Self {
        let freed = run.key_freed_by(state).map(|key| (key.to_owned(), run.id));
        Self { freed, ..Self::to(run.id, state, run.attempt) }
    }

    fn by(run: &LockedRun, ending: &Ending) -> Self {
        let state = match ending {
            Ending::Succeeded(_) => RunState::Succeeded,
            Ending::Failed(_) => RunState::Failed,
            Ending::Cancelled => RunState::Cancelled,
            Ending::Retry { .. } | Ending::Released if run.is_to_be_cancelled => RunState::Cancelled,
            Ending::Retry { .. } if run.attempt < run.max_attempts => RunState::Scheduled,
            Ending::Retry { .. } => RunState::Dead,
            Ending::Released => RunState::Queued,
        };
        let (result, error) = match ending {
            Ending::Succeeded(result) => (result.clone(), None),
            Ending::Failed(error) | Ending::Retry { error, .. } => (None, Some(clean_error(error))),
            Ending::Cancelled | Ending::Released => (None, None),
        };
        // The error of an earlier attempt does not outlive a success.
        let is_worth_a_note = result.is_some() || error.is_some() || (state == RunState::Succeeded && run.attempt > 1);
        let delay = match ending {
            Ending::Retry { delay, .. } if state == RunState::Scheduled => Some(*delay),
            _ => None,
        };
        let attempt = if state == RunState::Queued { run.attempt - 1 } else { run.attempt };
        let note = is_worth_a_note.then_some(Note { run: run.id, result, error });
        Self { attempt, delay, note, ..Self::from_running(run, state) }
    }
}

/// Applies changes to locked runs: locks the permit keys that they free in order, moves the runs, and
/// promotes those that waited for the keys.
pub(super) async fn settle(tx: &mut Tx, changes: &[Change]) -> StoreResult<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let freed: Vec<&(String, Uuid)> = changes.iter().filter_map(|change| change.freed.as_ref()).collect();
    let keys: Vec<&str> = freed.iter().map(|(key, _)| key.as_str()).collect::<BTreeSet<_>>().into_iter().collect();
    if !keys.is_empty() {
        sqlx::query(
            "-- runs.lock_keys
             SELECT FROM switchboard.run_keys WHERE key = ANY ($1) ORDER BY key FOR UPDATE",
        )
        .bind(&keys)
        .execute(&mut **tx)
        .await
        .map_err(fault)?;
    }
    let pools = move_runs(tx, changes, &freed).await?;
    for pool in &pools {
        tx.signal(SignalKind::PoolQueued, pool);
    }
    if !keys.is_empty() {
        promote_keys(tx, &keys).await?;
    }
    Ok(())
}

/// Writes the changes; returns the pools that have new queued runs.
async fn move_runs(tx: &mut Tx, changes: &[Change], freed: &[&(String, Uuid)]) -> StoreResult<Vec<String>> {
    let notes: Vec<&Note> = changes.iter().filter_map(|change| change.note.as_ref()).collect();
    sqlx::query_scalar(
        "-- runs.settle
         WITH moved AS (
             UPDATE switchboard.runs AS run
             SET state = given.state, attempt = given.attempt,
                 run_at = coalesce(coalesce($11, clock_timestamp()) + given.delay_ms * interval '1 millisecond', run.run_at),
                 is_reclaimed = run.is_reclaimed OR given.is_reclaimed,
                 lease_until = NULL, deadline_at = NULL,
                 finished_at = CASE WHEN given.state IN ('succeeded', 'failed', 'cancelled', 'dead')
                                    THEN clock_timestamp() END
             FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::bigint[], $5::boolean[])
                 AS given (id, state, attempt, delay_ms, is_reclaimed)
             WHERE run.id = given.id
             RETURNING run.state, run.pool
         ),
         noted AS (
             INSERT INTO switchboard.run_details (run_id, result, error)
             SELECT * FROM unnest($6::uuid[], $7::text[], $8::text[])
             ON CONFLICT (run_id) DO UPDATE SET result = excluded.result, error = excluded.error
         ),
         freed AS (
             DELETE FROM switchboard.run_holds AS hold
             USING unnest($9::text[], $10::uuid[]) AS given (key, run_id)
             WHERE hold.key = given.key AND hold.run_id = given.run_id
         )
         SELECT DISTINCT pool FROM moved WHERE state = 'queued'",
    )
    .bind(changes.iter().map(|change| change.id).collect::<Vec<_>>())
    .bind(changes.iter().map(|change| change.state.as_str()).collect::<Vec<_>>())
    .bind(changes.iter().map(|change| change.attempt).collect::<Vec<_>>())
    .bind(changes.iter().map(|change| change.delay.map(Span::as_millis_i64)).collect::<Vec<_>>())
    .bind(changes.iter().map(|change| change.is_reclaimed).collect::<Vec<_>>())
    .bind(notes.iter().map(|note| note.run).collect::<Vec<_>>())
    .bind(notes.iter().map(|note| note.result.as_ref().map(JsonText::as_str)).collect::<Vec<_>>())
    .bind(notes.iter().map(|note| note.error.as_deref()).collect::<Vec<_>>())
    .bind(freed.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>())
    .bind(freed.iter().map(|(_, run)| *run).collect::<Vec<_>>())
    .bind(tx.set_time())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}
