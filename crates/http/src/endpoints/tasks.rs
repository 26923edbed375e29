//! Tasks: definitions, edits and skipped occurrences.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::json;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::TaskId;
use switchboard_model::page::Page;
use switchboard_model::run::SkipRange;
use switchboard_model::schedule::{self, ScheduleError, Upcoming};
use switchboard_model::task::{Task, TaskSpec, TaskSpecError};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{PREVIEW_MOST, PreviewRequest, TaskUpdate};
use switchboard_store_api::{TaskCreateOutcome, TaskUpdateOutcome, WriteContext, Written};

use crate::access::Caller;
use crate::answer::Created;
use crate::error::ApiError;
use crate::extract::{Json, PageQuery, Path, Query};
use crate::once::Once;
use crate::{ApiResult, App, AppState};

/// Creates a task.
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    request: Once<TaskSpec>,
) -> ApiResult<Created<Task>> {
    let (id, spec) = (TaskId::new(), request.value);
    caller.require_action(&spec)?;
    let context = caller.change("task.create", id).after(&spec)?.context();
    let context = WriteContext { once: request.claim, ..context };
    let task = match app.stores.tasks.create(&context, id, &spec).await? {
        Written::Now(TaskCreateOutcome::Created(task)) => task,
        Written::Now(TaskCreateOutcome::NameTaken(holder)) => return Err(name_taken(&spec.name, holder)),
        Written::Now(TaskCreateOutcome::Refused(error)) => return Err(error.into()),
        Written::Replayed(record) => {
            let found = app.stores.tasks.get(TaskId::from_uuid(record.result_id)).await?;
            found.ok_or_else(|| ApiError::replay_is_gone("task"))?
        }
        Written::Mismatch => return Err(ApiError::idempotency_mismatch()),
    };
    Ok(Created::new(&app.options, &format!("/api/v1/tasks/{}", task.id), task))
}

/// Lists tasks in the order of their creation.
pub(crate) async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> ApiResult<Body<Page<Task>>> {
    Ok(Body(app.stores.tasks.list(&query.page()?).await?))
}

/// Shows what a schedule will do, with the reason for each occurrence that is moved or skipped.
pub(crate) async fn preview(
    State(app): State<App>,
    Json(request): Json<PreviewRequest>,
) -> ApiResult<Body<Page<Upcoming>>> {
    if !(1..=PREVIEW_MOST).contains(&request.count) {
        let detail = format!("must be between 1 and {PREVIEW_MOST}");
        return Err(ApiError::field(ErrorCode::ValidationFailed, "count", detail));
    }
    let from = request.from.or_else(|| app.stores.schedule_clock.set_time()).map_or_else(|| app.now(), Ok)?;
    let schedule = request.schedule.anchored(from).map_err(TaskSpecError::from)?;
    let items = schedule::preview(&schedule, from, request.count as usize);
    if items.is_empty() {
        return Err(TaskSpecError::from(ScheduleError::NeverFires).into());
    }
    Ok(Body(Page { items, next_cursor: None }))
}

/// Returns a task.
pub(crate) async fn get(State(app): State<App>, Path(id): Path<TaskId>) -> ApiResult<Body<Task>> {
    existing(&app, id).await.map(Body)
}

/// Replaces the definition of a task, unless somebody edited it in between.
pub(crate) async fn update(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<TaskId>,
    Json(update): Json<TaskUpdate>,
) -> ApiResult<Body<Task>> {
    caller.require_action(&update.spec)?;
    // If somebody edits in between, the version does not match and this state is not written down.
    let before = existing(&app, id).await?;
    let context = caller.change("task.update", id).before(&before.spec)?.after(&update.spec)?.context();
    match app.stores.tasks.update(&context, id, update.version, &update.spec).await? {
        TaskUpdateOutcome::Updated(task) => Ok(Body(task)),
        TaskUpdateOutcome::NotFound => Err(ApiError::not_found("task")),
        TaskUpdateOutcome::VersionMismatch(version) => Err(ApiError::new(
            ErrorCode::VersionMismatch,
            format!("the task was edited in between and has version {version} now; read it and edit again"),
        )),
        TaskUpdateOutcome::NameTaken(holder) => Err(name_taken(&update.spec.name, holder)),
        TaskUpdateOutcome::Refused(error) => Err(error.into()),
    }
}

/// Deletes a task; its runs stay.
pub(crate) async fn delete(State(app): State<App>, caller: Caller, Path(id): Path<TaskId>) -> ApiResult<StatusCode> {
    let before = existing(&app, id).await?;
    let context = caller.change("task.delete", id).before(&before.spec)?.context();
    if app.stores.tasks.delete(&context, id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("task"))
    }
}

/// Takes the schedule of a task out of force.
pub(crate) async fn pause(State(app): State<App>, caller: Caller, Path(id): Path<TaskId>) -> ApiResult<Body<Task>> {
    let [before, after] = [true, false].map(|is_active| json!({"is_active": is_active}));
    let context = caller.change("task.pause", id).before(&before)?.after(&after)?.context();
    let task = app.stores.tasks.set_active(&context, id, false).await?;
    task.map(Body).ok_or_else(|| ApiError::not_found("task"))
}

/// Puts the schedule of a task in force again.
pub(crate) async fn resume(State(app): State<App>, caller: Caller, Path(id): Path<TaskId>) -> ApiResult<Body<Task>> {
    let [before, after] = [false, true].map(|is_active| json!({"is_active": is_active}));
    let context = caller.change("task.resume", id).before(&before)?.after(&after)?.context();
    let task = app.stores.tasks.set_active(&context, id, true).await?;
    task.map(Body).ok_or_else(|| ApiError::not_found("task"))
}

/// Lists the occurrences of a task that did not run, newest first.
pub(crate) async fn skips(
    State(app): State<App>,
    Path(id): Path<TaskId>,
    Query(query): Query<PageQuery>,
) -> ApiResult<Body<Page<SkipRange>>> {
    let page = query.page()?;
    existing(&app, id).await?;
    Ok(Body(app.stores.tasks.skips(id, &page).await?))
}

/// Reads a task.
///
/// # Errors
/// `not_found` when there is none.
pub(super) async fn existing(app: &AppState, id: TaskId) -> ApiResult<Task> {
    app.stores.tasks.get(id).await?.ok_or_else(|| ApiError::not_found("task"))
}

pub(super) fn name_taken(name: &TaskName, holder: TaskId) -> ApiError {
    ApiError::field(ErrorCode::Duplicate, "name", format!("task {holder} is called {name} already"))
}
