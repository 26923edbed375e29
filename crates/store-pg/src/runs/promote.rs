//! Promotion of runs whose time, permit or rate limit has come, and the end of those that come too late.

use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::limit::Rate;
use switchboard_model::pace::PacedGroup;
use switchboard_model::run_rule::Note;
use switchboard_model::span::Span;
use switchboard_store_api::{PromoteReport, StoreResult};

use super::cancel::cancel_idle;
use super::permits::{announce, lock_promising_keys, promote_keys};
use super::{LockedRow, LockedRun};
use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::rows::{count, int, parsed};

pub(super) async fn promote(database: &Arc<Database>, limit: u32) -> StoreResult<PromoteReport> {
    let mut tx = database.begin().await?;
    let expired = expire(&mut tx, limit).await?;
    let due = promote_due(&mut tx, limit).await?;
    let keys = lock_promising_keys(&mut tx, limit).await?;
    let permitted = promote_keys(&mut tx, &keys).await?;
    let (paced, paced_for) = promote_paced(&mut tx, limit).await?;
    tx.commit().await?;
    Ok(PromoteReport { due, permitted, paced, expired, paced_for })
}

/// Cancels runs that were not leased before their start deadline.
async fn expire(tx: &mut Tx, limit: u32) -> StoreResult<u64> {
    let rows: Vec<LockedRow> = sqlx::query_as(
        "-- runs.lock_late
         SELECT id, state, fence, attempt, max_attempts, key,
                cancel_requested_at IS NOT NULL AS is_to_be_cancelled, false AS is_past_deadline
         FROM switchboard.runs
         WHERE start_by <= coalesce($2, statement_timestamp()) AND state IN ('scheduled', 'queued', 'waiting')
         ORDER BY start_by LIMIT $1 FOR UPDATE SKIP LOCKED",
    )
    .bind(i64::from(limit))
    .bind(tx.set_time())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let runs = rows.into_iter().map(LockedRun::try_from).collect::<StoreResult<Vec<_>>>()?;
    cancel_idle(tx, &runs, Some(&Note::of_error("not started within its start deadline"))).await?;
    Ok(runs.len() as u64)
}

async fn promote_due(tx: &mut Tx, limit: u32) -> StoreResult<u64> {
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
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(announce(tx, &pools))
}

/// Runs that wait for the same rate limit in the same pool.
#[derive(sqlx::FromRow)]
struct GroupRow {
    pace_key: String,
    pool: String,
    is_pull: bool,
    /// The rate of the first one.
    pace: String,
    tat: Option<Timestamp>,
    queued: i64,
    now: Timestamp,
}

/// Queues as many runs of each group as its rate limit allows; returns how many, and when the next may go. No unit is
/// taken: the lease does that.
///
/// The groups are those of one pool each, so that ready runs of a pool that nobody serves keep no other pool waiting.
async fn promote_paced(tx: &mut Tx, limit: u32) -> StoreResult<(u64, Option<Span>)> {
    let groups = paced_groups(tx).await?;
    let mut left = limit;
    let mut ready = Vec::new();
    for row in groups {
        let (rate, now) = (parsed::<Rate>("run", &row.pace).ok(), row.now.timestamp_micros());
        let group = rate.map(|rate| PacedGroup {
            rate,
            tat_us: row.tat.map(|tat| tat.timestamp_micros()),
            queued: u32::try_from(count(row.queued)).unwrap_or(u32::MAX),
        });
        // A rate that cannot be read holds nothing back: handing the run out ends it.
        let (room, wait) = group.map_or((left, Span::default()), |group| (group.ready(now), group.wait(now)));
        ready.push((row, room.min(left), wait));
        left = left.saturating_sub(room);
    }
    let promoted = queue_paced(tx, &ready).await?;
    let wait = ready.iter().zip(&promoted).filter(|((_, room, _), promoted)| **promoted >= u64::from(*room));
    Ok((promoted.iter().sum(), wait.map(|((.., wait), _)| *wait).min()))
}

