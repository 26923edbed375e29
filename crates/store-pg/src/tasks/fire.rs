//! Firing: due tasks are read without a lock, planned outside, and applied by compare-and-set.

use std::collections::HashMap;
use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::fire::{DueTask, FirePlan, PlannedRun};
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::{SkipCause, SkipRange, Trigger, clean_error};
use switchboard_model::span::Span;
use switchboard_model::task::{Overlap, RunTerms, TaskSpec};
use switchboard_store_api::{DueTasks, FireReport, StoreResult};
use uuid::Uuid;

use super::record_skips;
use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::rows::{SkipRow, count, int};
use crate::runs::cancel::cancel_active;

#[derive(sqlx::FromRow)]
struct DueRow {
    now: Timestamp,
    id: Option<Uuid>,
    spec: Option<String>,
    next_run_at: Option<Timestamp>,
    version: Option<i64>,
}

pub(super) async fn due(database: &Arc<Database>, limit: u32) -> StoreResult<DueTasks> {
    let mut session = database.session().await?;
    let rows: Vec<DueRow> = sqlx::query_as(
        "-- tasks.due
         WITH moment AS MATERIALIZED (SELECT coalesce($2, clock_timestamp()) AS now)
         SELECT moment.now, task.id, task.spec, task.next_run_at, task.version
         FROM moment LEFT JOIN LATERAL (
             SELECT id, spec, next_run_at, version FROM switchboard.tasks
             WHERE is_active AND deleted_at IS NULL AND parked IS NULL
               AND next_run_at IS NOT NULL AND next_run_at <= moment.now
             ORDER BY next_run_at LIMIT $1
         ) AS task ON true
         ORDER BY task.next_run_at, task.id",
    )
    .bind(i64::from(limit))
    .bind(database.schedule_clock.set_time())
    .fetch_all(&mut *session)
    .await
    .map_err(fault)?;
    drop(session);
    // There is always a row: the left side of the join has one.
    let now = rows.first().map_or(Timestamp::UNIX_EPOCH, |row| row.now);
    let mut tasks = Vec::new();
    let mut unreadable = Vec::new();
    for row in rows {
        let (Some(id), Some(spec), Some(next_run_at), Some(version)) = (row.id, row.spec, row.next_run_at, row.version)
        else {
            continue;
        };
        let id = TaskId::from_uuid(id);
        match due_task(id, &spec, next_run_at, version) {
            Ok(task) => tasks.push(task),
            Err(error) => unreadable.push((id.as_uuid(), version, clean_error(&error))),
        }
    }
    if !unreadable.is_empty() {
        park(database, &unreadable).await?;
    }
    Ok(DueTasks { now, tasks })
}

fn due_task(id: TaskId, spec: &str, next_run_at: Timestamp, version: i64) -> Result<DueTask, String> {
    let spec: TaskSpec = serde_json::from_str(spec).map_err(|error| error.to_string())?;
    DueTask::new(id, TaskSpec { is_active: true, ..spec }, next_run_at, version).map_err(|error| error.to_string())
}

/// Takes rows that this binary cannot read out of the schedule until somebody edits them.
async fn park(database: &Arc<Database>, unreadable: &[(Uuid, i64, String)]) -> StoreResult<()> {
    let ids: Vec<_> = unreadable.iter().map(|(id, ..)| *id).collect();
    let versions: Vec<_> = unreadable.iter().map(|(_, version, _)| *version).collect();
    let errors: Vec<_> = unreadable.iter().map(|(.., error)| error.as_str()).collect();
    let mut tx = database.begin().await?;
    let parked: Vec<Uuid> = sqlx::query_scalar(
        "-- tasks.park
         WITH bad AS MATERIALIZED (
             SELECT task.id, given.error
             FROM switchboard.tasks AS task
             JOIN unnest($1::uuid[], $2::bigint[], $3::text[]) AS given (id, version, error)
                 ON task.id = given.id AND task.version = given.version
             WHERE task.parked IS NULL
             ORDER BY task.id FOR NO KEY UPDATE OF task SKIP LOCKED
         )
         UPDATE switchboard.tasks AS task SET parked = bad.error FROM bad WHERE task.id = bad.id
         RETURNING task.id",
    )
    .bind(ids)
    .bind(versions)
    .bind(errors)
    .fetch_all(&mut *tx)
    .await
    .map_err(fault)?;
    for id in &parked {
        tracing::error!(task = %id, "a task cannot be read and is parked");
        tx.signal(SignalKind::TaskChanged, id);
    }
    tx.commit().await
}

