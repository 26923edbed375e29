//! Leases: handing ready runs to workers, and prolonging what they hold.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row as _};
use switchboard_model::Timestamp;
use switchboard_model::identity::{PoolName, TaskName};
use switchboard_model::ids::{Fence, RunId, TaskId};
use switchboard_model::limit::Rate;
use switchboard_model::run::{LeasedRun, RunState, clean_error};
use switchboard_model::run_rule::{Note, Step};
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_store_api::{LeaseBatch, LeaseRequest, RenewOutcome, Renewal, StoreResult, WorkerKind};
use uuid::Uuid;

use super::finish::{Change, settle};
use super::{permits, request};
use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::rows::{count, json};

/// A ready run under its lock, or one that a repeated request holds. It is leased already unless it needs a permit or
/// a unit of a rate limit.
#[derive(FromRow)]
pub(super) struct PickedRow {
    pub(super) id: Uuid,
    task_id: Uuid,
    pub(super) priority: i16,
    pub(super) run_at: Timestamp,
    scheduled_for: Option<Timestamp>,
    /// This lease included.
    attempt: i32,
    max_attempts: i32,
    is_reclaimed: bool,
    retries: i32,
    timeout_ms: Option<i64>,
    pub(super) key: Option<String>,
    pub(super) key_max: Option<i32>,
    pub(super) pace_key: Option<String>,
    pub(super) pace: Option<String>,
    /// Whether the first run that waits for the same rate limit in the same pool goes before it; NULL if none waits.
    pub(super) goes_first: Option<bool>,
    input: Option<String>,
    pub(super) fence: Option<i64>,
    pub(super) leased_at: Timestamp,
    /// Absent when the lease is new.
    prolonged_until: Option<Timestamp>,
}

/// One row of a pass: what holds for all of it, and a run if there is any.
struct PassRow {
    is_new: bool,
    has_made_keys: bool,
    limited: Vec<String>,
    is_full: bool,
    run: Option<PickedRow>,
}

impl FromRow<'_, PgRow> for PassRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let has_run = row.try_get::<Option<Uuid>, _>("id")?.is_some();
        Ok(Self {
            is_new: row.try_get("is_new")?,
            has_made_keys: row.try_get("has_made_keys")?,
            limited: row.try_get("limited")?,
            is_full: row.try_get("is_full")?,
            run: if has_run { Some(PickedRow::from_row(row)?) } else { None },
        })
    }
}

/// What a pass found.
#[derive(Default)]
struct Pass {
    /// Whether nobody else is served under the same request, as far as this statement could see.
    is_new: bool,
    /// Whether the keys of some pools had to be made.
    has_made_keys: bool,
    /// The keys of pools with a maximum, which were not looked at for want of the locks on them.
    limited: Vec<String>,
    /// Whether the maximum of a pool ended the pass.
    is_full: bool,
    picked: Vec<PickedRow>,
}

/// How an attempt to serve a request went.
enum Served {
    With(LeaseBatch),
    /// An equal request was served at the same time, so this attempt does not count.
    Twice,
}

pub(super) async fn lease(database: &Arc<Database>, request: &LeaseRequest) -> StoreResult<LeaseBatch> {
    if request.pools.is_empty() || request.limit == 0 {
        return Ok(LeaseBatch::default());
    }
    loop {
        if let Served::With(batch) = serve(database, request).await? {
            return Ok(batch);
        }
    }
}

async fn serve(database: &Arc<Database>, request: &LeaseRequest) -> StoreResult<Served> {
    let mut tx = database.begin_planned().await?;
    let mut pass = pick(&mut tx, request, None).await?;
    if !pass.is_new {
        let held = request::repeat(&mut tx, request).await?;
        if !held.is_empty() {
            let (runs, _) = hand_out(&mut tx, held, request).await?;
            tx.commit().await?;
            return Ok(Served::With(LeaseBatch { runs, ..LeaseBatch::default() }));
        }
        pass = pick(&mut tx, request, None).await?;
    }
    let mut batch = LeaseBatch::default();
    let has_made_keys = pass.has_made_keys;
    if !pass.limited.is_empty() {
        let locked = permits::lock_free(&mut tx, &pass.limited).await?;
        batch.again = locked.len() < pass.limited.len();
        pass = pick(&mut tx, request, Some(&locked)).await?;
    }
    batch.is_full = pass.is_full;
    let mut picked = pass.picked;
    if picked.is_empty() {
        let is_doubled = request::is_doubled(&mut tx, request).await?;
        let served = if is_doubled { Served::Twice } else { Served::With(batch) };
        if has_made_keys {
            // They are kept, or every pass over an idle pool would make them again and in vain.
            tx.commit().await?;
            return Ok(served);
        }
        return tx.undo(served).await;
    }
    picked.sort_by_key(|run| (run.priority, run.run_at, run.id));
    if picked.iter().any(|run| run.fence.is_none()) {
        let held_back = permits::lease(&mut tx, request, &mut picked).await?;
        batch.again |= held_back.again;
        batch.paced_for = held_back.paced_for;
        picked.retain(|run| run.fence.is_some());
    }
    let (runs, is_doubled) = hand_out(&mut tx, picked, request).await?;
    if is_doubled {
        return tx.undo(Served::Twice).await;
    }
    batch.runs = runs;
    tx.commit().await?;
    Ok(Served::With(batch))
}

