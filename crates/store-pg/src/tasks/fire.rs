//! Firing: due tasks are read without a lock, planned outside, and applied by compare-and-set.

use std::collections::HashMap;
use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::fire::{DueTask, FirePlan, PlannedRun};
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::Trigger;
use switchboard_model::span::Span;
use switchboard_model::task::{Overlap, TaskSpec};
use switchboard_store_api::{DueTasks, FireReport, StoreResult};
use uuid::Uuid;

use super::repair::{Unreadable, park};
use super::skips;
use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::rows::count;
use crate::runs::cancel::cancel_active;
use crate::runs::insert::{Draft, insert};

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
            Err(error) => unreadable.push(Unreadable { id: id.as_uuid(), version, error }),
        }
    }
    park(database, &unreadable).await?;
    Ok(DueTasks { now, tasks })
}

fn due_task(id: TaskId, spec: &str, next_run_at: Timestamp, version: i64) -> Result<DueTask, String> {
    let spec: TaskSpec = serde_json::from_str(spec).map_err(|error| error.to_string())?;
    DueTask::new(id, TaskSpec { is_active: true, ..spec }, next_run_at, version).map_err(|error| error.to_string())
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
    let active_of = |task: TaskId| active.get(&task.as_uuid()).copied().unwrap_or(0);
    let mut skips = Vec::new();
    let mut drafts = Vec::new();
    let mut replaced = Vec::new();
    for plan in &plans.held {
        let DueTask { id, spec, .. } = &plan.task;
        let (runs, left_out) = plan.admit(active_of(*id));
        if spec.overlap == Overlap::Replace && !runs.is_empty() {
            replaced.push(id.as_uuid());
        }
        drafts.extend(runs.iter().map(|run| draft(&plan.task, run)));
        skips.extend(plan.skips.iter().cloned().chain(left_out).map(|range| (*id, plan.stored(range))));
    }
    cancel_active(&mut tx, &replaced).await?;
    report.runs = insert(&mut tx, &drafts).await?.len() as u64;
    report.skipped = skips.iter().map(|(_, skip)| skip.range.count).sum();
    skips::record(&mut tx, skips).await?;
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

fn draft<'a>(task: &'a DueTask, run: &PlannedRun) -> Draft<'a> {
    Draft {
        id: RunId::new(),
        task_id: task.id,
        spec: &task.spec,
        trigger: if run.is_catch_up { Trigger::CatchUp } else { Trigger::Schedule },
        scheduled_for: Some(run.scheduled_for),
        delay: Span::default(),
        dedupe_key: None,
        input: None,
    }
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