pub(super) async fn fire(database: &Arc<Database>, plans: &[FirePlan]) -> StoreResult<FireReport> {
    if plans.is_empty() {
        return Ok(FireReport::default());
    }
    let mut tx = database.begin().await?;
    let plans = lock(&mut tx, plans).await?;
    let mut report = FireReport { lost: plans.lost, ..FireReport::default() };
    if plans.held.is_empty() {
        return tx.undo(report).await;
    }
    let active = count_active(&mut tx, &plans.held).await?;
    let firings: Vec<Firing<'_>> = plans
        .held
        .iter()
        .map(|plan| Firing::of(plan, active.get(&plan.task.id.as_uuid()).copied().unwrap_or(0)))
        .collect();
    let replaced: Vec<Uuid> =
        firings.iter().filter(|firing| firing.replaces).map(|firing| firing.plan.task.id.as_uuid()).collect();
    cancel_active(&mut tx, &replaced).await?;
    report.runs = insert_runs(&mut tx, &firings).await?;
    report.skipped = firings.iter().flat_map(|firing| &firing.skips).map(|skip| skip.count).sum();
    let skips = extend_skips(&mut tx, &firings).await?;
    record_skips(&mut tx, &skips).await?;
    advance(&mut tx, &plans.held).await?;
    tx.commit().await?;
    report.fired = plans.held.len() as u64;
    Ok(report)
}

/// The plans whose tasks are locked and unchanged, and how many are not.
struct Held<'a> {
    held: Vec<&'a FirePlan>,
    lost: u64,
}

/// Locks the tasks that are still as they were planned; one that somebody holds is being changed.
async fn lock<'a>(tx: &mut Tx, plans: &'a [FirePlan]) -> StoreResult<Held<'a>> {
    // Equality would let the planner look tasks up by their due time, which many may share.
    let ids: Vec<_> = plans.iter().map(|plan| plan.task.id.as_uuid()).collect();
    let due: Vec<_> = plans.iter().map(|plan| plan.task.next_run_at).collect();
    let versions: Vec<_> = plans.iter().map(|plan| plan.task.version).collect();
    let locked: Vec<Uuid> = sqlx::query_scalar(
        "-- tasks.lock_due
         SELECT task.id
         FROM unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) AS planned (id, next_run_at, version)
         JOIN switchboard.tasks AS task
             ON task.id = planned.id AND task.version = planned.version
             AND task.next_run_at IS NOT DISTINCT FROM planned.next_run_at
         WHERE task.is_active AND task.deleted_at IS NULL AND task.parked IS NULL
         ORDER BY task.id FOR NO KEY UPDATE OF task SKIP LOCKED",
    )
    .bind(ids)
    .bind(due)
    .bind(versions)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let mut locked: std::collections::HashSet<Uuid> = locked.into_iter().collect();
    let held: Vec<_> = plans.iter().filter(|plan| locked.remove(&plan.task.id.as_uuid())).collect();
    let lost = (plans.len() - held.len()) as u64;
    Ok(Held { held, lost })
}

/// Counts the active runs of the tasks whose overlap policy asks for it, under the locks on the tasks.
async fn count_active(tx: &mut Tx, plans: &[&FirePlan]) -> StoreResult<HashMap<Uuid, u64>> {
    let ids: Vec<_> = plans
        .iter()
        .filter(|plan| matches!(plan.task.spec.overlap, Overlap::Skip | Overlap::Queue))
        .map(|plan| plan.task.id.as_uuid())
        .collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let counts: Vec<(Uuid, i64)> = sqlx::query_as(
        "-- runs.count_active
         SELECT task_id, count(*) FROM switchboard.runs
         WHERE task_id = ANY ($1) AND state IN ('scheduled', 'queued', 'waiting', 'running')
         GROUP BY task_id",
    )
    .bind(ids)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(counts.into_iter().map(|(id, active)| (id, count(active))).collect())
}

