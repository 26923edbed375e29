//! Deduplication keys: those that hold for ever are once-keys, the others hold while a run with them is active.

use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::{DedupeScope, NewRun};
use uuid::Uuid;

use crate::error::DbResult;
use crate::writer::Change;

/// Returns the scope and the key of the once-key, if the key of this run holds for ever.
fn once_key(run: &NewRun) -> Option<(String, &str)> {
    let key = run.dedupe_key.as_ref().filter(|_| run.dedupe_scope == DedupeScope::Forever)?;
    Some((format!("dedupe:{}", run.task_id), key.as_str()))
}

/// Finds the run that has the key of this one for ever.
pub(super) async fn holder(change: &mut Change, run: &NewRun) -> DbResult<Option<RunId>> {
    let Some((scope, key)) = once_key(run) else { return Ok(None) };
    let found: Option<Uuid> = sqlx::query_scalar(
        "-- once.find_dedupe_key
        SELECT result_id FROM once WHERE scope = ? AND key = ?",
    )
    .bind(scope)
    .bind(key)
    .fetch_optional(&mut change.connection)
    .await?;
    Ok(found.map(RunId::from_uuid))
}

/// Keeps the key of this run, if it holds for ever, for the run that carries it out.
pub(super) async fn keep(change: &mut Change, run: &NewRun, holder: RunId) -> DbResult<()> {
    let Some((scope, key)) = once_key(run) else { return Ok(()) };
    sqlx::query(
        "-- once.keep_dedupe_key
        INSERT INTO once (scope, key, request_hash, result_id, expires_at) VALUES (?, ?, x'', ?, ?)",
    )
    .bind(scope)
    .bind(key)
    .bind(holder.as_uuid())
    .bind(i64::MAX)
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

/// Finds the active run of a task that has a key.
pub(super) async fn active_with_key(change: &mut Change, id: TaskId, key: &str) -> DbResult<Option<RunId>> {
    let found: Option<Uuid> = sqlx::query_scalar(
        "-- runs.active_with_dedupe_key
        SELECT id FROM runs
        WHERE task_id = ? AND dedupe_key = ? AND state IN ('scheduled', 'queued', 'waiting', 'running')",
    )
    .bind(id.as_uuid())
    .bind(key)
    .fetch_optional(&mut change.connection)
    .await?;
    Ok(found.map(RunId::from_uuid))
}
