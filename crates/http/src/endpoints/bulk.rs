//! Many tasks or runs in one request and one commit, with an outcome for each.

use std::collections::HashMap;

use axum::Json as Body;
use axum::extract::State;
use serde::de::DeserializeOwned;
use serde_json::json;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::{NewRun, Trigger};
use switchboard_model::task::{TaskRef, TaskSpec};
use switchboard_model::wire::bulk::{
    BulkRun, BulkRunItem, BulkRunsRequest, BulkRunsResponse, BulkTask, BulkTaskItem, BulkTasksRequest,
    BulkTasksResponse,
};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::ReplyError;
use switchboard_model::wire::limits::BULK_ITEMS;
use switchboard_store_api::{OnceRecord, TaskCreateOutcome, TriggerOutcome, WriteContext, Written};
use uuid::Uuid;

use super::{tasks, triggers};
use crate::access::Caller;
use crate::error::ApiError;
use crate::once::Once;
use crate::{ApiResult, App, AppState};

/// Creates many tasks in one commit; a refused one does not affect its neighbours.
pub(crate) async fn create_tasks(
    State(app): State<App>,
    caller: Caller,
    request: Once<BulkTasksRequest>,
) -> ApiResult<Body<BulkTasksResponse>> {
    let specs = request.value.tasks;
    let count = bounded("tasks", specs.len())?;
    specs.iter().try_for_each(|spec| caller.require_action(spec))?;
    let created: Vec<(TaskId, TaskSpec)> = specs.into_iter().map(|spec| (TaskId::new(), spec)).collect();
    let context = caller.change("task.create_many", format_args!("{count} tasks"));
    let context = context.after(&json!({"first": created.first().map(|(id, _)| id), "count": count}))?.context();
    let context = WriteContext { once: request.claim, ..context };
    let items = match app.stores.tasks.create_many(&context, &created).await? {
        Written::Now(outcomes) => {
            created.into_iter().zip(outcomes).map(|((_, spec), outcome)| task_item(&spec.name, outcome)).collect()
        }
        Written::Replayed(record) => {
            let ids: Vec<Option<TaskId>> = remembered(record)?;
            ids.into_iter().map(remembered_task).collect()
        }
        Written::Mismatch => return Err(ApiError::idempotency_mismatch()),
    };
    Ok(Body(BulkTasksResponse { items }))
}

fn task_item(name: &TaskName, outcome: TaskCreateOutcome) -> BulkTaskItem {
    let refused = |error: ApiError| BulkTaskItem::Error(error.into());
    match outcome {
        TaskCreateOutcome::Created(task) => BulkTaskItem::Ok(BulkTask { id: task.id }),
        TaskCreateOutcome::NameTaken(holder) => refused(tasks::name_taken(name, holder)),
        TaskCreateOutcome::Refused(error) => refused(error.into()),
    }
}

/// Of what was refused, only that is remembered.
fn remembered_task(id: Option<TaskId>) -> BulkTaskItem {
    match id {
        Some(id) => BulkTaskItem::Ok(BulkTask { id }),
        None => BulkTaskItem::Error(ReplyError::new(
            ErrorCode::Conflict,
            "the first request with this idempotency key was refused this task and told why",
        )),
    }
}

/// Makes many runs in one commit; a refused one does not affect its neighbours.
pub(crate) async fn trigger_runs(
    State(app): State<App>,
    caller: Caller,
    request: Once<BulkRunsRequest>,
) -> ApiResult<Body<BulkRunsResponse>> {
    let asked = request.value.runs;
    let count = bounded("runs", asked.len())?;
    let runs = resolved(&app, asked).await?;
    let context = caller.change("run.trigger_many", format_args!("{count} runs"));
    let context = context.after(&json!({"first": runs.first().map(|run| run.id), "count": count}))?.context();
    let context = WriteContext { once: request.claim, ..context };
    let outcomes: Vec<TriggerOutcome> = match app.stores.runs.trigger_many(&context, &runs).await? {
        Written::Now(outcomes) => outcomes,
        Written::Replayed(record) => remembered(record)?,
        Written::Mismatch => return Err(ApiError::idempotency_mismatch()),
    };
    let item = |outcome| match triggers::answer(outcome) {
        Ok(answer) => BulkRunItem::Ok(answer),
        Err(error) => BulkRunItem::Error(error.into()),
    };
    Ok(Body(BulkRunsResponse { items: outcomes.into_iter().map(item).collect() }))
}

/// Finds the tasks of runs by name. The nil identity stands for a task that does not exist, so that the store answers
/// for each run, and for a repeated request what it answered the first time.
async fn resolved(app: &AppState, asked: Vec<BulkRun>) -> ApiResult<Vec<NewRun>> {
    let mut known: HashMap<TaskName, TaskId> = HashMap::new();
    let mut runs = Vec::with_capacity(asked.len());
    for run in asked {
        let task_id = match run.task {
            TaskRef::Id(id) => id,
            TaskRef::Name(name) => match known.get(&name) {
                Some(id) => *id,
                None => {
                    let found = app.stores.tasks.find(&name).await?;
                    let id = found.map_or(TaskId::from_uuid(Uuid::nil()), |task| task.id);
                    known.insert(name, id);
                    id
                }
            },
        };
        runs.push(NewRun {
            id: RunId::new(),
            task_id,
            trigger: Trigger::Manual,
            input: run.input,
            delay: run.delay.unwrap_or_default(),
            dedupe_key: run.dedupe_key,
            dedupe_scope: run.dedupe_scope,
        });
    }
    Ok(runs)
}

/// Checks how many things a request makes.
fn bounded(field: &str, count: usize) -> ApiResult<usize> {
    if (1..=BULK_ITEMS).contains(&count) {
        Ok(count)
    } else {
        let detail = format!("must have between 1 and {BULK_ITEMS} items");
        Err(ApiError::field(ErrorCode::ValidationFailed, field, detail))
    }
}

/// Reads what a once-key remembers.
fn remembered<T: DeserializeOwned>(record: OnceRecord) -> ApiResult<Vec<T>> {
    let outcomes = record.result.and_then(|result| serde_json::from_str(result.as_str()).ok());
    outcomes.ok_or_else(|| {
        tracing::error!("the record of an idempotency key cannot be read");
        ApiError::internal()
    })
}