/// Finds the groups, walking by the index from one to the next, whatever the number of runs in each.
async fn paced_groups(tx: &mut Tx) -> StoreResult<Vec<GroupRow>> {
    sqlx::query_as(
        "-- runs.paced_groups
         WITH RECURSIVE awaited (pace_key, pool, is_pull) AS (
             (SELECT pace_key, pool, is_pull FROM switchboard.runs WHERE state = 'waiting' AND is_paced
              ORDER BY pace_key, pool, is_pull LIMIT 1)
             UNION ALL
             SELECT further.* FROM awaited CROSS JOIN LATERAL (
                 SELECT pace_key, pool, is_pull FROM switchboard.runs
                 WHERE state = 'waiting' AND is_paced
                   AND (pace_key, pool, is_pull) > (awaited.pace_key, awaited.pool, awaited.is_pull)
                 ORDER BY pace_key, pool, is_pull LIMIT 1
             ) AS further
         )
         SELECT awaited.*, first.pace,
                (SELECT tat FROM switchboard.rate_limits WHERE key = awaited.pace_key) AS tat,
                (SELECT count(*) FROM switchboard.runs AS ready
                 WHERE ready.state = 'queued' AND ready.pace_key = awaited.pace_key
                   AND ready.pool = awaited.pool AND ready.is_pull = awaited.is_pull) AS queued,
                clock_timestamp() AS now
         FROM awaited
         CROSS JOIN LATERAL (
             SELECT coalesce(pace, '') AS pace FROM switchboard.runs AS run
             WHERE run.state = 'waiting' AND run.is_paced AND run.pace_key = awaited.pace_key
               AND run.pool = awaited.pool AND run.is_pull = awaited.is_pull
             ORDER BY run.priority, run.run_at, run.id LIMIT 1
         ) AS first",
    )
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

/// Queues the first runs of each group; returns how many of each.
async fn queue_paced(tx: &mut Tx, groups: &[(GroupRow, u32, Span)]) -> StoreResult<Vec<u64>> {
    if groups.iter().all(|(_, room, _)| *room == 0) {
        return Ok(vec![0; groups.len()]);
    }
    let promoted: Vec<i64> = sqlx::query_scalar(
        "-- runs.promote_paced
         WITH given AS MATERIALIZED (
             SELECT * FROM unnest($1::text[], $2::text[], $3::boolean[], $4::integer[]) WITH ORDINALITY
                 AS given (pace_key, pool, is_pull, room, place)
         ),
         picked AS MATERIALIZED (
             SELECT given.place, run.id FROM given
             CROSS JOIN LATERAL (
                 SELECT id FROM switchboard.runs
                 WHERE state = 'waiting' AND is_paced AND pace_key = given.pace_key AND pool = given.pool
                   AND is_pull = given.is_pull
                 ORDER BY priority, run_at, id LIMIT given.room FOR UPDATE SKIP LOCKED
             ) AS run
         ),
         promoted AS (
             UPDATE switchboard.runs SET state = 'queued', is_paced = false
             WHERE id = ANY (ARRAY (SELECT id FROM picked))
             RETURNING id
         )
         SELECT (SELECT count(*) FROM picked JOIN promoted USING (id) WHERE picked.place = given.place)
         FROM given ORDER BY place",
    )
    .bind(groups.iter().map(|(group, ..)| group.pace_key.as_str()).collect::<Vec<_>>())
    .bind(groups.iter().map(|(group, ..)| group.pool.as_str()).collect::<Vec<_>>())
    .bind(groups.iter().map(|(group, ..)| group.is_pull).collect::<Vec<_>>())
    .bind(groups.iter().map(|(_, room, _)| int(*room)).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let pools: Vec<(String, i64)> = groups
        .iter()
        .zip(&promoted)
        .filter(|(_, runs)| **runs > 0)
        .map(|((g, ..), runs)| (g.pool.clone(), *runs))
        .collect();
    announce(tx, &pools);
    Ok(promoted.into_iter().map(count).collect())
}
