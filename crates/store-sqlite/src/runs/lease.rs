//! Leases: who executes what until when.

use std::collections::BTreeSet;

use sqlx::FromRow;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::{Fence, RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::limit::Rate;
use switchboard_model::pace::{Line, Paces};
use switchboard_model::run::{LeasedRun, RunState};
use switchboard_model::run_rule::{Note, Step};
use switchboard_model::setting::FleetSettings;
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_store_api::{LeaseBatch, LeaseRequest, RenewOutcome, Renewal, StoreError, WorkerKind};
use uuid::Uuid;

use super::finish::{Current, depart};
use super::permits::{Freed, Permit, permit, take};
use super::request;
use crate::error::DbResult;
use crate::rows::{instant, later};
use crate::writer::Change;
use crate::{limits, settings};

/// A ready run with all that its worker needs, or one that a repeated request holds.
#[derive(FromRow)]
pub(super) struct Candidate {
    pub(super) id: Uuid,
    task_id: Uuid,
    name: String,
    spec: String,
    pool: String,
    priority: i16,
    run_at: i64,
    scheduled_for: Option<i64>,
    /// This lease included.
    attempt: u32,
    max_attempts: u32,
    is_reclaimed: bool,
    retries: u32,
    timeout_ms: Option<i64>,
    key: Option<String>,
    key_max: Option<u32>,
    pace_key: Option<String>,
    pace: Option<String>,
    /// Whether the first run that waits for the same rate limit in the same pool goes before it; NULL if none waits.
    goes_first: Option<bool>,
    input: Option<String>,
    pub(super) fence: i64,
    pub(super) started_at: Option<i64>,
}

pub(super) async fn lease(change: &mut Change, request: LeaseRequest) -> DbResult<LeaseBatch> {
    let mut batch = LeaseBatch::default();
    let mut freed = Freed::default();
    let held = request::repeat(change, &request).await?;
    if !held.is_empty() {
        hand_out(change, &request, held, (&mut batch, &mut freed)).await?;
        freed.promote(change).await?;
        return Ok(batch);
    }
    let fleet = settings::fleet(&mut change.connection).await?.value;
    let candidates = candidates(change, &request, &fleet, &mut batch).await?;
    let mut paces = read_paces(change, &candidates).await?;
    let mut starting = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        if place(change, &candidate, &mut paces, &mut freed).await? {
            starting.push(candidate);
        } else {
            batch.again = true;
        }
    }
    limits::put(change, paces.taken()).await?;
    batch.paced_for = paces.wait();
    start(change, &request, &mut starting).await?;
    hand_out(change, &request, starting, (&mut batch, &mut freed)).await?;
    // A permit that a run did not take for its rate limit is for the next one.
    freed.promote(change).await?;
    Ok(batch)
}

/// Reads the first ready runs of the asked pools, by priority and due time over all of them, and no more of a pool
/// than its maximum leaves.
async fn candidates(
    change: &mut Change,
    request: &LeaseRequest,
    fleet: &FleetSettings,
    batch: &mut LeaseBatch,
) -> DbResult<Vec<Candidate>> {
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut rooms = Vec::new();
    let is_open = |pool: &&PoolName| !fleet.pause_all || pool.as_str() == PoolName::SYSTEM;
    for pool in request.pools.iter().filter(is_open).collect::<BTreeSet<_>>() {
        let room = room(change, fleet, pool).await?;
        // One statement a pool, so that each follows the index and reads no row too many.
        let of_pool: Vec<Candidate> = sqlx::query_as(
            "-- runs.lease_candidates
            SELECT runs.id, task_id, name, spec, pool, priority, run_at, scheduled_for, attempt + 1 AS attempt,
                max_attempts, is_reclaimed, retries, timeout_ms, key, key_max, pace_key, pace, input, fence, started_at,
                CASE WHEN pace_key IS NOT NULL THEN (
                    SELECT (first.priority, first.run_at, first.id) < (runs.priority, runs.run_at, runs.id)
                    FROM runs AS first
                    WHERE first.state = 'waiting' AND first.is_paced AND first.pace_key = runs.pace_key
                        AND first.pool = runs.pool AND first.is_pull = runs.is_pull
                    ORDER BY first.priority, first.run_at, first.id LIMIT 1) END AS goes_first
            FROM runs JOIN tasks ON tasks.id = task_id LEFT JOIN run_details ON run_id = runs.id
            WHERE state = 'queued' AND pool = ?1 AND is_pull = ?2 AND (start_by IS NULL OR start_by > ?3)
            ORDER BY priority, run_at, runs.id LIMIT ?4",
        )
        .bind(pool.as_str())
        .bind(request.kind == WorkerKind::External)
        .bind(change.schedule_now)
        .bind(room.map_or(request.limit, |room| room.min(request.limit)))
        .fetch_all(&mut change.connection)
        .await?;
        candidates.extend(of_pool);
        rooms.extend(room.map(|room| (pool, room)));
    }
    candidates.sort_by_key(|candidate| (candidate.priority, candidate.run_at, candidate.id));
    candidates.truncate(request.limit as usize);
    batch.is_full = rooms.iter().any(|(pool, room)| {
        let is_paused = fleet.pools.get(pool).and_then(|pool| pool.max_running) == Some(0);
        !is_paused && candidates.iter().filter(|run| run.pool == pool.as_str()).count() >= *room as usize
    });
    Ok(candidates)
}

