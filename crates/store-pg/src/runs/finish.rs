//! Endings: what workers report, and the one way by which a run leaves a state and frees its permit.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use switchboard_model::feed::SignalKind;
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{Ending, Finish, RunState};
use switchboard_model::run_rule::{Note, Report, Step, final_state, frees_key, note_of};
use switchboard_model::span::Span;
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{FinishOutcome, StoreError, StoreResult};
use uuid::Uuid;

use super::permits::promote_keys;
use super::{LockedRow, LockedRun, room};
use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::rows::int;

/// Records endings. A batch that the database refuses is halved until the bad report is found, so that its neighbours
/// do not suffer; that one ends its run as failed, with the reason.
///
/// A transient error is returned although earlier runs of the batch may have ended: a repetition finds that.
pub(super) async fn finish(database: &Arc<Database>, finishes: &[Finish]) -> StoreResult<Vec<FinishOutcome>> {
    let mut outcomes = Vec::with_capacity(finishes.len());
    let mut pending = vec![finishes];
    while let Some(batch) = pending.pop() {
        match (finish_batch(database, batch).await, batch) {
            (Ok(ended), _) => outcomes.extend(ended),
            (Err(error), _) if error.is_transient() => return Err(error),
            (Err(error), [refused]) => {
                tracing::error!(run = %refused.id, error = &error as &dyn std::error::Error, "an ending was refused");
                let reason = format!("the result could not be stored: {}", root(&error));
                let failed = Finish { ending: Ending::Failed(reason), ..refused.clone() };
                outcomes.extend(finish_batch(database, &[failed]).await?);
            }
            (Err(_), batch) => {
                let (first, second) = batch.split_at(batch.len() / 2);
                pending.extend([second, first]);
            }
        }
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
    if finishes.is_empty() {
        return Ok(Vec::new());
    }
    let mut tx = database.begin_planned().await?;
    let mut runs = end(&mut tx, finishes).await?;
    let mut changes = Vec::new();
    let mut left = Vec::new();
    let mut outcomes = Vec::with_capacity(finishes.len());
    for finish in finishes {
        let Some(EndedRun { run, ended, is_limited }) = runs.get_mut(&finish.id.as_uuid()) else {
            outcomes.push(FinishOutcome::Fenced);
            continue;
        };
        outcomes.push(match Report::judge(finish.fence, run.fence, run.state) {
            Report::Stale => FinishOutcome::Fenced,
            Report::Repeated => FinishOutcome::Repeated(run.state),
            Report::Current => {
                if *is_limited {
                    left.push(run.id);
                }
                // The first report under the lease is the one that counts; those after it repeat it.
                run.state = ended.take().unwrap_or_else(|| {
                    let change = Change::of(run, run.standing.after(&finish.ending));
                    let state = change.step.state;
                    changes.push(change);
                    state
                });
                FinishOutcome::Accepted(run.state)
            }
        });
    }
    settle(&mut tx, &changes).await?;
    room::announce(&mut tx, &left).await?;
    fail_point::hit(FailPoint::BeforeFinishCommit);
    tx.commit().await?;
    fail_point::hit(FailPoint::AfterFinishCommit);
    Ok(outcomes)
}

/// A run under its lock as it was, the state in which it has ended already, and whether its pool has a maximum.
struct EndedRun {
    run: LockedRun,
    ended: Option<RunState>,
    is_limited: bool,
}

#[derive(sqlx::FromRow)]
struct EndedRow {
    #[sqlx(flatten)]
    run: LockedRow,
    ended: bool,
    is_limited: bool,
}

/// Locks the runs in the order of their ids, and ends at once those that hold no key by a report that is final
/// whatever the run is like.
async fn end(tx: &mut Tx, finishes: &[Finish]) -> StoreResult<HashMap<Uuid, EndedRun>> {
    let mut seen = HashSet::new();
    let last: HashMap<(Uuid, i64), (RunState, Option<Note>)> = finishes
        .iter()
        .filter(|finish| seen.insert((finish.id, finish.fence)))
        .filter_map(|finish| {
            let state = final_state(&finish.ending)?;
            Some(((finish.id.as_uuid(), finish.fence.0), (state, note_of(&finish.ending))))
        })
        .collect();
    let (leases, ends): (Vec<_>, Vec<_>) = last.iter().unzip();
    let notes = || ends.iter().map(|(_, note)| note.as_ref());
    // Locking waits; a row is decided on as it is then, and by the time as it is then.
    let rows: Vec<EndedRow> = sqlx::query_as(
        "-- runs.finish
         WITH locked AS MATERIALIZED (
             SELECT id, state, fence, attempt, max_attempts, key, pool,
                    cancel_requested_at IS NOT NULL AS is_to_be_cancelled,
                    coalesce(deadline_at <= clock_timestamp(), false) AS is_past_deadline
             FROM switchboard.runs WHERE id = ANY ($1) ORDER BY id FOR UPDATE
         ),
         moment AS MATERIALIZED (SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM locked) AS waited),
         ended AS (
             UPDATE switchboard.runs AS run
             SET state = given.state, finished_at = moment.now,
                 prune_at = moment.now + run.keep_ms * interval '1 millisecond',
                 lease_until = NULL, deadline_at = NULL
             FROM moment CROSS JOIN unnest($2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::text[])
                 AS given (id, fence, state, result, error)
             WHERE run.id = ANY (ARRAY (SELECT id FROM locked WHERE state = 'running' AND key IS NULL))
               AND run.id = given.id AND run.fence = given.fence
             RETURNING run.id, run.state, run.attempt, given.result, given.error
         ),
         noted AS (
             INSERT INTO switchboard.run_details (run_id, result, error)
             SELECT id, result, error FROM ended
             WHERE result IS NOT NULL OR error IS NOT NULL OR (state = 'succeeded' AND attempt > 1)
             ON CONFLICT (run_id) DO UPDATE SET result = excluded.result, error = excluded.error
         )
         SELECT locked.*, ended.id IS NOT NULL AS ended,
                (fleet.value -> 'pools' -> locked.pool ->> 'max_running') IS NOT NULL AS is_limited
         FROM locked
         LEFT JOIN ended ON ended.id = locked.id
         LEFT JOIN (SELECT value::jsonb AS value FROM switchboard.settings WHERE name = 'fleet') AS fleet ON true",
    )
    .bind(finishes.iter().map(|finish| finish.id.as_uuid()).collect::<Vec<_>>())
    .bind(leases.iter().map(|(id, _)| *id).collect::<Vec<_>>())
    .bind(leases.iter().map(|(_, fence)| *fence).collect::<Vec<_>>())
    .bind(ends.iter().map(|(state, _)| state.as_str()).collect::<Vec<_>>())
    .bind(notes().map(|note| note?.result.as_ref().map(JsonText::as_str)).collect::<Vec<_>>())
    .bind(notes().map(|note| note?.error.as_deref()).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let mut runs = HashMap::with_capacity(rows.len());
    for EndedRow { run, ended, is_limited } in rows {
        let run = LockedRun::try_from(run)?;
        let state = last.get(&(run.id, run.fence.0)).map(|(state, _)| *state);
        runs.insert(run.id, EndedRun { ended: state.filter(|_| ended), run, is_limited });
    }
    Ok(runs)
}

/// What a locked run becomes.
pub(super) struct Change {
    pub(super) id: Uuid,
    pub(super) step: Step,
    /// The key whose hold it gives back.
    pub(super) freed: Option<String>,
}

impl Change {
    /// Moves a run that may hold its key, freeing what it holds no longer.
    pub(super) fn of(run: &LockedRun, step: Step) -> Self {
        let freed = run.key.clone().filter(|key| frees_key(key, step.state));
        Self { id: run.id, step, freed }
    }
}

/// Applies changes to locked runs: locks the permit keys that they free in order, moves the runs, and
/// promotes those that waited for the keys.
pub(super) async fn settle(tx: &mut Tx, changes: &[Change]) -> StoreResult<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let keys: BTreeSet<&str> = changes.iter().filter_map(|change| change.freed.as_deref()).collect();
    let keys: Vec<&str> = keys.into_iter().collect();
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
    for pool in move_runs(tx, changes).await? {
        tx.signal(SignalKind::PoolQueued, &pool);
    }
    promote_keys(tx, &keys).await?;
    Ok(())
}

