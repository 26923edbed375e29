//! The row of a new run, for triggers and for firing alike.

use switchboard_model::identity::ClientKey;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{RunState, Trigger};
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;

use crate::error::DbResult;
use crate::rows::later;
use crate::writer::Change;

/// A run about to be inserted.
pub(crate) struct Draft<'a> {
    pub(crate) id: RunId,
    pub(crate) task_id: TaskId,
    pub(crate) spec: &'a TaskSpec,
    pub(crate) trigger: Trigger,
    /// When it is ready, in microseconds.
    pub(crate) run_at: i64,
    /// The occurrence, in microseconds.
    pub(crate) scheduled_for: Option<i64>,
    pub(crate) dedupe_key: Option<&'a ClientKey>,
    pub(crate) input: Option<&'a JsonText>,
}

/// Inserts a run, ready or scheduled; `false` means that its occurrence has a run already.
pub(crate) async fn insert(change: &mut Change, draft: &Draft<'_>) -> DbResult<bool> {
    let state = if draft.run_at > change.schedule_now { RunState::Scheduled } else { RunState::Queued };
    let terms = draft.spec.terms(draft.task_id);
    let (key, key_max) = terms.permit.unzip();
    let (pace_key, pace) = terms.pace.map(|(key, rate)| (key, rate.to_string())).unzip();
    let inserted = sqlx::query(
        "-- runs.insert
        INSERT INTO runs (id, task_id, state, trigger, pool, priority, run_at, scheduled_for, max_attempts, timeout_ms,
            key, key_max, dedupe_key, created_at, is_pull, start_by, pace_key, pace, keep_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (task_id, scheduled_for) WHERE scheduled_for IS NOT NULL DO NOTHING",
    )
    .bind(draft.id.as_uuid())
    .bind(draft.task_id.as_uuid())
    .bind(state.as_str())
    .bind(draft.trigger.as_str())
    .bind(terms.pool.as_str())
    .bind(terms.priority)
    .bind(draft.run_at)
    .bind(draft.scheduled_for)
    .bind(terms.max_attempts)
    .bind(terms.timeout.map(Span::as_millis_i64))
    .bind(key)
    .bind(key_max)
    .bind(draft.dedupe_key.map(ClientKey::as_str))
    .bind(change.now)
    .bind(terms.is_pull)
    .bind(terms.start_deadline.map(|deadline| later(draft.run_at, deadline)))
    .bind(pace_key)
    .bind(pace)
    .bind(terms.retention.map(Span::as_millis_i64))
    .execute(&mut change.connection)
    .await?;
    if let Some(input) = draft.input {
        sqlx::query(
            "-- runs.insert_input
            INSERT INTO run_details (run_id, input) VALUES (?, ?)",
        )
        .bind(draft.id.as_uuid())
        .bind(input.as_str())
        .execute(&mut change.connection)
        .await?;
    }
    Ok(inserted.rows_affected() > 0)
}