/// Returns how many runs of a pool may still start; `None` means that it has no maximum.
async fn room(change: &mut Change, fleet: &FleetSettings, pool: &PoolName) -> DbResult<Option<u32>> {
    let Some(max) = fleet.pools.get(pool).and_then(|pool| pool.max_running) else { return Ok(None) };
    let running: u32 = sqlx::query_scalar(
        "-- runs.running_of_pool
        SELECT COUNT(*) FROM runs WHERE state = 'running' AND pool = ?",
    )
    .bind(pool.as_str())
    .fetch_one(&mut change.connection)
    .await?;
    Ok(Some(max.saturating_sub(running)))
}

/// Reads the rate limits of the candidates.
async fn read_paces(change: &mut Change, candidates: &[Candidate]) -> DbResult<Paces> {
    let keys: BTreeSet<&str> = candidates.iter().filter_map(|candidate| candidate.pace_key.as_deref()).collect();
    let mut known = Vec::with_capacity(keys.len());
    for key in keys {
        known.extend(limits::find(change, key).await?.map(|tat| (key.to_owned(), tat)));
    }
    Ok(Paces::new(change.now, known))
}

/// Takes the permit and the unit that a run needs, or lets it wait. The permit comes first, so that no unit is taken
/// for a run that does not start.
async fn place(change: &mut Change, run: &Candidate, paces: &mut Paces, freed: &mut Freed) -> DbResult<bool> {
    let id = RunId::from_uuid(run.id);
    let wanted = run.key.as_deref().zip(run.key_max);
    let found = match wanted {
        None => Permit::Held,
        Some((key, max)) => permit(change, id, key, max).await?,
    };
    if found == Permit::Taken {
        wait(change, id, Wanted::Permit).await?;
        return Ok(false);
    }
    // A rate that cannot be read holds nothing back: handing the run out ends it.
    let rate = run.pace.as_deref().and_then(|pace| pace.parse::<Rate>().ok());
    if let (Some(key), Some(rate)) = (&run.pace_key, rate)
        && !paces.take(key, &rate, Line::of(run.goes_first))
    {
        wait(change, id, Wanted::Unit).await?;
        if let (Permit::Free, Some((key, _))) = (found, wanted) {
            freed.note_key(key);
        }
        return Ok(false);
    }
    if let (Permit::Free, Some((key, _))) = (found, wanted) {
        take(change, id, key).await?;
    }
    Ok(true)
}

/// What a run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// A permit of its key.
    Permit,
    /// A unit of its rate limit.
    Unit,
}