/// Locks the first ready runs of each pool and leases those that need neither a permit nor a unit of a rate limit.
///
/// How many runs of a pool with a maximum go on must be counted after the lock on its key, thus by a later statement:
/// without `locked`, a pass that meets such pools makes their keys and picks nothing.
async fn pick(tx: &mut Tx, request: &LeaseRequest, locked: Option<&[String]>) -> StoreResult<Pass> {
    // Rows are addressed by an array, and details by a subquery, because the planner then uses the primary
    // keys whatever it believes about the number of candidates.
    let rows: Vec<PassRow> = sqlx::query_as(
        "-- runs.lease
         WITH asked AS MATERIALIZED (
             SELECT $6::uuid IS NULL OR (
                        pg_try_advisory_xact_lock(hashtextextended($6::text, 0))
                        AND NOT EXISTS (
                            SELECT FROM switchboard.runs
                            WHERE lease_request = $6 AND state = 'running' AND lease_until > clock_timestamp()
                        )) AS is_new
         ),
         fleet AS MATERIALIZED (
             SELECT value::jsonb AS value FROM switchboard.settings WHERE name = 'fleet'
         ),
         served AS MATERIALIZED (
             SELECT DISTINCT pool, (fleet.value -> 'pools' -> pool ->> 'max_running')::bigint AS max
             FROM unnest($1::text[]) AS given (pool)
             LEFT JOIN fleet ON true
             WHERE (SELECT is_new FROM asked)
               AND (pool = $9 OR NOT coalesce((fleet.value ->> 'pause_all')::boolean, false))
         ),
         made AS (
             INSERT INTO switchboard.run_keys (key)
             SELECT 'pool:' || pool FROM served WHERE max > 0 AND $7::text[] IS NULL ORDER BY 1
             ON CONFLICT DO NOTHING RETURNING key
         ),
         open AS MATERIALIZED (
             SELECT pool, max,
                    CASE WHEN max IS NULL THEN $2
                         WHEN 'pool:' || pool = ANY ($7) THEN greatest(0, max - (
                             SELECT count(*) FROM switchboard.runs AS other
                             WHERE other.state = 'running' AND other.pool = served.pool))
                         ELSE 0
                    END AS room
             FROM served
             WHERE $7 IS NOT NULL OR NOT EXISTS (SELECT FROM served WHERE max > 0)
         ),
         picked AS MATERIALIZED (
             SELECT ready.*
             FROM open
             CROSS JOIN LATERAL (
                 SELECT id, task_id, pool, is_pull, priority, run_at, scheduled_for, attempt + 1 AS attempt,
                        max_attempts, is_reclaimed, retries, timeout_ms, key, key_max, pace_key, pace
                 FROM switchboard.runs
                 WHERE state = 'queued' AND pool = open.pool AND is_pull = $5
                   AND (start_by IS NULL OR start_by > coalesce($8, statement_timestamp()))
                 ORDER BY priority, run_at, id
                 LIMIT least(open.room, $2)
                 FOR UPDATE SKIP LOCKED
             ) AS ready
             ORDER BY ready.priority, ready.run_at, ready.id
             LIMIT $2
         ),
         moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
         leased AS (
             UPDATE switchboard.runs AS run
             SET state = 'running', attempt = run.attempt + 1, fence = nextval('switchboard.fences'),
                 leased_by = $3, started_at = moment.now, start_by = NULL, lease_request = $6,
                 lease_until = least(moment.now + $4 * interval '1 millisecond',
                                     CASE WHEN run.is_pull THEN moment.now + run.timeout_ms * interval '1 millisecond' END),
                 deadline_at = moment.now + run.timeout_ms * interval '1 millisecond'
             FROM moment
             WHERE run.id = ANY (ARRAY (SELECT id FROM picked WHERE key IS NULL AND pace_key IS NULL))
             RETURNING run.id, run.fence
         )
         SELECT asked.is_new, EXISTS (SELECT FROM made) AS has_made_keys,
                ARRAY (SELECT 'pool:' || pool FROM served WHERE max > 0 AND $7 IS NULL) AS limited,
                EXISTS (
                    SELECT FROM open
                    WHERE max > 0 AND room <= (SELECT count(*) FROM picked WHERE picked.pool = open.pool)
                ) AS is_full,
                picked.*, leased.fence, moment.now AS leased_at, NULL::timestamptz AS prolonged_until,
                CASE WHEN picked.pace_key IS NOT NULL THEN (
                    SELECT (first.priority, first.run_at, first.id) < (picked.priority, picked.run_at, picked.id)
                    FROM switchboard.runs AS first
                    WHERE first.state = 'waiting' AND first.is_paced AND first.pace_key = picked.pace_key
                      AND first.pool = picked.pool AND first.is_pull = picked.is_pull
                    ORDER BY first.priority, first.run_at, first.id LIMIT 1
                ) END AS goes_first,
                (SELECT input FROM switchboard.run_details WHERE run_id = picked.id) AS input
         FROM asked
         CROSS JOIN moment
         LEFT JOIN picked ON true
         LEFT JOIN leased ON leased.id = picked.id",
    )
    .bind(request.pools.iter().map(|pool| pool.as_str()).collect::<Vec<_>>())
    .bind(i64::from(request.limit))
    .bind(request.holder.as_str())
    .bind(request.lease.as_millis_i64())
    .bind(request.kind == WorkerKind::External)
    .bind(request.request)
    .bind(locked)
    .bind(tx.set_time())
    .bind(PoolName::SYSTEM)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let mut pass = Pass::default();
    for row in rows {
        (pass.is_new, pass.has_made_keys) = (row.is_new, row.has_made_keys);
        (pass.limited, pass.is_full) = (row.limited, row.is_full);
        pass.picked.extend(row.run);
    }
    Ok(pass)
}