/// Writes the changes; returns the pools that have new queued runs.
async fn move_runs(tx: &mut Tx, changes: &[Change]) -> StoreResult<Vec<String>> {
    let notes: Vec<(Uuid, &Note)> =
        changes.iter().filter_map(|change| Some((change.id, change.step.note.as_ref()?))).collect();
    let freed: Vec<(Uuid, &str)> =
        changes.iter().filter_map(|change| Some((change.id, change.freed.as_deref()?))).collect();
    sqlx::query_scalar(
        "-- runs.settle
         WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
         given AS (
             SELECT *, CASE WHEN state IN ('succeeded', 'failed', 'cancelled', 'dead') THEN moment.now END AS ended_at,
                    coalesce($11, moment.now) + delay_ms * interval '1 millisecond' AS ready_at
             FROM moment CROSS JOIN unnest($1::uuid[], $2::text[], $3::integer[], $4::bigint[], $5::boolean[])
                 AS change (id, state, attempt, delay_ms, is_reclaimed)
         ),
         moved AS (
             UPDATE switchboard.runs AS run
             SET state = given.state, attempt = given.attempt, run_at = coalesce(given.ready_at, run.run_at),
                 is_reclaimed = run.is_reclaimed OR given.is_reclaimed,
                 fence = CASE WHEN given.is_reclaimed THEN nextval('switchboard.fences') ELSE run.fence END,
                 is_paced = false, lease_until = NULL, deadline_at = NULL, finished_at = given.ended_at,
                 prune_at = given.ended_at + run.keep_ms * interval '1 millisecond'
             FROM given
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
    .bind(changes.iter().map(|change| change.step.state.as_str()).collect::<Vec<_>>())
    .bind(changes.iter().map(|change| int(change.step.attempt)).collect::<Vec<_>>())
    .bind(changes.iter().map(|change| change.step.delay.map(Span::as_millis_i64)).collect::<Vec<_>>())
    .bind(changes.iter().map(|change| change.step.is_reclaimed).collect::<Vec<_>>())
    .bind(notes.iter().map(|(run, _)| *run).collect::<Vec<_>>())
    .bind(notes.iter().map(|(_, note)| note.result.as_ref().map(JsonText::as_str)).collect::<Vec<_>>())
    .bind(notes.iter().map(|(_, note)| note.error.as_deref()).collect::<Vec<_>>())
    .bind(freed.iter().map(|(_, key)| *key).collect::<Vec<_>>())
    .bind(freed.iter().map(|(run, _)| *run).collect::<Vec<_>>())
    .bind(tx.set_time())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}
