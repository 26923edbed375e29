//! Upkeep of tasks: what cannot be read is parked, what lost its next occurrence is armed again, what was deleted goes.

use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::run::clean_error;
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_store_api::{StoreResult, UnarmedReport};
use uuid::Uuid;

use crate::connect::Database;
use crate::error::fault;
use crate::rows::count;

/// A task that this binary cannot read, as it was found.
pub(super) struct Unreadable {
    pub(super) id: Uuid,
    pub(super) version: i64,
    pub(super) error: String,
}

/// Takes rows that this binary cannot read out of the schedule until somebody edits them.
pub(super) async fn park(database: &Arc<Database>, unreadable: &[Unreadable]) -> StoreResult<()> {
    if unreadable.is_empty() {
        return Ok(());
    }
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
    .bind(unreadable.iter().map(|bad| bad.id).collect::<Vec<_>>())
    .bind(unreadable.iter().map(|bad| bad.version).collect::<Vec<_>>())
    .bind(unreadable.iter().map(|bad| clean_error(&bad.error)).collect::<Vec<_>>())
    .fetch_all(&mut *tx)
    .await
    .map_err(fault)?;
    for id in &parked {
        tracing::error!(task = %id, "a task cannot be read and is parked");
        tx.signal(SignalKind::TaskChanged, id);
    }
    tx.commit().await
}

pub(super) async fn count_unarmed(database: &Arc<Database>) -> StoreResult<u64> {
    let mut session = database.session().await?;
    let unarmed = sqlx::query_scalar(
        "-- tasks.count_unarmed
         SELECT count(*) FROM switchboard.tasks
         WHERE has_schedule AND is_active AND deleted_at IS NULL AND next_run_at IS NULL",
    )
    .fetch_one(&mut *session)
    .await
    .map_err(fault)?;
    Ok(count(unarmed))
}

pub(super) async fn repair_unarmed(database: &Arc<Database>, limit: u32) -> StoreResult<UnarmedReport> {
    let mut session = database.session().await?;
    let unarmed: Vec<(Uuid, String, i64, Timestamp)> = sqlx::query_as(
        "-- tasks.unarmed
         SELECT id, spec, version, coalesce($2, clock_timestamp()) FROM switchboard.tasks
         WHERE has_schedule AND is_active AND deleted_at IS NULL AND next_run_at IS NULL AND parked IS NULL
         ORDER BY id LIMIT $1",
    )
    .bind(i64::from(limit))
    .bind(database.schedule_clock.set_time())
    .fetch_all(&mut *session)
    .await
    .map_err(fault)?;
    drop(session);
    let mut report = UnarmedReport { found: unarmed.len() as u64, repaired: 0 };
    let (mut known, mut unreadable) = (Vec::new(), Vec::new());
    for (id, spec, version, now) in unarmed {
        match next_of(&spec, now) {
            Ok(next) => known.push((id, version, next)),
            Err(error) => unreadable.push(Unreadable { id, version, error }),
        }
    }
    park(database, &unreadable).await?;
    if !known.is_empty() {
        report.repaired = arm(database, &known).await?;
    }
    Ok(report)
}

/// Returns the next occurrence after now, if there is any.
fn next_of(spec: &str, now: Timestamp) -> Result<Option<Timestamp>, String> {
    let spec: TaskSpec = serde_json::from_str(spec).map_err(|error| error.to_string())?;
    let Some(schedule) = spec.schedule else { return Ok(None) };
    schedule.check().map_err(|error| error.to_string())?;
    Ok(schedule.next_after(now))
}

/// Arms tasks that still are as they were found; one without a next occurrence is deactivated.
async fn arm(database: &Arc<Database>, tasks: &[(Uuid, i64, Option<Timestamp>)]) -> StoreResult<u64> {
    let mut tx = database.begin().await?;
    let armed: Vec<Uuid> = sqlx::query_scalar(
        "-- tasks.arm
         WITH lost AS MATERIALIZED (
             SELECT task.id, given.next_run_at
             FROM switchboard.tasks AS task
             JOIN unnest($1::uuid[], $2::bigint[], $3::timestamptz[]) AS given (id, version, next_run_at)
                 ON task.id = given.id AND task.version = given.version
             WHERE task.has_schedule AND task.is_active AND task.deleted_at IS NULL AND task.next_run_at IS NULL
             ORDER BY task.id FOR NO KEY UPDATE OF task SKIP LOCKED
         )
         UPDATE switchboard.tasks AS task
         SET next_run_at = lost.next_run_at, is_active = lost.next_run_at IS NOT NULL
         FROM lost WHERE task.id = lost.id
         RETURNING task.id",
    )
    .bind(tasks.iter().map(|(id, ..)| *id).collect::<Vec<_>>())
    .bind(tasks.iter().map(|(_, version, _)| *version).collect::<Vec<_>>())
    .bind(tasks.iter().map(|(.., next)| *next).collect::<Vec<_>>())
    .fetch_all(&mut *tx)
    .await
    .map_err(fault)?;
    for id in &armed {
        tracing::error!(task = %id, "a task had lost its next occurrence and is armed again");
        tx.signal(SignalKind::TaskChanged, id);
    }
    tx.commit().await?;
    Ok(armed.len() as u64)
}

pub(super) async fn sweep(database: &Arc<Database>, age: Span, limit: u32) -> StoreResult<u64> {
    let mut session = database.session().await?;
    let swept: i64 = sqlx::query_scalar(
        "-- tasks.sweep
         WITH old AS MATERIALIZED (
             SELECT id FROM switchboard.tasks AS task
             WHERE deleted_at IS NOT NULL AND deleted_at < statement_timestamp() - $1 * interval '1 millisecond'
               AND NOT EXISTS (
                   SELECT FROM switchboard.runs
                   WHERE task_id = task.id AND state IN ('scheduled', 'queued', 'waiting', 'running')
                   UNION ALL
                   SELECT FROM switchboard.runs
                   WHERE task_id = task.id AND state IN ('succeeded', 'failed', 'cancelled', 'dead')
               )
               AND NOT EXISTS (SELECT FROM switchboard.task_skips WHERE task_id = task.id)
             ORDER BY deleted_at LIMIT $2 FOR UPDATE SKIP LOCKED
         ),
         keys AS (
             DELETE FROM switchboard.once WHERE scope = ANY (ARRAY (SELECT 'dedupe:' || id FROM old))
         ),
         gone AS (
             DELETE FROM switchboard.tasks WHERE id = ANY (ARRAY (SELECT id FROM old)) RETURNING id
         )
         SELECT count(*) FROM gone",
    )
    .bind(age.as_millis_i64())
    .bind(i64::from(limit))
    .fetch_one(&mut *session)
    .await
    .map_err(fault)?;
    session.commit().await?;
    Ok(count(swept))
}
