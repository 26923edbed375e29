//! Permits and rate limits: which of the ready runs may start, who waits, and who goes on when a permit is free.
//!
//! Locks are taken in the order runs, keys, rate limits. Leasing never waits for a key.

use std::collections::{BTreeSet, HashMap};

use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::limit::Rate;
use switchboard_model::pace::{Line, Paces};
use switchboard_model::span::Span;
use switchboard_store_api::{LeaseRequest, StoreResult};
use uuid::Uuid;

use super::lease::PickedRow;
use crate::connect::Tx;
use crate::error::fault;
use crate::limits;
use crate::rows::count;

/// What a pass did not lease.
pub(super) struct HeldBack {
    /// Whether another pass may find more.
    pub(super) again: bool,
    /// When the next unit of a rate limit comes for which a run waits.
    pub(super) paced_for: Option<Span>,
}

/// Leases those of the picked runs, in their order, that get a permit and a unit of their rate limit as far as they
/// need them; moves the others to `waiting`.
pub(super) async fn lease(tx: &mut Tx, request: &LeaseRequest, picked: &mut [PickedRow]) -> StoreResult<HeldBack> {
    let wanted: BTreeSet<&str> = picked.iter().filter_map(|run| run.key.as_deref()).collect();
    let wanted: Vec<&str> = wanted.into_iter().collect();
    let mut held = hold_keys(tx, &wanted, picked).await?;
    let has_skipped = held.len() < wanted.len();
    let (mut paces, now) = lock_paces(tx, picked).await?;

    let mut plan = Plan { now, ..Plan::default() };
    for run in picked.iter().filter(|run| run.fence.is_none()) {
        plan.place(run, &mut held, &mut paces);
    }
    let leased = plan.apply(tx, request).await?;
    limits::put(tx, &paces.taken().collect::<Vec<_>>()).await?;
    for run in picked.iter_mut() {
        if let Some((fence, leased_at)) = leased.get(&run.id) {
            (run.fence, run.leased_at) = (Some(*fence), *leased_at);
        }
    }
    let has_moved = !plan.waiting.is_empty() || !plan.paced.is_empty();
    // A permit that a run did not take for its rate limit is for the next one.
    promote_keys(tx, &plan.passed_on.into_iter().collect::<Vec<_>>()).await?;
    Ok(HeldBack { again: has_skipped || has_moved, paced_for: paces.wait() })
}

/// Makes missing keys, locks those that nobody else holds, and counts their holds.
async fn hold_keys(tx: &mut Tx, wanted: &[&str], picked: &[PickedRow]) -> StoreResult<HashMap<String, Holds>> {
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    sqlx::query(
        "-- runs.make_keys
         INSERT INTO switchboard.run_keys (key)
         SELECT key FROM unnest($1::text[]) AS wanted (key) ORDER BY key
         ON CONFLICT DO NOTHING",
    )
    .bind(wanted)
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    let locked = lock_free(tx, wanted).await?;
    count_holds(tx, &locked, picked).await
}