/// A plan after the overlap policy was applied to it.
struct Firing<'a> {
    plan: &'a FirePlan,
    runs: &'a [PlannedRun],
    skips: Vec<SkipRange>,
    replaces: bool,
}

impl<'a> Firing<'a> {
    fn of(plan: &'a FirePlan, active: u64) -> Self {
        let spec = &plan.task.spec;
        let planned = plan.runs.len();
        let (runs, rest, cause) = match spec.overlap {
            Overlap::Allow => (&plan.runs[..], &plan.runs[planned..], SkipCause::Overlap),
            Overlap::Skip => {
                let (runs, rest) = plan.runs.split_at(planned.min(usize::from(active == 0)));
                (runs, rest, SkipCause::Overlap)
            }
            Overlap::Queue => {
                let room = u64::from(spec.queue_max).saturating_sub(active);
                let (runs, rest) = plan.runs.split_at(planned.min(usize::try_from(room).unwrap_or(planned)));
                (runs, rest, SkipCause::Limit)
            }
            Overlap::Replace => {
                let (rest, runs) = plan.runs.split_at(planned.saturating_sub(1));
                (runs, rest, SkipCause::Overlap)
            }
        };
        let replaces = spec.overlap == Overlap::Replace && !runs.is_empty();
        Self { plan, runs, skips: plan.skips.iter().cloned().chain(range_of(rest, cause)).collect(), replaces }
    }
}

fn range_of(dropped: &[PlannedRun], cause: SkipCause) -> Option<SkipRange> {
    let (first, last) = (dropped.first()?, dropped.last()?);
    Some(SkipRange { from: first.scheduled_for, to: last.scheduled_for, count: dropped.len() as u64, cause })
}

