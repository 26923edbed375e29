//! Leases: handing ready runs to workers, and prolonging what they hold.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::{Fence, RunId, TaskId};
use switchboard_model::run::{LeasedRun, RunState, clean_error};
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_store_api::{LeaseBatch, LeaseRequest, RenewOutcome, Renewal, StoreResult, WorkerKind};
use uuid::Uuid;

use super::finish::{Change, Note, settle};
use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::rows::{count, json};

/// A ready run under its lock. It is leased already unless it needs a permit.
#[derive(sqlx::FromRow)]
struct PickedRow {
    id: Uuid,
    task_id: Uuid,
    priority: i16,
    run_at: Timestamp,
    scheduled_for: Option<Timestamp>,
    /// Before this lease.
    attempt: i32,
    max_attempts: i32,
    is_reclaimed: bool,
    retries: i32,
    timeout_ms: Option<i64>,
    key: Option<String>,
    key_max: Option<i32>,
    input: Option<String>,
    fence: Option<i64>,
    leased_at: Timestamp,
}

pub(super) async fn lease(database: &Arc<Database>, request: &LeaseRequest) -> StoreResult<LeaseBatch> {
    if request.pools.is_empty() || request.limit == 0 {
        return Ok(LeaseBatch::default());
    }
    let mut tx = database.begin().await?;
    let mut picked = pick(&mut tx, request).await?;
    if picked.is_empty() {
        return tx.undo(LeaseBatch::default()).await;
    }
    let again = if picked.iter().any(|run| run.key.is_some()) {
        lease_keyed(&mut tx, request, &mut picked).await?
    } else {
        false
    };
    picked.retain(|run| run.fence.is_some());
    picked.sort_by_key(|run| (run.priority, run.run_at, run.id));
    let runs = hand_out(&mut tx, picked, request.lease).await?;
    tx.commit().await?;
    Ok(LeaseBatch { runs, again, paced_for: None })
}

