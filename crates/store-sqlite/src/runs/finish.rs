//! How attempts end, and what follows for the run: its next state, its hold and its details.

use std::collections::HashMap;

use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _};
use switchboard_model::ids::{Fence, RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{Finish, RunState};
use switchboard_model::run_rule::{Note, Report, Standing, Step};
use switchboard_model::span::Span;
use switchboard_model::text_enum::UnknownText;
use switchboard_store_api::FinishOutcome;
use switchboard_store_api::fail_point::FailPoint;

use super::lease::next_fences;
use super::permits::Freed;
use crate::error::DbResult;
use crate::rows::later;
use crate::writer::Change;

/// What a transition decides on.
pub(super) struct Current {
    pub(super) id: RunId,
    pub(super) task_id: TaskId,
    pub(super) state: RunState,
    pub(super) pool: String,
    pub(super) is_pull: bool,
    pub(super) fence: Fence,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) key: Option<String>,
    pub(super) dedupe_key: Option<String>,
    pub(super) deadline_at: Option<i64>,
    pub(super) is_cancel_requested: bool,
    /// How long it is kept after its end, if not as long as others.
    pub(super) keep: Option<Span>,
}

impl FromRow<'_, SqliteRow> for Current {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        let state = row.try_get::<&str, _>("state")?.parse().map_err(|error: UnknownText| {
            sqlx::Error::ColumnDecode { index: "state".to_owned(), source: error.into() }
        })?;
        Ok(Self {
            id: RunId::from_uuid(row.try_get("id")?),
            task_id: TaskId::from_uuid(row.try_get("task_id")?),
            state,
            pool: row.try_get("pool")?,
            is_pull: row.try_get("is_pull")?,
            fence: Fence(row.try_get("fence")?),
            attempt: row.try_get("attempt")?,
            max_attempts: row.try_get("max_attempts")?,
            key: row.try_get("key")?,
            dedupe_key: row.try_get("dedupe_key")?,
            deadline_at: row.try_get("deadline_at")?,
            is_cancel_requested: row.try_get::<Option<i64>, _>("cancel_requested_at")?.is_some(),
            keep: row.try_get::<Option<i64>, _>("keep_ms")?.map(|ms| Span::from_millis(ms.unsigned_abs())),
        })
    }
}

impl Current {
    /// Reads a run.
    pub(super) async fn read(change: &mut Change, id: RunId) -> DbResult<Option<Self>> {
        let current = sqlx::query_as(
            "-- runs.read_current
            SELECT * FROM runs WHERE id = ?",
        )
        .bind(id.as_uuid())
        .fetch_optional(&mut change.connection)
        .await?;
        Ok(current)
    }

    /// Reads those runs that exist.
    async fn read_all(change: &mut Change, ids: &[RunId]) -> DbResult<Vec<Self>> {
        let runs = sqlx::query_as(
            "-- runs.read_all
            SELECT runs.* FROM json_each(?) AS asked CROSS JOIN runs ON runs.id = unhex(asked.value, '-')",
        )
        .bind(serde_json::to_string(ids)?)
        .fetch_all(&mut change.connection)
        .await?;
        Ok(runs)
    }

    /// Returns what is left to it at `now`, in microseconds.
    pub(super) fn standing(&self, now: i64) -> Standing {
        Standing {
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            is_to_be_cancelled: self.is_cancel_requested,
            is_past_deadline: self.deadline_at.is_some_and(|deadline| deadline <= now),
        }
    }
}

/// Moves a run on, keeps what is known of its attempt, and takes its hold away unless it keeps it; what became free is
/// noted in `freed`.
pub(super) async fn depart(change: &mut Change, run: &Current, step: &Step, freed: &mut Freed) -> DbResult<()> {
    let ended_at = step.state.is_terminal().then_some(change.now);
    let fence = if step.is_reclaimed { next_fences(change, 1).await? } else { run.fence.0 };
    sqlx::query(
        "-- runs.depart
        UPDATE runs SET state = ?2, run_at = COALESCE(?3, run_at), attempt = ?4, is_reclaimed = is_reclaimed OR ?5,
            fence = ?6, finished_at = ?7, prune_at = ?8, is_paced = 0, lease_until = NULL, deadline_at = NULL
        WHERE id = ?1",
    )
    .bind(run.id.as_uuid())
    .bind(step.state.as_str())
    .bind(step.delay.map(|delay| later(change.schedule_now, delay)))
    .bind(step.attempt)
    .bind(step.is_reclaimed)
    .bind(fence)
    .bind(ended_at)
    .bind(ended_at.zip(run.keep).map(|(ended_at, keep)| later(ended_at, keep)))
    .execute(&mut change.connection)
    .await?;
    if let Some(note) = &step.note {
        record(change, run.id, note).await?;
    }
    if step.state == RunState::Queued {
        freed.note_pool(&run.pool);
    }
    if run.state == RunState::Running {
        freed.note_left(run, step);
    }
    freed.release(change, run, step.state).await
}

/// Keeps what an attempt returned, or why it failed.
pub(super) async fn record(change: &mut Change, id: RunId, note: &Note) -> DbResult<()> {
    sqlx::query(
        "-- runs.record
        INSERT INTO run_details (run_id, result, error) VALUES (?, ?, ?)
        ON CONFLICT (run_id) DO UPDATE SET result = excluded.result, error = excluded.error",
    )
    .bind(id.as_uuid())
    .bind(note.result.as_ref().map(JsonText::as_str))
    .bind(note.error.as_deref())
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

pub(super) async fn finish(change: &mut Change, finishes: Vec<Finish>) -> DbResult<Vec<FinishOutcome>> {
    change.pass_at_commit([FailPoint::BeforeFinishCommit, FailPoint::AfterFinishCommit]);
    let ids: Vec<RunId> = finishes.iter().map(|finish| finish.id).collect();
    let mut runs: HashMap<RunId, Current> =
        Current::read_all(change, &ids).await?.into_iter().map(|run| (run.id, run)).collect();
    let mut freed = Freed::default();
    let mut outcomes = Vec::with_capacity(finishes.len());
    for finish in finishes {
        let Some(run) = runs.get_mut(&finish.id) else {
            outcomes.push(FinishOutcome::Fenced);
            continue;
        };
        outcomes.push(match Report::judge(finish.fence, run.fence, run.state) {
            Report::Stale => FinishOutcome::Fenced,
            Report::Repeated => FinishOutcome::Repeated(run.state),
            Report::Current => {
                let step = run.standing(change.now).after(&finish.ending);
                depart(change, run, &step, &mut freed).await?;
                run.state = step.state;
                FinishOutcome::Accepted(step.state)
            }
        });
    }
    freed.promote(change).await?;
    Ok(outcomes)
}