async fn insert_runs(tx: &mut Tx, firings: &[Firing<'_>]) -> StoreResult<u64> {
    let runs: Vec<(RunTerms<'_>, TaskId, PlannedRun)> = firings
        .iter()
        .flat_map(|firing| {
            let task = &firing.plan.task;
            firing.runs.iter().map(|run| (task.spec.terms(task.id), task.id, *run))
        })
        .collect();
    if runs.is_empty() {
        return Ok(0);
    }
    let (keys, key_maxima): (Vec<_>, Vec<_>) =
        runs.iter().map(|(terms, ..)| terms.permit.clone().map(|(key, max)| (key, int(max))).unzip()).unzip();
    let (pace_keys, paces): (Vec<_>, Vec<_>) =
        runs.iter().map(|(terms, ..)| terms.pace.clone().map(|(key, rate)| (key, rate.to_string())).unzip()).unzip();
    let deadline = |terms: &RunTerms<'_>, run: &PlannedRun| Some(run.scheduled_for + terms.start_deadline?.to_delta());
    let trigger = |run: &PlannedRun| if run.is_catch_up { Trigger::CatchUp } else { Trigger::Schedule };
    let pools: Vec<String> = sqlx::query_scalar(
        "-- runs.insert_fired
         INSERT INTO switchboard.runs
             (id, task_id, state, trigger, pool, priority, run_at, scheduled_for, max_attempts, timeout_ms,
              key, key_max, created_at, is_pull, start_by, pace_key, pace, keep_ms)
         SELECT id, task_id, 'queued', trigger, pool, priority, scheduled_for, scheduled_for, max_attempts,
                timeout_ms, key, key_max, clock_timestamp(), is_pull, start_by, pace_key, pace, keep_ms
         FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::smallint[], $6::timestamptz[],
                     $7::integer[], $8::bigint[], $9::text[], $10::integer[], $11::boolean[], $12::timestamptz[],
                     $13::text[], $14::text[], $15::bigint[])
             AS planned (id, task_id, trigger, pool, priority, scheduled_for, max_attempts, timeout_ms, key, key_max,
                         is_pull, start_by, pace_key, pace, keep_ms)
         ON CONFLICT (task_id, scheduled_for) WHERE scheduled_for IS NOT NULL DO NOTHING
         RETURNING pool",
    )
    .bind(runs.iter().map(|_| RunId::new().as_uuid()).collect::<Vec<_>>())
    .bind(runs.iter().map(|(_, id, _)| id.as_uuid()).collect::<Vec<_>>())
    .bind(runs.iter().map(|(.., run)| trigger(run).as_str()).collect::<Vec<_>>())
    .bind(runs.iter().map(|(terms, ..)| terms.pool.as_str()).collect::<Vec<_>>())
    .bind(runs.iter().map(|(terms, ..)| terms.priority).collect::<Vec<_>>())
    .bind(runs.iter().map(|(.., run)| run.scheduled_for).collect::<Vec<_>>())
    .bind(runs.iter().map(|(terms, ..)| int(terms.max_attempts)).collect::<Vec<_>>())
    .bind(runs.iter().map(|(terms, ..)| terms.timeout.map(Span::as_millis_i64)).collect::<Vec<_>>())
    .bind(keys)
    .bind(key_maxima)
    .bind(runs.iter().map(|(terms, ..)| terms.is_pull).collect::<Vec<_>>())
    .bind(runs.iter().map(|(terms, _, run)| deadline(terms, run)).collect::<Vec<_>>())
    .bind(pace_keys)
    .bind(paces)
    .bind(runs.iter().map(|(terms, ..)| terms.retention.map(Span::as_millis_i64)).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    for pool in &pools {
        tx.signal(SignalKind::PoolQueued, pool);
    }
    Ok(pools.len() as u64)
}

/// Joins each new range to the newest stored one of its task if the cause goes on without a gap.
async fn extend_skips(tx: &mut Tx, firings: &[Firing<'_>]) -> StoreResult<Vec<(TaskId, SkipRange)>> {
    let skipping: Vec<&Firing<'_>> = firings.iter().filter(|firing| !firing.skips.is_empty()).collect();
    if skipping.is_empty() {
        return Ok(Vec::new());
    }
    #[derive(sqlx::FromRow)]
    struct NewestRow {
        task_id: Uuid,
        #[sqlx(flatten)]
        skip: SkipRow,
    }
    let newest: Vec<NewestRow> = sqlx::query_as(
        "-- tasks.newest_skips
         SELECT newest.* FROM unnest($1::uuid[]) AS given (id)
         CROSS JOIN LATERAL (
             SELECT task_id, from_at, to_at, count, cause FROM switchboard.task_skips
             WHERE task_id = given.id ORDER BY from_at DESC LIMIT 1
         ) AS newest",
    )
    .bind(skipping.iter().map(|firing| firing.plan.task.id.as_uuid()).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let newest: HashMap<Uuid, SkipRow> = newest.into_iter().map(|row| (row.task_id, row.skip)).collect();
    let mut skips = Vec::new();
    for firing in skipping {
        let task = &firing.plan.task;
        for skip in &firing.skips {
            let joined = newest.get(&task.id.as_uuid()).filter(|last| continues(last, skip, &task.spec));
            let range = joined.map_or_else(
                || skip.clone(),
                |last| SkipRange { from: last.from_at, count: skip.count + count(last.count), ..skip.clone() },
            );
            skips.push((task.id, range));
        }
    }
    Ok(skips)
}

fn continues(last: &SkipRow, skip: &SkipRange, spec: &TaskSpec) -> bool {
    let next = spec.schedule.as_ref().and_then(|schedule| schedule.next_after(last.to_at));
    last.cause == skip.cause.as_str() && next == Some(skip.from)
}

async fn advance(tx: &mut Tx, plans: &[&FirePlan]) -> StoreResult<()> {
    sqlx::query(
        "-- tasks.advance
         UPDATE switchboard.tasks AS task
         SET next_run_at = planned.next_run_at, is_active = planned.next_run_at IS NOT NULL
         FROM unnest($1::uuid[], $2::timestamptz[]) AS planned (id, next_run_at)
         WHERE task.id = planned.id",
    )
    .bind(plans.iter().map(|plan| plan.task.id.as_uuid()).collect::<Vec<_>>())
    .bind(plans.iter().map(|plan| plan.next_run_at).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}
