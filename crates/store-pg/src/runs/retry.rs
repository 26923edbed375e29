//! Retries: ended runs that somebody wants again, one or many, as if they were new.

use std::collections::BTreeMap;
use std::sync::Arc;

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::RunState;
use switchboard_model::task::{Overlap, TaskSpec};
use switchboard_store_api::{Redrive, RedriveReport, RetryOutcome, StoreResult, WriteContext};
use uuid::Uuid;

use super::lock;
use super::trigger::lock_tasks;
use crate::connect::{Database, Tx};
use crate::context::audit;
use crate::error::fault;

/// An ended run, as read before any lock; none of this changes.
#[derive(sqlx::FromRow)]
struct EndedRow {
    id: Uuid,
    task_id: Uuid,
    has_dedupe_key: bool,
}

impl EndedRow {
    fn task(&self) -> TaskId {
        TaskId::from_uuid(self.task_id)
    }

    /// Returns the task whose active runs are in the way of this one, by its overlap policy.
    fn excluded_by(&self, spec: Option<&TaskSpec>) -> Option<TaskId> {
        let excludes = |spec: &TaskSpec| matches!(spec.overlap, Overlap::Skip | Overlap::Replace);
        spec.is_some_and(excludes).then(|| self.task())
    }
}

pub(super) async fn retry(database: &Arc<Database>, context: &WriteContext, id: RunId) -> StoreResult<RetryOutcome> {
    let mut tx = database.begin().await?;
    let found: Option<EndedRow> = sqlx::query_as(
        "-- runs.task_of
         SELECT id, task_id, dedupe_key IS NOT NULL AS has_dedupe_key FROM switchboard.runs WHERE id = $1",
    )
    .bind(id.as_uuid())
    .fetch_optional(&mut *tx)
    .await
    .map_err(fault)?;
    let Some(run) = found else { return tx.undo(RetryOutcome::NotFound).await };
    // A deleted task has no policy any more; its runs may still be retried.
    let spec = lock_tasks(&mut tx, std::iter::once(run.task())).await?.remove(&run.task()).transpose()?;
    match lock(&mut tx, &[run.id]).await?.first().map(|run| run.state) {
        None => return tx.undo(RetryOutcome::NotFound).await,
        Some(state) if !state.is_terminal() => return tx.undo(RetryOutcome::NotEnded(state)).await,
        Some(_) => {}
    }
    if let Some(other) = rival(&mut tx, &run, spec.as_ref()).await? {
        return tx.undo(RetryOutcome::Active(other)).await;
    }
    requeue(&mut tx, &[(&run, spec.as_ref())]).await?;
    audit(&mut tx, context).await?;
    tx.commit().await?;
    Ok(RetryOutcome::Queued)
}

pub(super) async fn redrive(
    database: &Arc<Database>,
    context: &WriteContext,
    which: &Redrive,
    limit: u32,
) -> StoreResult<RedriveReport> {
    if !which.state.is_terminal() {
        return Ok(RedriveReport::default());
    }
    let mut tx = database.begin().await?;
    let ended = ended(&mut tx, which, limit).await?;
    let last = ended.last().filter(|_| ended.len() >= limit as usize).map(|run| RunId::from_uuid(run.id));
    let mut report = RedriveReport { last, ..RedriveReport::default() };
    let specs = lock_tasks(&mut tx, ended.iter().map(EndedRow::task)).await?;
    let ids: Vec<Uuid> = ended.iter().map(|run| run.id).collect();
    let states: BTreeMap<Uuid, RunState> =
        lock(&mut tx, &ids).await?.into_iter().map(|run| (run.id, run.state)).collect();
    let mut free = Vec::new();
    for run in ended.iter().filter(|run| states.get(&run.id) == Some(&which.state)) {
        let spec = match specs.get(&run.task()).map(Result::as_ref).transpose() {
            Ok(spec) => spec,
            // Whatever its policy is, it cannot be followed.
            Err(_) => {
                report.refused += 1;
                continue;
            }
        };
        if !run.has_dedupe_key && run.excluded_by(spec).is_none() {
            free.push((run, spec));
        } else if rival(&mut tx, run, spec).await?.is_some() {
            report.refused += 1;
        } else {
            requeue(&mut tx, &[(run, spec)]).await?;
            report.queued += 1;
        }
    }
    requeue(&mut tx, &free).await?;
    report.queued += free.len() as u64;
    if report.queued == 0 {
        return tx.undo(report).await;
    }
    audit(&mut tx, context).await?;
    tx.commit().await?;
    Ok(report)
}

