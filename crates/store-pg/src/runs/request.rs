//! Repeated requests for work: whoever asks again is given what he holds already.
//!
//! A request is served under an advisory lock. The statement that leases takes it without waiting, for the round trip
//! that this saves, and so decides on what it saw before it had the lock; that is made good by [`is_doubled`].

use switchboard_store_api::{LeaseRequest, StoreResult};

use super::lease::PickedRow;
use crate::connect::Tx;
use crate::error::fault;

/// Waits until nobody else serves the request, then prolongs the leases that it has led to and returns their runs.
pub(super) async fn repeat(tx: &mut Tx, request: &LeaseRequest) -> StoreResult<Vec<PickedRow>> {
    sqlx::query(
        "-- runs.lock_request
         SELECT pg_advisory_xact_lock(hashtextextended($1::text, 0))",
    )
    .bind(request.request.map(|id| id.to_string()))
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    // Locking may wait for the end of a run, and then finds that it has ended.
    let mut runs: Vec<PickedRow> = sqlx::query_as(
        "-- runs.lease_again
         WITH held AS MATERIALIZED (
             SELECT id FROM switchboard.runs
             WHERE lease_request = $1 AND state = 'running' AND lease_until > clock_timestamp()
             ORDER BY id FOR NO KEY UPDATE
         )
         UPDATE switchboard.runs AS run
         SET lease_until = least(clock_timestamp() + $2 * interval '1 millisecond',
                                 CASE WHEN is_pull THEN deadline_at END)
         WHERE id = ANY (ARRAY (SELECT id FROM held))
         RETURNING id, task_id, priority, run_at, scheduled_for, attempt, max_attempts, is_reclaimed, retries, timeout_ms,
                   key, key_max, pace_key, pace, NULL::boolean AS goes_first, fence, started_at AS leased_at,
                   lease_until AS prolonged_until,
                   (SELECT input FROM switchboard.run_details WHERE run_id = run.id) AS input",
    )
    .bind(request.request)
    .bind(request.lease.as_millis_i64())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    runs.sort_by_key(|run| (run.priority, run.run_at, run.id));
    Ok(runs)
}

/// Tells whether an equal request has led to leases meanwhile, after a pass that found nothing.
pub(super) async fn is_doubled(tx: &mut Tx, request: &LeaseRequest) -> StoreResult<bool> {
    let Some(id) = request.request else { return Ok(false) };
    sqlx::query_scalar(
        "-- runs.is_doubled
         SELECT EXISTS (
             SELECT FROM switchboard.runs
             WHERE lease_request = $1 AND state = 'running' AND lease_until > statement_timestamp()
         )",
    )
    .bind(id)
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)
}