/// Locks the first ready runs of each pool and leases those that need no permit.
async fn pick(tx: &mut Tx, request: &LeaseRequest) -> StoreResult<Vec<PickedRow>> {
    // Rows are addressed by an array, and details by a subquery, because the planner then uses the primary
    // keys whatever it believes about the number of candidates.
    sqlx::query_as(
        "-- runs.lease
         WITH picked AS MATERIALIZED (
             SELECT ready.*
             FROM unnest($1::text[]) AS served (pool)
             CROSS JOIN LATERAL (
                 SELECT id, task_id, priority, run_at, scheduled_for, attempt, max_attempts, is_reclaimed,
                        retries, timeout_ms, key, key_max
                 FROM switchboard.runs
                 WHERE state = 'queued' AND pool = served.pool AND is_pull = $5
                   AND NOT EXISTS (
                       SELECT FROM switchboard.settings
                       WHERE name = 'fleet' AND value::jsonb @> '{\"pause_all\": true}'
                   )
                 ORDER BY priority, run_at, id
                 LIMIT $2
                 FOR UPDATE SKIP LOCKED
             ) AS ready
             ORDER BY ready.priority, ready.run_at, ready.id
             LIMIT $2
         ),
         moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
         leased AS (
             UPDATE switchboard.runs AS run
             SET state = 'running', attempt = run.attempt + 1, fence = nextval('switchboard.fences'),
                 leased_by = $3, started_at = moment.now,
                 lease_until = moment.now + $4 * interval '1 millisecond',
                 deadline_at = moment.now + run.timeout_ms * interval '1 millisecond'
             FROM moment
             WHERE run.id = ANY (ARRAY (SELECT id FROM picked WHERE key IS NULL))
             RETURNING run.id, run.fence
         )
         SELECT picked.*, leased.fence, moment.now AS leased_at,
                (SELECT input FROM switchboard.run_details WHERE run_id = picked.id) AS input
         FROM picked
         CROSS JOIN moment
         LEFT JOIN leased ON leased.id = picked.id",
    )
    .bind(request.pools.iter().map(|pool| pool.as_str()).collect::<Vec<_>>())
    .bind(i64::from(request.limit))
    .bind(request.holder.as_str())
    .bind(request.lease.as_millis_i64())
    .bind(request.kind == WorkerKind::External)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

/// Leases the runs for which a permit is free, and moves those to `waiting` for which none is. Returns
/// whether another pass may find more.
async fn lease_keyed(tx: &mut Tx, request: &LeaseRequest, picked: &mut [PickedRow]) -> StoreResult<bool> {
    let wanted: BTreeSet<&str> = picked.iter().filter_map(|run| run.key.as_deref()).collect();
    let locked = lock_free_keys(tx, &wanted).await?;
    let has_skipped = locked.len() < wanted.len();
    let mut held = count_holds(tx, &locked, picked).await?;

    let mut plan = KeyedPlan::default();
    picked.sort_by_key(|run| (run.priority, run.run_at, run.id));
    for run in &*picked {
        let Some(holds) = run.key.as_deref().and_then(|key| held.get_mut(key)) else { continue };
        if holds.of_candidates.contains(&run.id) {
            plan.leased.push(run.id);
        } else if holds.held < count(run.key_max.unwrap_or(1).into()) {
            holds.held += 1;
            plan.leased.push(run.id);
            plan.granted.push(run.id);
        } else {
            plan.waiting.push(run.id);
        }
    }
    let leased = plan.apply(tx, request).await?;
    for run in picked.iter_mut() {
        if let Some((fence, leased_at)) = leased.get(&run.id) {
            (run.fence, run.leased_at) = (Some(*fence), *leased_at);
        }
    }
    Ok(has_skipped || !plan.waiting.is_empty())
}

/// Makes missing keys and locks, in their order, those that nobody else holds.
async fn lock_free_keys(tx: &mut Tx, wanted: &BTreeSet<&str>) -> StoreResult<Vec<String>> {
    let wanted: Vec<&str> = wanted.iter().copied().collect();
    sqlx::query(
        "-- runs.make_keys
         INSERT INTO switchboard.run_keys (key)
         SELECT key FROM unnest($1::text[]) AS wanted (key) ORDER BY key
         ON CONFLICT DO NOTHING",
    )
    .bind(&wanted)
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    sqlx::query_scalar(
        "-- runs.lock_free_keys
         SELECT key FROM switchboard.run_keys WHERE key = ANY ($1) ORDER BY key FOR UPDATE SKIP LOCKED",
    )
    .bind(&wanted)
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

/// What becomes of the runs that need a permit.
#[derive(Default)]
struct KeyedPlan {
    leased: Vec<Uuid>,
    /// The leased runs that get a new hold.
    granted: Vec<Uuid>,
    waiting: Vec<Uuid>,
}

impl KeyedPlan {
    async fn apply(&self, tx: &mut Tx, request: &LeaseRequest) -> StoreResult<HashMap<Uuid, (i64, Timestamp)>> {
        if self.leased.is_empty() && self.waiting.is_empty() {
            return Ok(HashMap::new());
        }
        let leased: Vec<(Uuid, i64, Timestamp)> = sqlx::query_as(
            "-- runs.lease_keyed
             WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
             waiting AS (
                 UPDATE switchboard.runs SET state = 'waiting' WHERE id = ANY ($2)
             ),
             granted AS (
                 INSERT INTO switchboard.run_holds (key, run_id)
                 SELECT key, id FROM switchboard.runs WHERE id = ANY ($3)
             )
             UPDATE switchboard.runs AS run
             SET state = 'running', attempt = run.attempt + 1, fence = nextval('switchboard.fences'),
                 leased_by = $4, started_at = moment.now,
                 lease_until = moment.now + $5 * interval '1 millisecond',
                 deadline_at = moment.now + run.timeout_ms * interval '1 millisecond'
             FROM moment
             WHERE run.id = ANY ($1)
             RETURNING run.id, run.fence, moment.now",
        )
        .bind(&self.leased)
        .bind(&self.waiting)
        .bind(&self.granted)
        .bind(request.holder.as_str())
        .bind(request.lease.as_millis_i64())
        .fetch_all(&mut **tx)
        .await
        .map_err(fault)?;
        Ok(leased.into_iter().map(|(id, fence, leased_at)| (id, (fence, leased_at))).collect())
    }
}

/// Adds to the leased runs what their tasks say; a run whose task cannot be read ends here.
async fn hand_out(tx: &mut Tx, picked: Vec<PickedRow>, lease: Span) -> StoreResult<Vec<LeasedRun>> {
    let ids: BTreeSet<Uuid> = picked.iter().map(|run| run.task_id).collect();
    let rows: Vec<(Uuid, String, String)> = sqlx::query_as(
        "-- tasks.of_leased_runs
         SELECT id, name, spec FROM switchboard.tasks WHERE id = ANY ($1)",
    )
    .bind(ids.into_iter().collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let mut tasks: HashMap<Uuid, Result<(TaskName, TaskSpec), String>> = HashMap::new();
    for (id, name, spec) in rows {
        tasks.insert(id, read_task(&name, &spec).map_err(|error| clean_error(&error)));
    }
    let mut runs = Vec::with_capacity(picked.len());
    let mut unreadable = Vec::new();
    for run in picked {
        let task = tasks.get(&run.task_id).cloned().unwrap_or_else(|| Err("the task of the run is gone".to_owned()));
        let id = run.id;
        let (attempt, key) = (run.attempt + 1, run.key.clone());
        match task.and_then(|task| leased_run(run, lease, task)) {
            Ok(run) => runs.push(run),
            Err(error) => {
                tracing::error!(run = %id, %error, "a run that cannot be read ends as failed");
                let note = Some(Note { run: id, result: None, error: Some(error) });
                let freed = key.map(|key| (key, id));
                unreadable.push(Change { note, freed, ..Change::to(id, RunState::Failed, attempt) });
            }
        }
    }
    settle(tx, &unreadable).await?;
    Ok(runs)
}

fn read_task(name: &str, spec: &str) -> Result<(TaskName, TaskSpec), String> {
    let name = name.parse().map_err(|error| format!("the name of the task cannot be read: {error}"))?;
    let spec = serde_json::from_str(spec).map_err(|error| format!("the task cannot be read: {error}"))?;
    Ok((name, spec))
}

fn leased_run(run: PickedRow, lease: Span, (task_name, spec): (TaskName, TaskSpec)) -> Result<LeasedRun, String> {
    Ok(LeasedRun {
        id: RunId::from_uuid(run.id),
        task_id: TaskId::from_uuid(run.task_id),
        task_name,
        fence: Fence(run.fence.unwrap_or_default()),
        attempt: (run.attempt + 1).cast_unsigned(),
        max_attempts: run.max_attempts.cast_unsigned(),
        reclaimed: run.is_reclaimed,
        retries: run.retries.cast_unsigned(),
        scheduled_for: run.scheduled_for,
        run_at: run.run_at,
        leased_at: run.leased_at,
        lease_until: run.leased_at + lease.to_delta(),
        timeout: run.timeout_ms.map(|ms| Span::from_millis(count(ms))),
        backoff: spec.backoff,
        action: spec.action,
        input: json("run", run.input).map_err(|error| clean_error(&error.to_string()))?,
    })
}

pub(super) async fn renew(
    database: &Arc<Database>,
    renewals: &[Renewal],
    lease: Span,
) -> StoreResult<Vec<RenewOutcome>> {
    if renewals.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Uuid> = renewals.iter().map(|renewal| renewal.id.as_uuid()).collect();
    let mut tx = database.begin_vital().await?;
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
