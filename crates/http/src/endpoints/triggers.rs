//! Manual triggers: a run of a task, and its ending for callers that wait for it.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::{NewRun, Run, Trigger};
use switchboard_model::scope::Scope;
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{TriggerRequest, TriggerResponse};
use switchboard_store_api::{TriggerOutcome, WriteContext, Written};
use tokio::time::Instant;

use crate::access::Caller;
use crate::answer::{Created, FoundOrCreated};
use crate::endpoints::runs::existing;
use crate::error::ApiError;
use crate::extract::{Path, Query};
use crate::once::Once;
use crate::wait::wait_ends;
use crate::{ApiResult, App, AppState};

/// The pauses between two looks at a run: each is half as long again as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How the answer is wanted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TriggerQuery {
    /// How long to wait for the end of the run.
    wait: Option<Span>,
}

/// What a trigger gave.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum TriggerAnswer {
    Started(TriggerResponse),
    Ended(Run),
}

/// Makes a run of a task, unless its policies or an active run with the same key forbid it.
///
/// With `?wait=10s` the answer is the run once it has ended (200), or its id when the time is over before (202).
pub(crate) async fn trigger(
    State(app): State<App>,
    caller: Caller,
    Path(task_id): Path<TaskId>,
    Query(query): Query<TriggerQuery>,
    request: Once<TriggerRequest>,
) -> ApiResult<FoundOrCreated<TriggerAnswer>> {
    let until = query.wait.map(|wait| deadline(&app, &caller, wait)).transpose()?;
    let answer = start(&app, &caller, task_id, request).await?;
    let path = format!("/api/v1/runs/{}", answer.run_id);
    let created = |answer| Created::new(&app.options, &path, TriggerAnswer::Started(answer));
    Ok(match until {
        Some(until) => match ended(&app, answer.run_id, until).await? {
            Some(run) => FoundOrCreated::Found(TriggerAnswer::Ended(run)),
            None => FoundOrCreated::Created(created(answer).with_status(StatusCode::ACCEPTED)),
        },
        None if answer.duplicate => FoundOrCreated::Found(TriggerAnswer::Started(answer)),
        None => FoundOrCreated::Created(created(answer)),
    })
}

/// Finds out until when to wait, if the caller may read how the run ends.
fn deadline(app: &AppState, caller: &Caller, wait: Span) -> ApiResult<Instant> {
    caller.require(&Scope::RunsRead)?;
    wait_ends(app, wait)
}

async fn start(
    app: &AppState,
    caller: &Caller,
    task_id: TaskId,
    request: Once<TriggerRequest>,
) -> ApiResult<TriggerResponse> {
    let Once { value: TriggerRequest { input, delay, dedupe_key, dedupe_scope }, claim } = request;
    let delay = delay.unwrap_or_default();
    let run = NewRun { id: RunId::new(), task_id, trigger: Trigger::Manual, input, delay, dedupe_key, dedupe_scope };
    let context = caller.change("run.trigger", run.id).after(&json!({"task_id": task_id}))?.context();
    let context = WriteContext { once: claim, ..context };
    match app.stores.runs.trigger(&context, &run).await? {
        Written::Now(outcome) => answer(outcome),
        Written::Replayed(record) => answer(TriggerOutcome::Created(RunId::from_uuid(record.result_id))),
        Written::Mismatch => Err(ApiError::idempotency_mismatch()),
    }
}

/// Tells what a trigger gave.
///
/// # Errors
/// `conflict` when the policies of the task forbid a run now, `not_found` when there is no such task.
pub(super) fn answer(outcome: TriggerOutcome) -> ApiResult<TriggerResponse> {
    let conflict = |detail: String| Err(ApiError::new(ErrorCode::Conflict, detail));
    match outcome {
        TriggerOutcome::Created(run_id) => Ok(TriggerResponse { run_id, duplicate: false }),
        TriggerOutcome::Duplicate(run_id) | TriggerOutcome::Adopted(run_id) => {
            Ok(TriggerResponse { run_id, duplicate: true })
        }
        TriggerOutcome::Active(active) => conflict(format!(
            "run {active} of this task is active and its overlap policy is skip; wait for it, cancel it, or change the policy"
        )),
        TriggerOutcome::QueueFull => conflict(
            "as many runs of this task are waiting as its queue_max allows; wait, cancel some, or raise it".to_owned(),
        ),
        TriggerOutcome::TaskNotFound => Err(ApiError::not_found("task")),
    }
}

/// Looks at a run, wherever it is executed, until it has ended, the time is over or the replica is being stopped.
/// When the client goes away its request is dropped, and this with it.
async fn ended(app: &AppState, id: RunId, until: Instant) -> ApiResult<Option<Run>> {
    let mut pause = FIRST_PAUSE;
    loop {
        match existing(app, id).await {
            Ok(run) if run.state.is_terminal() => return Ok(Some(run)),
            Ok(_) => {}
            // The run was made all the same; a database that is away for a moment does not end the wait.
            Err(error) if error.code().is_retryable() => {}
            Err(error) => return Err(error),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || app.lifecycle.is_draining() {
            return Ok(None);
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}
