//! Recovery of expired leases.

use switchboard_store_api::RecoverReport;

use super::finish::{Current, depart};
use super::permits::Freed;
use crate::error::DbResult;
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
        let (step, loss) = run.standing(change.now).after_loss();
        report.count(loss);
        depart(change, &run, &step, &mut freed).await?;
    }
    freed.promote(change).await?;
    Ok(report)
}
