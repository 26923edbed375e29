//! Retries: ended runs that somebody wants again, one or many, as if they were new.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use switchboard_model::feed::SignalKind;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run_rule::Note;
use switchboard_model::task::{Overlap, TaskSpec};
use switchboard_store_api::{Redrive, RedriveReport, RetryOutcome, StoreError, WriteContext};
use uuid::Uuid;

use super::finish::{Current, record};
use super::{active_of_task, dedupe};
use crate::error::DbResult;
use crate::writer::Change;
use crate::{context, tasks};

pub(super) async fn retry(change: &mut Change, context: WriteContext, id: RunId) -> DbResult<RetryOutcome> {
    let Some(run) = Current::read(change, id).await? else { return Ok(RetryOutcome::NotFound) };
    if !run.state.is_terminal() {
        return Ok(RetryOutcome::NotEnded(run.state));
    }
    let spec = spec_of(change, run.task_id).await?.map_err(|error| StoreError::corrupt("task", error))?;
    if let Some(active) = rival(change, &run, spec.as_ref()).await? {
        return Ok(RetryOutcome::Active(active));
    }
    requeue(change, &run, spec.as_ref()).await?;
    change.signal(SignalKind::PoolQueued, run.pool, 0);
    context::audit(change, &context).await?;
    Ok(RetryOutcome::Queued)
}

pub(super) async fn redrive(
    change: &mut Change,
    context: WriteContext,
    which: Redrive,
    limit: u32,
) -> DbResult<RedriveReport> {
    if !which.state.is_terminal() {
        return Ok(RedriveReport::default());
    }
    let ended = ended(change, &which, limit).await?;
    let last = ended.last().filter(|_| ended.len() >= limit as usize).map(|run| run.id);
    let mut report = RedriveReport { last, ..RedriveReport::default() };
    let mut specs = HashMap::new();
    let mut pools = BTreeSet::new();
    for run in ended {
        let spec = match specs.entry(run.task_id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(spec_of(change, run.task_id).await?),
        };
        let is_refused = match spec {
            Ok(spec) if rival(change, &run, spec.as_ref()).await?.is_none() => {
                requeue(change, &run, spec.as_ref()).await?;
                false
            }
            // Whatever the policy of one that cannot be read is, it cannot be followed.
            _ => true,
        };
        if is_refused {
            report.refused += 1;
        } else {
            report.queued += 1;
            pools.insert(run.pool);
        }
    }
    for pool in pools {
        change.signal(SignalKind::PoolQueued, pool, 0);
    }
    if report.queued > 0 {
        context::audit(change, &context).await?;
    }
    Ok(report)
}

async fn ended(change: &mut Change, which: &Redrive, limit: u32) -> DbResult<Vec<Current>> {
    // Two statements, so that each has its own index to follow.
    let ended = match which.task_id {
        None => {
            "-- runs.ended
            SELECT * FROM runs WHERE ?1 IS NULL AND state = ?2 AND id > ?3 ORDER BY id LIMIT ?4"
        }
        Some(_) => {
            "-- runs.ended_of_task
            SELECT * FROM runs WHERE task_id = ?1 AND state = ?2 AND id > ?3 ORDER BY id LIMIT ?4"
        }
    };
    let ended = sqlx::query_as(ended)
        .bind(which.task_id.map(|id| id.as_uuid()))
        .bind(which.state.as_str())
        .bind(which.after.map_or(Uuid::nil(), |id| id.as_uuid()))
        .bind(limit)
        .fetch_all(&mut change.connection)
        .await?;
    Ok(ended)
}

/// Reads the definition of a task; a deleted one has no policy any more.
async fn spec_of(change: &mut Change, id: TaskId) -> DbResult<Result<Option<TaskSpec>, serde_json::Error>> {
    let row = tasks::row(&mut change.connection, id).await?;
    Ok(row.map(|row| row.spec()).transpose())
}

/// Queues a run again; who executes it follows the action of its task.
async fn requeue(change: &mut Change, run: &Current, spec: Option<&TaskSpec>) -> DbResult<()> {
    sqlx::query(
        "-- runs.requeue
        UPDATE runs SET state = 'queued', trigger = 'retry', attempt = 0, retries = retries + 1, run_at = ?1,
            start_by = ?1 + (start_by - run_at), is_pull = COALESCE(?2, is_pull), is_reclaimed = 0, is_paced = 0,
            lease_request = NULL, cancel_requested_at = NULL, started_at = NULL, finished_at = NULL, prune_at = NULL
        WHERE id = ?3",
    )
    .bind(change.schedule_now)
    .bind(spec.map(|spec| spec.action.is_pull()))
    .bind(run.id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    record(change, run.id, &Note::default()).await
}

/// Finds the active run beside which an ended one cannot be active again.
async fn rival(change: &mut Change, run: &Current, spec: Option<&TaskSpec>) -> DbResult<Option<RunId>> {
    if let Some(key) = &run.dedupe_key
        && let Some(id) = dedupe::active_with_key(change, run.task_id, key).await?
    {
        return Ok(Some(id));
    }
    match spec.map(|spec| spec.overlap) {
        Some(Overlap::Skip | Overlap::Replace) => Ok(active_of_task(change, run.task_id).await?.first().copied()),
        Some(Overlap::Allow | Overlap::Queue) | None => Ok(None),
    }
}
