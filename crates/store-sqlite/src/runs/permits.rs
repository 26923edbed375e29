//! Permits: which runs hold a key, who waits for one, and who is promoted when one is free.
//!
//! The writer is alone, so the holds themselves are enough; the rows of `run_keys`, which exist to be
//! locked, stay unused on this backend.

use std::collections::BTreeSet;

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::RunId;
use switchboard_model::run::RunState;
use switchboard_model::task::task_permit_key;
use switchboard_store_api::PromoteReport;

use super::finish::Current;
use crate::error::DbResult;
use crate::writer::Change;

/// Takes a permit for a run, or finds the one it kept; `false` means that none is free.
pub(super) async fn take(change: &mut Change, id: RunId, key: &str, max: u32) -> DbResult<bool> {
    let is_held: bool = sqlx::query_scalar(
        "-- runs.take_permit
        INSERT INTO run_holds (key, run_id)
        SELECT ?1, ?2 WHERE (SELECT COUNT(*) FROM run_holds WHERE key = ?1 AND run_id <> ?2) < ?3
        ON CONFLICT DO UPDATE SET key = excluded.key
        RETURNING 1",
    )
    .bind(key)
    .bind(id.as_uuid())
    .bind(max)
    .fetch_optional(&mut change.connection)
    .await?
    .unwrap_or_default();
    Ok(is_held)
}

/// What a command freed: keys whose waiting runs may go on, and pools that have something to do.
#[derive(Default)]
pub(super) struct Freed {
    keys: BTreeSet<String>,
    pools: BTreeSet<String>,
}

impl Freed {
    /// Notes that a pool has a run that is ready.
    pub(super) fn note_pool(&mut self, pool: &str) {
        self.pools.insert(pool.to_owned());
    }

    /// Deletes the hold of a run that goes to `next`. The hold of an overlap policy lasts until the
    /// run has ended, back-off included.
    pub(super) async fn release(&mut self, change: &mut Change, run: &Current, next: RunState) -> DbResult<()> {
        let Some(key) = &run.key else { return Ok(()) };
        if !next.is_terminal() && *key == task_permit_key(run.task_id) {
            return Ok(());
        }
        let released = sqlx::query(
            "-- runs.release_permit
            DELETE FROM run_holds WHERE key = ? AND run_id = ?",
        )
        .bind(key)
        .bind(run.id.as_uuid())
        .execute(&mut change.connection)
        .await?;
        if released.rows_affected() > 0 {
            self.keys.insert(key.clone());
        }
        Ok(())
    }

    /// Promotes the oldest waiting runs of the freed keys and signals the pools.
    pub(super) async fn promote(mut self, change: &mut Change) -> DbResult<()> {
        for key in std::mem::take(&mut self.keys) {
            let promoted = promote_waiting(change, &key, u32::MAX).await?;
            self.pools.extend(promoted);
        }
        self.signal(change);
        Ok(())
    }

    fn signal(self, change: &mut Change) {
        for pool in self.pools {
            change.signal(SignalKind::PoolQueued, pool, 0);
        }
    }
}

/// Queues the oldest waiting runs of a key up to its free permits; returns their pools, one a run.
/// The maximum is that of the oldest; leasing then asks each run for its own.
async fn promote_waiting(change: &mut Change, key: &str, limit: u32) -> DbResult<Vec<String>> {
    let pools = sqlx::query_scalar(
        "-- runs.promote_waiting
        UPDATE runs SET state = 'queued' WHERE id IN (
            SELECT id FROM runs WHERE key = ?1 AND state = 'waiting' ORDER BY priority, run_at, id
            LIMIT MIN(?2, MAX(0, COALESCE(
                (SELECT key_max FROM runs WHERE key = ?1 AND state = 'waiting' ORDER BY priority, run_at, id LIMIT 1)
                    - (SELECT COUNT(*) FROM run_holds WHERE key = ?1), 0))))
        RETURNING pool",
    )
    .bind(key)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    Ok(pools)
}

/// Makes scheduled runs ready whose time has come, and waiting runs for which a permit is free.
pub(super) async fn promote(change: &mut Change, limit: u32) -> DbResult<PromoteReport> {
    let due: Vec<String> = sqlx::query_scalar(
        "-- runs.promote_due
        UPDATE runs SET state = 'queued' WHERE id IN (
            SELECT id FROM runs WHERE state = 'scheduled' AND run_at <= ? ORDER BY run_at LIMIT ?)
        RETURNING pool",
    )
    .bind(change.schedule_now)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    // Keys are walked by the index from one to the next, whatever the number of runs that wait for each.
    let keys: Vec<String> = sqlx::query_scalar(
        "-- runs.waiting_keys
        WITH RECURSIVE awaited (key) AS (
            SELECT MIN(key) FROM runs WHERE state = 'waiting'
            UNION ALL
            SELECT (SELECT MIN(key) FROM runs WHERE state = 'waiting' AND key > awaited.key)
            FROM awaited WHERE awaited.key IS NOT NULL)
        SELECT key FROM awaited WHERE key IS NOT NULL",
    )
    .fetch_all(&mut change.connection)
    .await?;
    let mut report = PromoteReport { due: due.len() as u64, ..PromoteReport::default() };
    let mut freed = Freed { keys: BTreeSet::new(), pools: due.into_iter().collect() };
    let mut left = limit;
    for key in keys {
        let promoted = promote_waiting(change, &key, left).await?;
        report.permitted += promoted.len() as u64;
        left = left.saturating_sub(promoted.len() as u32);
        freed.pools.extend(promoted);
    }
    freed.signal(change);
    Ok(report)
}