/// A task of leased runs, and what concerns the request as a whole.
#[derive(FromRow)]
struct TaskRow {
    id: Uuid,
    name: String,
    spec: String,
    is_doubled: bool,
}

/// Adds to the leased runs what their tasks say; a run whose task cannot be read ends here. Tells too whether an equal
/// request has leased other runs meanwhile, which only a statement after the lock on the request can see.
async fn hand_out(tx: &mut Tx, picked: Vec<PickedRow>, request: &LeaseRequest) -> StoreResult<(Vec<LeasedRun>, bool)> {
    let ids: BTreeSet<Uuid> = picked.iter().map(|run| run.task_id).collect();
    let rows: Vec<TaskRow> = sqlx::query_as(
        "-- tasks.of_leased_runs
         SELECT id, name, spec, EXISTS (
                    SELECT FROM switchboard.runs AS other
                    WHERE other.lease_request = $2 AND other.state = 'running' AND other.id <> ALL ($3)
                      AND other.lease_until > statement_timestamp()
                ) AS is_doubled
         FROM switchboard.tasks WHERE id = ANY ($1)",
    )
    .bind(ids.into_iter().collect::<Vec<_>>())
    .bind(request.request)
    .bind(picked.iter().map(|run| run.id).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let is_doubled = rows.iter().any(|row| row.is_doubled);
    let mut tasks: HashMap<Uuid, Result<(TaskName, TaskSpec), String>> = HashMap::new();
    for TaskRow { id, name, spec, .. } in rows {
        tasks.insert(id, read_task(&name, &spec).map_err(|error| clean_error(&error)));
    }
    let mut runs = Vec::with_capacity(picked.len());
    let mut unreadable = Vec::new();
    for run in picked {
        let task = tasks.get(&run.task_id).cloned().unwrap_or_else(|| Err("the task of the run is gone".to_owned()));
        let (id, attempt, key) = (run.id, run.attempt.cast_unsigned(), run.key.clone());
        match task.and_then(|task| leased_run(run, request.lease, task)) {
            Ok(run) => runs.push(run),
            Err(error) => {
                tracing::error!(run = %id, %error, "a run that cannot be read ends as failed");
                let step = Step { note: Some(Note::of_error(&error)), ..Step::to(RunState::Failed, attempt) };
                unreadable.push(Change { id, step, freed: key });
            }
        }
    }
    settle(tx, &unreadable).await?;
    Ok((runs, is_doubled))
}

fn read_task(name: &str, spec: &str) -> Result<(TaskName, TaskSpec), String> {
    let name = name.parse().map_err(|error| format!("the name of the task cannot be read: {error}"))?;
    let spec = serde_json::from_str(spec).map_err(|error| format!("the task cannot be read: {error}"))?;
    Ok((name, spec))
}

fn leased_run(run: PickedRow, lease: Span, (task_name, spec): (TaskName, TaskSpec)) -> Result<LeasedRun, String> {
    if let Some(Err(error)) = run.pace.as_deref().map(str::parse::<Rate>) {
        return Err(format!("the rate limit of the run cannot be read: {error}"));
    }
    let timeout = run.timeout_ms.map(|ms| Span::from_millis(count(ms)));
    // Nobody but the database ends the attempt of an external worker that takes too long.
    let length = timeout.filter(|_| spec.action.is_pull()).map_or(lease, |timeout| lease.min(timeout));
    Ok(LeasedRun {
        id: RunId::from_uuid(run.id),
        task_id: TaskId::from_uuid(run.task_id),
        task_name,
        fence: Fence(run.fence.unwrap_or_default()),
        attempt: run.attempt.cast_unsigned(),
        max_attempts: run.max_attempts.cast_unsigned(),
        reclaimed: run.is_reclaimed,
        retries: run.retries.cast_unsigned(),
        scheduled_for: run.scheduled_for,
        run_at: run.run_at,
        leased_at: run.leased_at,
        lease_until: run.prolonged_until.unwrap_or_else(|| run.leased_at + length.to_delta()),
        timeout,
        backoff: spec.backoff,
        action: spec.action,
        input: json("run", run.input).map_err(|error| clean_error(&error.to_string()))?,
    })
}

pub(super) async fn renew(
    database: &Arc<Database>,
    by: WorkerKind,
    renewals: &[Renewal],
    lease: Span,
) -> StoreResult<Vec<RenewOutcome>> {
    if renewals.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Uuid> = renewals.iter().map(|renewal| renewal.id.as_uuid()).collect();
    let mut tx = match by {
        WorkerKind::Replica => database.begin_vital().await?,
        WorkerKind::External => database.begin().await?,
    };
    sqlx::query(
        "-- runs.lock_leased
         SELECT FROM switchboard.runs WHERE id = ANY ($1) AND state = 'running' ORDER BY id FOR NO KEY UPDATE",
    )
    .bind(&ids)
    .execute(&mut *tx)
    .await
    .map_err(fault)?;
    // The clock is read after the wait for the locks: what has expired by then stays lost.
    let renewed: Vec<(Uuid, i64, bool)> = sqlx::query_as(
        "-- runs.renew
         UPDATE switchboard.runs AS run SET lease_until = clock_timestamp() + $3 * interval '1 millisecond'
         FROM unnest($1::uuid[], $2::bigint[]) AS given (id, fence)
         WHERE run.id = given.id AND run.fence = given.fence
           AND run.state = 'running' AND run.lease_until > clock_timestamp()
         RETURNING run.id, run.fence, run.cancel_requested_at IS NOT NULL",
    )
    .bind(&ids)
    .bind(renewals.iter().map(|renewal| renewal.fence.0).collect::<Vec<_>>())
    .bind(lease.as_millis_i64())
    .fetch_all(&mut *tx)
    .await
    .map_err(fault)?;
    tx.commit().await?;
    let renewed: HashMap<(Uuid, i64), bool> =
        renewed.into_iter().map(|(id, fence, asked)| ((id, fence), asked)).collect();
    let outcome = |renewal: &Renewal| match renewed.get(&(renewal.id.as_uuid(), renewal.fence.0)) {
        None => RenewOutcome::Lost,
        Some(false) => RenewOutcome::Renewed,
        Some(true) => RenewOutcome::CancelRequested,
    };
    Ok(renewals.iter().map(outcome).collect())
}
