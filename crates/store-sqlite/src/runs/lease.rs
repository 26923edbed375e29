//! Leases: who executes what until when.

use sqlx::FromRow;
use switchboard_model::ids::{Fence, RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{LeasedRun, RunState};
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_store_api::{LeaseBatch, LeaseRequest, RenewOutcome, Renewal, StoreError, WorkerKind};
use uuid::Uuid;

use super::finish::{Current, Departure, depart, record};
use super::permits::{Freed, take};
use crate::error::DbResult;
use crate::rows::{instant, later};
use crate::settings;
use crate::writer::Change;

/// A ready run with all that its worker needs.
#[derive(FromRow)]
struct Candidate {
    id: Uuid,
    task_id: Uuid,
    name: String,
    spec: String,
    priority: i16,
    run_at: i64,
    scheduled_for: Option<i64>,
    attempt: u32,
    max_attempts: u32,
    is_reclaimed: bool,
    retries: u32,
    timeout_ms: Option<i64>,
    key: Option<String>,
    key_max: Option<u32>,
    input: Option<String>,
}

pub(super) async fn lease(change: &mut Change, request: LeaseRequest) -> DbResult<LeaseBatch> {
    let mut batch = LeaseBatch::default();
    if settings::fleet(&mut change.connection).await?.value.pause_all {
        return Ok(batch);
    }
    let mut freed = Freed::default();
    for candidate in candidates(change, &request).await? {
        let id = RunId::from_uuid(candidate.id);
        if let (Some(key), Some(max)) = (&candidate.key, candidate.key_max)
            && !take(change, id, key, max).await?
        {
            wait(change, id).await?;
            batch.again = true;
            continue;
        }
        let fence = next_fence(change).await?;
        let until = later(change.now, request.lease);
        match leased(&candidate, fence, (change.now, until)) {
            Ok(run) => {
                hold(change, &run, request.holder.as_str(), until).await?;
                batch.runs.push(run);
            }
            Err(error) => {
                fail(change, id, &StoreError::from(error), &mut freed).await?;
                batch.again = true;
            }
        }
    }
    freed.promote(change).await?;
    Ok(batch)
}

/// Reads the first ready runs of the asked pools, by priority and due time over all of them.
async fn candidates(change: &mut Change, request: &LeaseRequest) -> DbResult<Vec<Candidate>> {
    let mut candidates: Vec<Candidate> = Vec::new();
    for pool in &request.pools {
        // One statement a pool, so that each follows the index and reads no row too many.
        let of_pool: Vec<Candidate> = sqlx::query_as(
            "-- runs.lease_candidates
            SELECT runs.id, task_id, name, spec, priority, run_at, scheduled_for, attempt, max_attempts, is_reclaimed,
                retries, timeout_ms, key, key_max, input
            FROM runs JOIN tasks ON tasks.id = task_id LEFT JOIN run_details ON run_id = runs.id
            WHERE state = 'queued' AND pool = ? AND is_pull = ? ORDER BY priority, run_at, runs.id LIMIT ?",
        )
        .bind(pool.as_str())
        .bind(request.kind == WorkerKind::External)
        .bind(request.limit)
        .fetch_all(&mut change.connection)
        .await?;
        candidates.extend(of_pool);
    }
    candidates.sort_by_key(|candidate| (candidate.priority, candidate.run_at, candidate.id));
    candidates.dedup_by_key(|candidate| candidate.id);
    candidates.truncate(request.limit as usize);
    Ok(candidates)
}

async fn wait(change: &mut Change, id: RunId) -> DbResult<()> {
    sqlx::query(
        "-- runs.wait
        UPDATE runs SET state = 'waiting' WHERE id = ?",
    )
    .bind(id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

async fn next_fence(change: &mut Change) -> DbResult<Fence> {
    let last = sqlx::query_scalar(
        "-- fences.next
        UPDATE fences SET last = last + 1 RETURNING last",
    )
    .fetch_one(&mut change.connection)
    .await?;
    Ok(Fence(last))
}

/// Makes what the worker is handed.
fn leased(candidate: &Candidate, fence: Fence, (now, until): (i64, i64)) -> DbResult<LeasedRun> {
    let corrupt = |error| StoreError::corrupt("task", error);
    let spec: TaskSpec = serde_json::from_str(&candidate.spec).map_err(corrupt)?;
    let input = candidate.input.clone().map(JsonText::parse).transpose();
    Ok(LeasedRun {
        id: RunId::from_uuid(candidate.id),
        task_id: TaskId::from_uuid(candidate.task_id),
        task_name: candidate.name.parse().map_err(|error| StoreError::corrupt("task", error))?,
        fence,
        attempt: candidate.attempt + 1,
        max_attempts: candidate.max_attempts,
        reclaimed: candidate.is_reclaimed,
        retries: candidate.retries,
        scheduled_for: candidate.scheduled_for.map(instant).transpose()?,
        run_at: instant(candidate.run_at)?,
        leased_at: instant(now)?,
        lease_until: instant(until)?,
        timeout: candidate.timeout_ms.map(|ms| Span::from_millis(ms.unsigned_abs())),
        backoff: spec.backoff,
        action: spec.action,
        input: input.map_err(|error| StoreError::corrupt("input", error))?,
    })
}

/// Writes the lease into the row.
async fn hold(change: &mut Change, run: &LeasedRun, instance: &str, until: i64) -> DbResult<()> {
    sqlx::query(
        "-- runs.lease
        UPDATE runs SET state = 'running', attempt = ?2, fence = ?3, leased_by = ?4, lease_until = ?5, started_at = ?6,
            deadline_at = ?7
        WHERE id = ?1",
    )
    .bind(run.id.as_uuid())
    .bind(run.attempt)
    .bind(run.fence.0)
    .bind(instance)
    .bind(until)
    .bind(change.now)
    .bind(run.timeout.map(|timeout| later(change.now, timeout)))
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

/// Ends a run that no worker can be handed, so that it does not stand in the way of the others.
async fn fail(change: &mut Change, id: RunId, error: &StoreError, freed: &mut Freed) -> DbResult<()> {
    tracing::error!(run_id = %id, error = %error, "failing a run that cannot be read");
    let Some(run) = Current::read(change, id).await? else { return Ok(()) };
    record(change, id, None, Some(&error.to_string())).await?;
    depart(change, &run, Departure::to(&run, RunState::Failed), freed).await
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
