//! Recovery of expired leases.

use std::sync::Arc;

use switchboard_store_api::{RecoverReport, StoreResult};

use super::finish::{Change, settle};
use super::{LockedRow, LockedRun, room};
use crate::connect::Database;
use crate::error::fault;

pub(super) async fn recover(database: &Arc<Database>, limit: u32) -> StoreResult<RecoverReport> {
    let mut tx = database.begin().await?;
    // Time is the statement's, which an index can serve; locking re-checks rows renewed in between.
    let rows: Vec<LockedRow> = sqlx::query_as(
        "-- runs.lock_expired
         SELECT id, state, fence, attempt, max_attempts, key,
                cancel_requested_at IS NOT NULL AS is_to_be_cancelled,
                coalesce(deadline_at <= statement_timestamp(), false) AS is_past_deadline
         FROM switchboard.runs
         WHERE state = 'running' AND lease_until <= statement_timestamp()
         ORDER BY lease_until LIMIT $1 FOR UPDATE SKIP LOCKED",
    )
    .bind(i64::from(limit))
    .fetch_all(&mut *tx)
    .await
    .map_err(fault)?;
    let mut report = RecoverReport::default();
    let mut changes = Vec::with_capacity(rows.len());
    for row in rows {
        let run = LockedRun::try_from(row)?;
        let (step, loss) = run.standing.after_loss();
        report.count(loss);
        changes.push(Change::of(&run, step));
    }
    if changes.is_empty() {
        return tx.undo(report).await;
    }
    settle(&mut tx, &changes).await?;
    room::announce(&mut tx, &changes.iter().map(|change| change.id).collect::<Vec<_>>()).await?;
    tx.commit().await?;
    Ok(report)
}