async fn ended(tx: &mut Tx, which: &Redrive, limit: u32) -> StoreResult<Vec<EndedRow>> {
    // Not persistent, so that it is planned for what is asked for: each has an index of its own.
    sqlx::query_as(
        "-- runs.ended
         SELECT id, task_id, dedupe_key IS NOT NULL AS has_dedupe_key FROM switchboard.runs
         WHERE state = $1 AND ($2 IS NULL OR task_id = $2) AND id > $3 ORDER BY id LIMIT $4",
    )
    .bind(which.state.as_str())
    .bind(which.task_id.map(|id| id.as_uuid()))
    .bind(which.after.map_or(Uuid::nil(), |id| id.as_uuid()))
    .bind(i64::from(limit))
    .persistent(false)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

/// Queues locked runs again; who executes them follows the action of their task.
async fn requeue(tx: &mut Tx, runs: &[(&EndedRow, Option<&TaskSpec>)]) -> StoreResult<()> {
    if runs.is_empty() {
        return Ok(());
    }
    let pools: Vec<String> = sqlx::query_scalar(
        "-- runs.requeue
         WITH moment AS MATERIALIZED (SELECT coalesce($3, clock_timestamp()) AS now),
         given AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $2::boolean[]) AS given (id, is_pull)),
         forgotten AS (
             UPDATE switchboard.run_details SET result = NULL, error = NULL FROM given WHERE run_id = given.id
         ),
         queued AS (
             UPDATE switchboard.runs AS run
             SET state = 'queued', trigger = 'retry', attempt = 0, retries = retries + 1, run_at = moment.now,
                 start_by = moment.now + (run.start_by - run.run_at), is_pull = coalesce(given.is_pull, run.is_pull),
                 is_reclaimed = false, is_paced = false, lease_request = NULL, cancel_requested_at = NULL,
                 started_at = NULL, finished_at = NULL, prune_at = NULL
             FROM given, moment WHERE run.id = given.id
             RETURNING run.pool
         )
         SELECT DISTINCT pool FROM queued",
    )
    .bind(runs.iter().map(|(run, _)| run.id).collect::<Vec<_>>())
    .bind(runs.iter().map(|(_, spec)| spec.map(|spec| spec.action.is_pull())).collect::<Vec<_>>())
    .bind(tx.set_time())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    for pool in &pools {
        tx.signal(SignalKind::PoolQueued, pool);
    }
    Ok(())
}

/// Finds an active run beside which a retried one may not be: one with the same deduplication key, or
/// any run of its task if the overlap policy says so.
async fn rival(tx: &mut Tx, run: &EndedRow, spec: Option<&TaskSpec>) -> StoreResult<Option<RunId>> {
    let other = sqlx::query_scalar(
        "-- runs.rival
         SELECT other.id FROM switchboard.runs AS run
         JOIN switchboard.runs AS other ON other.task_id = run.task_id
         WHERE run.id = $1 AND other.state IN ('scheduled', 'queued', 'waiting', 'running')
           AND (other.task_id = $2 OR other.dedupe_key = run.dedupe_key)
         ORDER BY other.id LIMIT 1",
    )
    .bind(run.id)
    .bind(run.excluded_by(spec).map(|task| task.as_uuid()))
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(other.map(RunId::from_uuid))
}