async fn wait(change: &mut Change, id: RunId, wanted: Wanted) -> DbResult<()> {
    sqlx::query(
        "-- runs.wait
        UPDATE runs SET state = 'waiting', is_paced = ?2 WHERE id = ?1",
    )
    .bind(id.as_uuid())
    .bind(wanted == Wanted::Unit)
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

/// Takes fences and returns the first.
pub(crate) async fn next_fences(change: &mut Change, count: usize) -> DbResult<i64> {
    let first = sqlx::query_scalar(
        "-- fences.next
        UPDATE fences SET last = last + ?1 RETURNING last - ?1 + 1",
    )
    .bind(count as i64)
    .fetch_one(&mut change.connection)
    .await?;
    Ok(first)
}

/// Writes the leases into the rows.
async fn start(change: &mut Change, request: &LeaseRequest, runs: &mut [Candidate]) -> DbResult<()> {
    if runs.is_empty() {
        return Ok(());
    }
    let first = next_fences(change, runs.len()).await?;
    for (run, fence) in runs.iter_mut().zip(first..) {
        (run.fence, run.started_at) = (fence, Some(change.now));
    }
    let ids: Vec<Uuid> = runs.iter().map(|run| run.id).collect();
    // Cut far beyond the longest timeout, because a sum beyond 64 bits would not be a whole number any more.
    sqlx::query(
        "-- runs.lease
        UPDATE runs SET state = 'running', attempt = attempt + 1, fence = ?2 + given.key, leased_by = ?3,
            lease_until = MIN(?4, CASE WHEN is_pull THEN COALESCE(?5 + 1000 * MIN(timeout_ms, 9000000000000000), ?4) ELSE ?4 END),
            started_at = ?5, deadline_at = ?5 + 1000 * MIN(timeout_ms, 9000000000000000),
            start_by = NULL, lease_request = ?6
        FROM json_each(?1) AS given WHERE runs.id = unhex(given.value, '-')",
    )
    .bind(serde_json::to_string(&ids)?)
    .bind(first)
    .bind(request.holder.as_str())
    .bind(later(change.now, request.lease))
    .bind(change.now)
    .bind(request.request)
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

/// Adds leased runs to the batch; one that cannot be read ends here.
async fn hand_out(
    change: &mut Change,
    request: &LeaseRequest,
    runs: Vec<Candidate>,
    (batch, freed): (&mut LeaseBatch, &mut Freed),
) -> DbResult<()> {
    let until = later(change.now, request.lease);
    for run in runs {
        match leased(&run, until) {
            Ok(run) => batch.runs.push(run),
            Err(error) => {
                fail(change, RunId::from_uuid(run.id), &StoreError::from(error), freed).await?;
                batch.again = true;
            }
        }
    }
    Ok(())
}

/// Makes what the worker is handed.
fn leased(run: &Candidate, until: i64) -> DbResult<LeasedRun> {
    let corrupt = |error| StoreError::corrupt("task", error);
    let spec: TaskSpec = serde_json::from_str(&run.spec).map_err(corrupt)?;
    let input = run.input.clone().map(JsonText::parse).transpose();
    run.pace
        .as_deref()
        .map(str::parse::<Rate>)
        .transpose()
        .map_err(|error| StoreError::corrupt("rate limit", error))?;
    let timeout = run.timeout_ms.map(|ms| Span::from_millis(ms.unsigned_abs()));
    let started_at = run.started_at.unwrap_or_default();
    // Nobody but the database ends the attempt of an external worker that takes too long.
    let deadline = timeout.filter(|_| spec.action.is_pull()).map(|timeout| later(started_at, timeout));
    Ok(LeasedRun {
        id: RunId::from_uuid(run.id),
        task_id: TaskId::from_uuid(run.task_id),
        task_name: run.name.parse().map_err(|error| StoreError::corrupt("task", error))?,
        fence: Fence(run.fence),
        attempt: run.attempt,
        max_attempts: run.max_attempts,
        reclaimed: run.is_reclaimed,
        retries: run.retries,
        scheduled_for: run.scheduled_for.map(instant).transpose()?,
        run_at: instant(run.run_at)?,
        leased_at: instant(started_at)?,
        lease_until: instant(deadline.map_or(until, |deadline| until.min(deadline)))?,
        timeout,
        backoff: spec.backoff,
        action: spec.action,
        input: input.map_err(|error| StoreError::corrupt("input", error))?,
    })
}

/// Ends a run that no worker can be handed, so that it does not stand in the way of the others.
async fn fail(change: &mut Change, id: RunId, error: &StoreError, freed: &mut Freed) -> DbResult<()> {
    tracing::error!(run_id = %id, error = %error, "failing a run that cannot be read");
    let Some(run) = Current::read(change, id).await? else { return Ok(()) };
    let step = Step { note: Some(Note::of_error(&error.to_string())), ..Step::to(RunState::Failed, run.attempt) };
    depart(change, &run, &step, freed).await
}

pub(super) async fn renew(change: &mut Change, renewals: Vec<Renewal>, lease: Span) -> DbResult<Vec<RenewOutcome>> {
    let mut outcomes = Vec::with_capacity(renewals.len());
    for renewal in renewals {
        let renewed: Option<bool> = sqlx::query_scalar(
            "-- runs.renew
            UPDATE runs SET lease_until = ?3 WHERE id = ?1 AND fence = ?2 AND state = 'running' AND lease_until > ?4
            RETURNING cancel_requested_at IS NOT NULL",
        )
        .bind(renewal.id.as_uuid())
        .bind(renewal.fence.0)
        .bind(later(change.now, lease))
        .bind(change.now)
        .fetch_optional(&mut change.connection)
        .await?;
        outcomes.push(match renewed {
            Some(false) => RenewOutcome::Renewed,
            Some(true) => RenewOutcome::CancelRequested,
            None => RenewOutcome::Lost,
        });
    }
    Ok(outcomes)
}
