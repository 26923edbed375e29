//! How attempts end, and what follows for the run: its next state, its hold and its details.

use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _};
use switchboard_model::ids::{Fence, RunId, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{Ending, Finish, RunState, clean_error};
use switchboard_model::text_enum::UnknownText;
use switchboard_store_api::FinishOutcome;
use switchboard_store_api::fail_point::FailPoint;

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
    pub(super) fence: Fence,
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) key: Option<String>,
    pub(super) dedupe_key: Option<String>,
    pub(super) deadline_at: Option<i64>,
    pub(super) is_cancel_requested: bool,
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
            fence: Fence(row.try_get("fence")?),
            attempt: row.try_get("attempt")?,
            max_attempts: row.try_get("max_attempts")?,
            key: row.try_get("key")?,
            dedupe_key: row.try_get("dedupe_key")?,
            deadline_at: row.try_get("deadline_at")?,
            is_cancel_requested: row.try_get::<Option<i64>, _>("cancel_requested_at")?.is_some(),
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

    pub(super) fn has_attempts_left(&self) -> bool {
        self.attempt < self.max_attempts
    }
}

/// Where a run goes when it leaves its state.
pub(super) struct Departure {
    pub(super) state: RunState,
    /// When it is ready again, in microseconds; `None` keeps its place.
    pub(super) run_at: Option<i64>,
    pub(super) attempt: u32,
    pub(super) is_reclaimed: bool,
}

impl Departure {
    /// Leaves for another state and changes nothing else.
    pub(super) fn to(run: &Current, state: RunState) -> Self {
        Self { state, run_at: None, attempt: run.attempt, is_reclaimed: false }
    }
}

/// Moves a run on and takes its hold away unless it keeps it; what became free is noted in `freed`.
pub(super) async fn depart(
    change: &mut Change,
    run: &Current,
    departure: Departure,
    freed: &mut Freed,
) -> DbResult<()> {
    let state = departure.state;
    sqlx::query(
        "-- runs.depart
        UPDATE runs SET state = ?2, run_at = COALESCE(?3, run_at), attempt = ?4, is_reclaimed = is_reclaimed OR ?5,
            finished_at = ?6, lease_until = NULL, deadline_at = NULL
        WHERE id = ?1",
    )
    .bind(run.id.as_uuid())
    .bind(state.as_str())
    .bind(departure.run_at)
    .bind(departure.attempt)
    .bind(departure.is_reclaimed)
    .bind(state.is_terminal().then_some(change.now))
    .execute(&mut change.connection)
    .await?;
    if state == RunState::Queued {
        freed.note_pool(&run.pool);
    }
    freed.release(change, run, state).await
}

/// Keeps what an attempt returned, or why it failed.
pub(super) async fn record(
    change: &mut Change,
    id: RunId,
    result: Option<&JsonText>,
    error: Option<&str>,
) -> DbResult<()> {
    sqlx::query(
        "-- runs.record
        INSERT INTO run_details (run_id, result, error) VALUES (?, ?, ?)
        ON CONFLICT (run_id) DO UPDATE SET result = excluded.result, error = excluded.error",
    )
    .bind(id.as_uuid())
    .bind(result.map(JsonText::as_str))
    .bind(error.map(clean_error))
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

pub(super) async fn finish(change: &mut Change, finishes: Vec<Finish>) -> DbResult<Vec<FinishOutcome>> {
    change.pass_at_commit([FailPoint::BeforeFinishCommit, FailPoint::AfterFinishCommit]);
    let mut freed = Freed::default();
    let mut outcomes = Vec::with_capacity(finishes.len());
    for finish in finishes {
        let held = Current::read(change, finish.id)
            .await?
            .filter(|run| run.state == RunState::Running && run.fence == finish.fence);
        outcomes.push(match held {
            None => FinishOutcome::Fenced,
            Some(run) => FinishOutcome::Accepted(end(change, &run, finish.ending, &mut freed).await?),
        });
    }
    freed.promote(change).await?;
    Ok(outcomes)
}

/// Ends one attempt and returns the state that follows.
async fn end(change: &mut Change, run: &Current, ending: Ending, freed: &mut Freed) -> DbResult<RunState> {
    let departure = match &ending {
        Ending::Succeeded(_) => Departure::to(run, RunState::Succeeded),
        Ending::Failed(_) => Departure::to(run, RunState::Failed),
        Ending::Cancelled => Departure::to(run, RunState::Cancelled),
        Ending::Retry { .. } | Ending::Released if run.is_cancel_requested => Departure::to(run, RunState::Cancelled),
        Ending::Retry { delay, .. } if run.has_attempts_left() => {
            Departure { run_at: Some(later(change.schedule_now, *delay)), ..Departure::to(run, RunState::Scheduled) }
        }
        Ending::Retry { .. } => Departure::to(run, RunState::Dead),
        Ending::Released => {
            Departure { attempt: run.attempt.saturating_sub(1), ..Departure::to(run, RunState::Queued) }
        }
    };
    match &ending {
        Ending::Succeeded(result) => record(change, run.id, result.as_ref(), None).await?,
        Ending::Failed(error) | Ending::Retry { error, .. } => record(change, run.id, None, Some(error)).await?,
        Ending::Cancelled | Ending::Released => {}
    }
    let state = departure.state;
    depart(change, run, departure, freed).await?;
    Ok(state)
}
