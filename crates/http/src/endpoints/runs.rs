//! Runs: lists, cancellations and retries.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::page::{MAX_PAGE, Page, PageRequest};
use switchboard_model::run::{Run, RunState};
use switchboard_model::wire::bulk::{REDRIVE_RUNS, RedriveRequest, RedriveResponse};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{CancelProgress, CancelResponse};
use switchboard_store_api::{CancelOutcome, Redrive, RetryOutcome, RunFilter, WriteContext};

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{Json, Path, Query, page, within};
use crate::{ApiResult, App, AppState};

/// Which runs are asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunQuery {
    /// Only runs of this task.
    task_id: Option<TaskId>,
    /// Only runs in this state.
    state: Option<RunState>,
    /// Where the previous page ended: its `next_cursor`.
    cursor: Option<String>,
    /// The most rows to return.
    #[schemars(range(min = 1, max = MAX_PAGE), extend("default" = PageRequest::default().limit))]
    limit: Option<u32>,
}

/// Lists runs, newest first.
pub(crate) async fn list(State(app): State<App>, Query(query): Query<RunQuery>) -> ApiResult<Body<Page<Run>>> {
    let filter = RunFilter { task_id: query.task_id, state: query.state };
    Ok(Body(app.stores.runs.list(&filter, &page(query.cursor, query.limit)?).await?))
}

/// Returns a run.
pub(crate) async fn get(State(app): State<App>, Path(id): Path<RunId>) -> ApiResult<Body<Run>> {
    existing(&app, id).await.map(Body)
}

/// Cancels a run, or asks whoever executes it to stop.
pub(crate) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<RunId>,
) -> ApiResult<(StatusCode, Body<CancelResponse>)> {
    let context = intervention(&app, &caller, "run.cancel", id).await?;
    let outcome = match app.stores.runs.cancel(&context, id).await? {
        CancelOutcome::Cancelled => CancelProgress::Cancelled,
        CancelOutcome::Requested => CancelProgress::Requested,
        CancelOutcome::Ended(state) => {
            return Err(ApiError::new(ErrorCode::RunEnded, format!("the run has ended: it is {state}")));
        }
        CancelOutcome::NotFound => return Err(ApiError::not_found("run")),
    };
    Ok((StatusCode::ACCEPTED, Body(CancelResponse { outcome })))
}

/// Queues an ended run again.
pub(crate) async fn retry(State(app): State<App>, caller: Caller, Path(id): Path<RunId>) -> ApiResult<StatusCode> {
    let conflict = |detail: String| Err(ApiError::new(ErrorCode::Conflict, detail));
    let context = intervention(&app, &caller, "run.retry", id).await?;
    match app.stores.runs.retry(&context, id).await? {
        RetryOutcome::Queued => Ok(StatusCode::ACCEPTED),
        RetryOutcome::NotEnded(state) => conflict(format!("the run has not ended: it is {state}; cancel it first")),
        RetryOutcome::Active(active) => {
            conflict(format!("run {active} of the same task is active and its overlap policy forbids a second one"))
        }
        RetryOutcome::NotFound => Err(ApiError::not_found("run")),
    }
}

/// Queues many ended runs again, oldest first.
pub(crate) async fn redrive(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<RedriveRequest>,
) -> ApiResult<Body<RedriveResponse>> {
    let RedriveRequest { task_id, state, after, limit } = request;
    let limit = within(limit, REDRIVE_RUNS)?;
    if !matches!(state, RunState::Failed | RunState::Cancelled | RunState::Dead) {
        let detail = "must be failed, cancelled or dead";
        return Err(ApiError::field(ErrorCode::ValidationFailed, "state", detail));
    }
    let subject = task_id.map_or_else(|| "all tasks".to_owned(), |id| id.to_string());
    let context = caller.change("run.redrive", subject).after(&request)?.context();
    let report = app.stores.runs.redrive(&context, &Redrive { task_id, state, after }, limit).await?;
    Ok(Body(RedriveResponse { queued: report.queued, refused: report.refused, after: report.last }))
}

/// Reads a run.
///
/// # Errors
/// `not_found` when there is none.
pub(super) async fn existing(app: &AppState, id: RunId) -> ApiResult<Run> {
    app.stores.runs.get(id).await?.ok_or_else(|| ApiError::not_found("run"))
}

/// Describes what a person does to a run, and how it was just before.
async fn intervention(app: &AppState, caller: &Caller, action: &'static str, id: RunId) -> ApiResult<WriteContext> {
    let run = existing(app, id).await?;
    let before = json!({"task_id": run.task_id, "state": run.state, "attempt": run.attempt});
    Ok(caller.change(action, id).before(&before)?.context())
}
