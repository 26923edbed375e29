//! The end of what is kept: old runs and skipped ranges, and permit keys that nothing needs.

use std::sync::Arc;

use switchboard_model::span::Span;
use switchboard_store_api::StoreResult;

use crate::connect::Database;
use crate::error::fault;
use crate::rows::count;

pub(super) async fn sweep(database: &Arc<Database>, age: Span, limit: u32) -> StoreResult<u64> {
    Ok(sweep_history(database, age, limit).await? + sweep_keys(database, limit).await?)
}

/// Deletes runs that are older than their own retention, or than `age` without one, and skipped ranges.
async fn sweep_history(database: &Arc<Database>, age: Span, limit: u32) -> StoreResult<u64> {
    let mut session = database.session().await?;
    let deleted = sqlx::query_scalar(
        "-- runs.sweep
         WITH old AS MATERIALIZED (
             SELECT id FROM switchboard.runs
             WHERE finished_at IS NOT NULL AND prune_at IS NULL
               AND finished_at < statement_timestamp() - $1 * interval '1 millisecond'
             ORDER BY finished_at LIMIT $2 FOR UPDATE SKIP LOCKED
         ),
         outlived AS MATERIALIZED (
             SELECT id FROM switchboard.runs
             WHERE prune_at <= statement_timestamp() AND finished_at IS NOT NULL
             ORDER BY prune_at LIMIT $2 FOR UPDATE SKIP LOCKED
         ),
         gone AS MATERIALIZED (
             SELECT id FROM old UNION ALL SELECT id FROM outlived LIMIT $2
         ),
         old_skips AS MATERIALIZED (
             SELECT task_id, from_at, cause FROM switchboard.task_skips
             WHERE to_at < statement_timestamp() - $1 * interval '1 millisecond'
             ORDER BY to_at LIMIT $2 FOR UPDATE SKIP LOCKED
         ),
         runs AS (
             DELETE FROM switchboard.runs WHERE id = ANY (ARRAY (SELECT id FROM gone)) RETURNING id
         ),
         details AS (
             DELETE FROM switchboard.run_details WHERE run_id = ANY (ARRAY (SELECT id FROM gone))
         ),
         skips AS (
             DELETE FROM switchboard.task_skips AS skip USING old_skips AS old
             WHERE skip.task_id = old.task_id AND skip.from_at = old.from_at AND skip.cause = old.cause
             RETURNING skip.task_id
         )
         SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM skips)",
    )
    .bind(age.as_millis_i64())
    .bind(i64::from(limit))
    .fetch_one(&mut *session)
    .await
    .map_err(fault)?;
    session.commit().await?;
    Ok(count(deleted))
}

/// Deletes permit keys that no run holds or waits for, unless a task or a pool that is there will need them again.
/// A run that is leased makes its key again; whoever holds or waits began to under the lock on the key, so only a look
/// after that lock decides.
async fn sweep_keys(database: &Arc<Database>, limit: u32) -> StoreResult<u64> {
    let mut tx = database.begin().await?;
    let unused: Vec<String> = sqlx::query_scalar(
        "-- runs.lock_unused_keys
         SELECT key FROM switchboard.run_keys AS known
         WHERE NOT EXISTS (SELECT FROM switchboard.run_holds AS hold WHERE hold.key = known.key)
           AND NOT EXISTS (
               SELECT FROM switchboard.runs AS run
               WHERE run.state = 'waiting' AND NOT run.is_paced AND run.key = known.key
           )
           AND NOT EXISTS (
               SELECT FROM switchboard.tasks AS task
               WHERE task.id = CASE WHEN known.key ~ '^task:[0-9a-f-]{36}$' THEN substr(known.key, 6)::uuid END
                 AND task.deleted_at IS NULL
           )
           AND NOT EXISTS (
               SELECT FROM switchboard.settings AS fleet
               WHERE fleet.name = 'fleet' AND known.key LIKE 'pool:%'
                 AND (fleet.value::jsonb -> 'pools' -> substr(known.key, 6) ->> 'max_running')::bigint > 0
           )
         LIMIT $1 FOR UPDATE OF known SKIP LOCKED",
    )
    .bind(i64::from(limit))
    .fetch_all(&mut *tx)
    .await
    .map_err(fault)?;
    if unused.is_empty() {
        return tx.undo(0).await;
    }
    let deleted = sqlx::query(
        "-- runs.sweep_keys
         DELETE FROM switchboard.run_keys AS known
         WHERE key = ANY ($1)
           AND NOT EXISTS (SELECT FROM switchboard.run_holds AS hold WHERE hold.key = known.key)
           AND NOT EXISTS (
               SELECT FROM switchboard.runs AS run
               WHERE run.state = 'waiting' AND NOT run.is_paced AND run.key = known.key
           )",
    )
    .bind(&unused)
    .execute(&mut *tx)
    .await
    .map_err(fault)?
    .rows_affected();
    tx.commit().await?;
    Ok(deleted)
}