/// Locks, in their order, the keys that nobody else holds.
pub(super) async fn lock_free<K: AsRef<str>>(tx: &mut Tx, keys: &[K]) -> StoreResult<Vec<String>> {
    sqlx::query_scalar(
        "-- runs.lock_free_keys
         SELECT key FROM switchboard.run_keys WHERE key = ANY ($1) ORDER BY key FOR UPDATE SKIP LOCKED",
    )
    .bind(keys.iter().map(AsRef::as_ref).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

/// The holds on a key.
#[derive(Default)]
struct Holds {
    held: u64,
    /// Candidates that kept their hold from an earlier attempt.
    of_candidates: Vec<Uuid>,
}

async fn count_holds(tx: &mut Tx, keys: &[String], picked: &[PickedRow]) -> StoreResult<HashMap<String, Holds>> {
    let rows: Vec<(String, i64, Vec<Uuid>)> = sqlx::query_as(
        "-- runs.count_holds
         SELECT key, count(*), coalesce(array_agg(run_id) FILTER (WHERE run_id = ANY ($2)), '{}')
         FROM switchboard.run_holds WHERE key = ANY ($1) GROUP BY key",
    )
    .bind(keys)
    .bind(picked.iter().map(|run| run.id).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let mut holds: HashMap<_, _> = keys.iter().map(|key| (key.clone(), Holds::default())).collect();
    holds.extend(rows.into_iter().map(|(key, held, of_candidates)| (key, Holds { held: count(held), of_candidates })));
    Ok(holds)
}

/// Locks the rate limits of the runs and reads them, and the time by which units are taken.
async fn lock_paces(tx: &mut Tx, picked: &[PickedRow]) -> StoreResult<(Paces, Option<Timestamp>)> {
    let keys: BTreeSet<&str> = picked.iter().filter_map(|run| run.pace_key.as_deref()).collect();
    if keys.is_empty() {
        return Ok((Paces::new(0, []), None));
    }
    let keys: Vec<&str> = keys.into_iter().collect();
    let (tats, now_us) = limits::lock(tx, &keys).await?;
    let paces = Paces::new(now_us, keys.into_iter().map(str::to_owned).zip(tats));
    Ok((paces, Timestamp::from_timestamp_micros(now_us)))
}

/// What becomes of the runs that need a permit or a unit.
#[derive(Default)]
struct Plan {
    /// When the runs start: by the time at which they took their units, so that those keep to the rate as exactly.
    now: Option<Timestamp>,
    leased: Vec<Uuid>,
    /// The leased runs that get a new hold.
    granted: Vec<Uuid>,
    /// Runs that wait for a permit.
    waiting: Vec<Uuid>,
    /// Runs that wait for their rate limit.
    paced: Vec<Uuid>,
    /// Keys with a permit that a run could have had but for its rate limit.
    passed_on: BTreeSet<String>,
}

impl Plan {
    /// Decides on one run. The permit comes first, so that no unit is taken for a run that does not start.
    fn place(&mut self, run: &PickedRow, held: &mut HashMap<String, Holds>, paces: &mut Paces) {
        let mut new_hold = None;
        if let Some(key) = &run.key {
            let Some(holds) = held.get_mut(key) else { return };
            if !holds.of_candidates.contains(&run.id) {
                if holds.held >= count(run.key_max.unwrap_or(1).into()) {
                    self.waiting.push(run.id);
                    return;
                }
                new_hold = Some((key, holds));
            }
        }
        // A rate that cannot be read holds nothing back: handing the run out ends it.
        let rate = run.pace.as_deref().and_then(|pace| pace.parse::<Rate>().ok());
        if let (Some(key), Some(rate)) = (&run.pace_key, rate)
            && !paces.take(key, &rate, Line::of(run.goes_first))
        {
            self.paced.push(run.id);
            self.passed_on.extend(new_hold.map(|(key, _)| key.clone()));
            return;
        }
        if let Some((_, holds)) = new_hold {
            holds.held += 1;
            self.granted.push(run.id);
        }
        self.leased.push(run.id);
    }

    async fn apply(&self, tx: &mut Tx, request: &LeaseRequest) -> StoreResult<HashMap<Uuid, (i64, Timestamp)>> {
        if self.leased.is_empty() && self.waiting.is_empty() && self.paced.is_empty() {
            return Ok(HashMap::new());
        }
        let leased: Vec<(Uuid, i64, Timestamp)> = sqlx::query_as(
            "-- runs.lease_limited
             WITH moment AS MATERIALIZED (SELECT coalesce($8, clock_timestamp()) AS now),
             waiting AS (
                 UPDATE switchboard.runs SET state = 'waiting', is_paced = id = ANY ($3)
                 WHERE id = ANY ($2::uuid[] || $3::uuid[])
             ),
             granted AS (
                 INSERT INTO switchboard.run_holds (key, run_id)
                 SELECT key, id FROM switchboard.runs WHERE id = ANY ($4)
             )
             UPDATE switchboard.runs AS run
             SET state = 'running', attempt = run.attempt + 1, fence = nextval('switchboard.fences'),
                 leased_by = $5, started_at = moment.now, start_by = NULL, lease_request = $7,
                 lease_until = least(moment.now + $6 * interval '1 millisecond',
                                     CASE WHEN run.is_pull THEN moment.now + run.timeout_ms * interval '1 millisecond' END),
                 deadline_at = moment.now + run.timeout_ms * interval '1 millisecond'
             FROM moment
             WHERE run.id = ANY ($1)
             RETURNING run.id, run.fence, moment.now",
        )
        .bind(&self.leased)
        .bind(&self.waiting)
        .bind(&self.paced)
        .bind(&self.granted)
        .bind(request.holder.as_str())
        .bind(request.lease.as_millis_i64())
        .bind(request.request)
        .bind(self.now)
        .fetch_all(&mut **tx)
        .await
        .map_err(fault)?;
        Ok(leased.into_iter().map(|(id, fence, leased_at)| (id, (fence, leased_at))).collect())
    }
}

/// Locks the keys that seem to have both a waiting run and a free permit. Keys are walked by the index
/// from one to the next, whatever the number of runs that wait for each.
pub(super) async fn lock_promising_keys(tx: &mut Tx, limit: u32) -> StoreResult<Vec<String>> {
    sqlx::query_scalar(
        "-- runs.lock_promising_keys
         WITH RECURSIVE awaited (key) AS (
             (SELECT key FROM switchboard.runs WHERE state = 'waiting' AND NOT is_paced ORDER BY key LIMIT 1)
             UNION ALL
             SELECT (SELECT key FROM switchboard.runs WHERE state = 'waiting' AND NOT is_paced AND key > awaited.key
                     ORDER BY key LIMIT 1)
             FROM awaited WHERE awaited.key IS NOT NULL
         ),
         promising AS MATERIALIZED (
             SELECT awaited.key FROM awaited
             WHERE (SELECT count(*) FROM switchboard.run_holds AS hold WHERE hold.key = awaited.key)
                 < (SELECT key_max FROM switchboard.runs WHERE state = 'waiting' AND NOT is_paced AND key = awaited.key
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
    if keys.is_empty() {
        return Ok(0);
    }
    let pools: Vec<(String, i64)> = sqlx::query_as(
        "-- runs.promote_keys
         WITH free AS MATERIALIZED (
             SELECT given.key, greatest(0, first.key_max - (
                        SELECT count(*) FROM switchboard.run_holds AS hold WHERE hold.key = given.key
                    )) AS permits
             FROM unnest($1::text[]) AS given (key)
             CROSS JOIN LATERAL (
                 SELECT key_max FROM switchboard.runs WHERE state = 'waiting' AND NOT is_paced AND key = given.key
                 ORDER BY priority, run_at, id LIMIT 1
             ) AS first
         ),
         picked AS MATERIALIZED (
             SELECT run.id FROM free
             CROSS JOIN LATERAL (
                 SELECT id FROM switchboard.runs WHERE state = 'waiting' AND NOT is_paced AND key = free.key
                 ORDER BY priority, run_at, id LIMIT free.permits FOR UPDATE SKIP LOCKED
             ) AS run
         ),
         promoted AS (
             UPDATE switchboard.runs SET state = 'queued' WHERE id = ANY (ARRAY (SELECT id FROM picked))
             RETURNING pool
         )
         SELECT pool, count(*) FROM promoted GROUP BY pool",
    )
    .bind(keys.iter().map(AsRef::as_ref).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(announce(tx, &pools))
}

/// Signals the pools that got runs, and counts those.
pub(super) fn announce(tx: &mut Tx, pools: &[(String, i64)]) -> u64 {
    for (pool, _) in pools {
        tx.signal(SignalKind::PoolQueued, pool);
    }
    pools.iter().map(|(_, runs)| count(*runs)).sum()
}
