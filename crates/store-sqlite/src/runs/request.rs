//! Repeated requests for work: whoever asks again is given what he holds already. The writer serves one at a time.

use switchboard_store_api::LeaseRequest;

use super::lease::Candidate;
use crate::error::DbResult;
use crate::rows::later;
use crate::writer::Change;

/// Prolongs the leases that the request has led to and returns their runs.
pub(super) async fn repeat(change: &mut Change, request: &LeaseRequest) -> DbResult<Vec<Candidate>> {
    let Some(id) = request.request else { return Ok(Vec::new()) };
    let held = sqlx::query_as(
        "-- runs.lease_again
        SELECT runs.id, task_id, name, spec, pool, priority, run_at, scheduled_for, attempt, max_attempts,
            is_reclaimed, retries, timeout_ms, key, key_max, pace_key, pace, input, fence, started_at, NULL AS goes_first
        FROM runs JOIN tasks ON tasks.id = task_id LEFT JOIN run_details ON run_id = runs.id
        WHERE lease_request = ?1 AND state = 'running' AND lease_until > ?2 ORDER BY priority, run_at, runs.id",
    )
    .bind(id)
    .bind(change.now)
    .fetch_all(&mut change.connection)
    .await?;
    sqlx::query(
        "-- runs.prolong_again
        UPDATE runs SET lease_until = MIN(?3, CASE WHEN is_pull THEN COALESCE(deadline_at, ?3) ELSE ?3 END)
        WHERE lease_request = ?1 AND state = 'running' AND lease_until > ?2",
    )
    .bind(id)
    .bind(change.now)
    .bind(later(change.now, request.lease))
    .execute(&mut change.connection)
    .await?;
    Ok(held)
}
