//! Recovery of expired leases, and promotion of runs whose time or permit has come.

use std::sync::Arc;

use switchboard_model::feed::SignalKind;
use switchboard_model::run::RunState;
use switchboard_store_api::{PromoteReport, RecoverReport, StoreResult};

use super::finish::{Change, Note, settle};
use super::{LockedRow, LockedRun};
use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::rows::count;

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
        changes.push(recovered(&row.try_into()?, &mut report));
    }
    if changes.is_empty() {
        return tx.undo(report).await;
    }
    settle(&mut tx, &changes).await?;
    tx.commit().await?;
    Ok(report)
}

/// Decides on a run whose holder is gone, and counts it under the reason that decided.
fn recovered(run: &LockedRun, report: &mut RecoverReport) -> Change {
    if run.is_to_be_cancelled {
        report.cancelled += 1;
        return Change::from_running(run, RunState::Cancelled);
    }
    let state = if run.attempt < run.max_attempts { RunState::Queued } else { RunState::Dead };
    let (counted, error) = match state {
        _ if run.is_past_deadline => (&mut report.timed_out, "the attempt timed out and its worker did not report it"),
        RunState::Queued => (&mut report.requeued, "the worker lost its lease"),
        _ => (&mut report.dead, "the worker lost its lease"),
    };
    *counted += 1;
    let note = Some(Note { run: run.id, result: None, error: Some(error.to_owned()) });
    Change { is_reclaimed: true, note, ..Change::from_running(run, state) }
}

pub(super) async fn promote(database: &Arc<Database>, limit: u32) -> StoreResult<PromoteReport> {
    let mut tx = database.begin().await?;
    let pools: Vec<(String, i64)> = sqlx::query_as(
        "-- runs.promote_due
         WITH due AS MATERIALIZED (
             SELECT id FROM switchboard.runs WHERE state = 'scheduled' AND run_at <= coalesce($2, statement_timestamp())
             ORDER BY run_at LIMIT $1 FOR UPDATE SKIP LOCKED
         ),
         promoted AS (
             UPDATE switchboard.runs SET state = 'queued' WHERE id = ANY (ARRAY (SELECT id FROM due)) RETURNING pool
         )
         SELECT pool, count(*) FROM promoted GROUP BY pool",
    )
    .bind(i64::from(limit))
    .bind(tx.set_time())
    .fetch_all(&mut *tx)
    .await
    .map_err(fault)?;
    let due = announce(&mut tx, &pools);
    let keys = lock_promising_keys(&mut tx, limit).await?;
    let permitted = if keys.is_empty() { 0 } else { promote_keys(&mut tx, &keys).await? };
    tx.commit().await?;
    Ok(PromoteReport { due, permitted, ..PromoteReport::default() })
}

/// Locks the keys that seem to have both a waiting run and a free permit. Keys are walked by the index
/// from one to the next, whatever the number of runs that wait for each.
async fn lock_promising_keys(tx: &mut Tx, limit: u32) -> StoreResult<Vec<String>> {
    sqlx::query_scalar(
        "-- runs.lock_promising_keys
         WITH RECURSIVE awaited (key) AS (
             (SELECT key FROM switchboard.runs WHERE state = 'waiting' ORDER BY key LIMIT 1)
             UNION ALL
             SELECT (SELECT key FROM switchboard.runs WHERE state = 'waiting' AND key > awaited.key
                     ORDER BY key LIMIT 1)
             FROM awaited WHERE awaited.key IS NOT NULL
         ),
         promising AS MATERIALIZED (
             SELECT awaited.key FROM awaited
             WHERE (SELECT count(*) FROM switchboard.run_holds AS hold WHERE hold.key = awaited.key)
                 < (SELECT key_max FROM switchboard.runs WHERE state = 'waiting' AND key = awaited.key
                    ORDER BY priority, run_at, id LIMIT 1)
             LIMIT $1
         )
         SELECT key FROM switchboard.run_keys WHERE key = ANY (ARRAY (SELECT key FROM promising))
         ORDER BY key FOR UPDATE SKIP LOCKED",
    )
    .bind(i64::from(limit))
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

/// Queues as many waiting runs of each key as it has free permits, under the locks on the keys. The
/// lease decides again, so a run too many only comes back to wait.
pub(super) async fn promote_keys<K: AsRef<str>>(tx: &mut Tx, keys: &[K]) -> StoreResult<u64> {
    let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
    let pools: Vec<(String, i64)> = sqlx::query_as(
        "-- runs.promote_keys
         WITH free AS MATERIALIZED (
             SELECT given.key, greatest(0, first.key_max - (
                        SELECT count(*) FROM switchboard.run_holds AS hold WHERE hold.key = given.key
                    )) AS permits
             FROM unnest($1::text[]) AS given (key)
             CROSS JOIN LATERAL (
                 SELECT key_max FROM switchboard.runs WHERE state = 'waiting' AND key = given.key
                 ORDER BY priority, run_at, id LIMIT 1
             ) AS first
         ),
         picked AS MATERIALIZED (
             SELECT run.id FROM free
             CROSS JOIN LATERAL (
                 SELECT id FROM switchboard.runs WHERE state = 'waiting' AND key = free.key
                 ORDER BY priority, run_at, id LIMIT free.permits FOR UPDATE SKIP LOCKED
             ) AS run
         ),
         promoted AS (
             UPDATE switchboard.runs SET state = 'queued' WHERE id = ANY (ARRAY (SELECT id FROM picked))
             RETURNING pool
         )
         SELECT pool, count(*) FROM promoted GROUP BY pool",
    )
    .bind(keys)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(announce(tx, &pools))
}

/// Signals the pools that got runs, and counts those.
fn announce(tx: &mut Tx, pools: &[(String, i64)]) -> u64 {
    for (pool, _) in pools {
        tx.signal(SignalKind::PoolQueued, pool);
    }
    pools.iter().map(|(_, runs)| count(*runs)).sum()
}
