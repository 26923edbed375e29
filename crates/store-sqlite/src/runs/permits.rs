//! Permits: which runs hold a key, who waits for one, and who is promoted when one is free.
//!
//! The writer is alone, so the holds themselves are enough; the rows of `run_keys`, which exist to be
//! locked, stay unused on this backend.

use std::collections::{BTreeMap, BTreeSet};

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::RunId;
use switchboard_model::run::RunState;
use switchboard_model::run_rule::{Step, frees_key};

use super::finish::Current;
use super::room::{self, Left};
use crate::error::DbResult;
use crate::writer::Change;

/// How a run stands to the permit that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    /// It kept one from an earlier attempt, or needs none.
    Held,
    /// One is free.
    Free,
    /// Others have all of them.
    Taken,
}

/// Looks for a permit for a run.
pub(super) async fn permit(change: &mut Change, id: RunId, key: &str, max: u32) -> DbResult<Permit> {
    let (held, is_held): (u32, bool) = sqlx::query_as(
        "-- runs.find_permit
        SELECT COUNT(*), COALESCE(MAX(run_id = ?2), 0) FROM run_holds WHERE key = ?1",
    )
    .bind(key)
    .bind(id.as_uuid())
    .fetch_one(&mut change.connection)
    .await?;
    Ok(match held {
        _ if is_held => Permit::Held,
        held if held < max => Permit::Free,
        _ => Permit::Taken,
    })
}

/// Takes a permit that is free.
pub(super) async fn take(change: &mut Change, id: RunId, key: &str) -> DbResult<()> {
    sqlx::query(
        "-- runs.take_permit
        INSERT INTO run_holds (key, run_id) VALUES (?, ?)",
    )
    .bind(key)
    .bind(id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

/// What a command freed: keys whose waiting runs may go on, and pools that have something to do.
#[derive(Default)]
pub(super) struct Freed {
    keys: BTreeSet<String>,
    pools: BTreeSet<String>,
    left: BTreeMap<String, Left>,
}

impl Freed {
    /// Notes that a key has a free permit.
    pub(super) fn note_key(&mut self, key: &str) {
        self.keys.insert(key.to_owned());
    }

    /// Notes that a pool has a run that is ready.
    pub(super) fn note_pool(&mut self, pool: &str) {
        self.pools.insert(pool.to_owned());
    }

    /// Notes that a run which was executed has left its pool.
    pub(super) fn note_left(&mut self, run: &Current, step: &Step) {
        let left = self.left.entry(run.pool.clone()).or_default();
        left.runs += 1;
        left.is_unattended |= run.is_pull || step.is_reclaimed;
    }

    /// Deletes the hold of a run that goes to `next`, unless it keeps it.
    pub(super) async fn release(&mut self, change: &mut Change, run: &Current, next: RunState) -> DbResult<()> {
        let Some(key) = run.key.as_deref().filter(|key| frees_key(key, next)) else { return Ok(()) };
        let released = sqlx::query(
            "-- runs.release_permit
            DELETE FROM run_holds WHERE key = ? AND run_id = ?",
        )
        .bind(key)
        .bind(run.id.as_uuid())
        .execute(&mut change.connection)
        .await?;
        if released.rows_affected() > 0 {
            self.note_key(key);
        }
        Ok(())
    }

    /// Promotes the oldest waiting runs of the freed keys and signals the pools.
    pub(super) async fn promote(mut self, change: &mut Change) -> DbResult<()> {
        for key in std::mem::take(&mut self.keys) {
            let promoted = promote_waiting(change, &key, u32::MAX).await?;
            self.pools.extend(promoted);
        }
        for (pool, left) in std::mem::take(&mut self.left) {
            if room::is_awaited(change, &pool, &left).await? {
                self.pools.insert(pool);
            }
        }
        for pool in self.pools {
            change.signal(SignalKind::PoolQueued, pool, 0);
        }
        Ok(())
    }
}

/// Queues the oldest waiting runs of a key up to its free permits; returns their pools, one a run.
/// The maximum is that of the oldest; leasing then asks each run for its own.
async fn promote_waiting(change: &mut Change, key: &str, limit: u32) -> DbResult<Vec<String>> {
    let pools = sqlx::query_scalar(
        "-- runs.promote_waiting
        UPDATE runs SET state = 'queued' WHERE id IN (
            SELECT id FROM runs WHERE key = ?1 AND state = 'waiting' AND NOT is_paced ORDER BY priority, run_at, id
            LIMIT MIN(?2, MAX(0, COALESCE(
                (SELECT key_max FROM runs WHERE key = ?1 AND state = 'waiting' AND NOT is_paced ORDER BY priority, run_at, id LIMIT 1)
                    - (SELECT COUNT(*) FROM run_holds WHERE key = ?1), 0))))
        RETURNING pool",
    )
    .bind(key)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    Ok(pools)
}

/// Queues waiting runs of every key that has a free permit; returns how many.
pub(super) async fn promote_keys(change: &mut Change, limit: u32, freed: &mut Freed) -> DbResult<u64> {
    // Keys are walked by the index from one to the next, whatever the number of runs that wait for each.
    let keys: Vec<String> = sqlx::query_scalar(
        "-- runs.waiting_keys
        WITH RECURSIVE awaited (key) AS (
            SELECT MIN(key) FROM runs WHERE state = 'waiting' AND NOT is_paced
            UNION ALL
            SELECT (SELECT MIN(key) FROM runs WHERE state = 'waiting' AND NOT is_paced AND key > awaited.key)
            FROM awaited WHERE awaited.key IS NOT NULL)
        SELECT key FROM awaited WHERE key IS NOT NULL",
    )
    .fetch_all(&mut change.connection)
    .await?;
    let mut promoted = 0;
    for key in keys {
        let pools = promote_waiting(change, &key, limit.saturating_sub(promoted)).await?;
        promoted += pools.len() as u32;
        freed.pools.extend(pools);
    }
    Ok(promoted.into())
}
