//! Tasks as code: read and put by name, so that the same request makes a task, edits it or changes nothing.

use axum::Json as Body;
use axum::extract::{FromRequestParts, State};
use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use switchboard_model::identity::TaskName;
use switchboard_model::ids::TaskId;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::{TaskCreateOutcome, TaskUpdateOutcome};

use crate::access::Caller;
use crate::answer::{Created, FoundOrCreated, Tagged};
use crate::error::ApiError;
use crate::extract::{Json, Path};
use crate::openapi::{Part, Sketch};
use crate::{ApiResult, App, AppState};

/// How often a put that collides with edits by others starts over.
const TRIES: u32 = 5;

/// Finds a task by name.
pub(crate) async fn get(State(app): State<App>, Path(name): Path<TaskName>) -> ApiResult<Tagged<Body<Task>>> {
    let task = app.stores.tasks.find(&name).await?.ok_or_else(|| ApiError::not_found("task"))?;
    Ok(Tagged { version: task.version, answer: Body(task) })
}

type Put = Tagged<FoundOrCreated<Task>>;

/// Makes the task of this name, or replaces its definition.
pub(crate) async fn put(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<TaskName>,
    condition: Condition,
    Json(spec): Json<TaskSpec>,
) -> ApiResult<Put> {
    if spec.name != name {
        let detail = format!("must be {name}, as in the path; a task is renamed under its id");
        return Err(ApiError::field(ErrorCode::ValidationFailed, "name", detail));
    }
    caller.require_action(&spec)?;
    for _ in 0..TRIES {
        let found = app.stores.tasks.find(&name).await?;
        condition.check(found.as_ref())?;
        let done = match found {
            None => create(&app, &caller, &spec).await?,
            Some(task) => edit(&app, &caller, &task, &spec).await?,
        };
        if let Some(response) = done {
            return Ok(response);
        }
    }
    Err(ApiError::unavailable("the task was edited by others again and again; repeat the request"))
}

/// Makes the task; `None` when somebody else did in between.
async fn create(app: &AppState, caller: &Caller, spec: &TaskSpec) -> ApiResult<Option<Put>> {
    let id = TaskId::new();
    let context = caller.change("task.create", id).after(spec)?.context();
    match app.stores.tasks.create(&context, id, spec).await?.now() {
        Some(TaskCreateOutcome::Created(task)) => {
            let version = task.version;
            let created = Created::new(&app.options, &format!("/api/v1/tasks/{}", task.id), task);
            Ok(Some(Tagged { version, answer: FoundOrCreated::Created(created) }))
        }
        Some(TaskCreateOutcome::Refused(error)) => Err(error.into()),
        Some(TaskCreateOutcome::NameTaken(_)) | None => Ok(None),
    }
}

/// Replaces the definition; `None` when somebody edited, renamed or deleted the task in between.
async fn edit(app: &AppState, caller: &Caller, before: &Task, spec: &TaskSpec) -> ApiResult<Option<Put>> {
    let context = caller.change("task.update", before.id).before(&before.spec)?.after(spec)?.context();
    match app.stores.tasks.update(&context, before.id, before.version, spec).await? {
        TaskUpdateOutcome::Updated(task) => {
            Ok(Some(Tagged { version: task.version, answer: FoundOrCreated::Found(task) }))
        }
        TaskUpdateOutcome::Refused(error) => Err(error.into()),
        TaskUpdateOutcome::NotFound | TaskUpdateOutcome::VersionMismatch(_) | TaskUpdateOutcome::NameTaken(_) => {
            Ok(None)
        }
    }
}

/// Which state of the task the caller insists on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// None.
    Any,
    /// There is no such task.
    Absent,
    /// There is one, of any version.
    Present,
    /// It has this version.
    Version(i64),
}

impl<S: Sync> FromRequestParts<S> for Condition {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Self::read(&parts.headers)
    }
}

impl Part for Condition {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.takes_header("If-Match", "The version that must be there, in double quotes, or `*` for any.");
        sketch.takes_header("If-None-Match", "`*`: there must be no such task.");
    }
}

impl Condition {
    /// Reads `If-Match: "3"`, `If-Match: *` or `If-None-Match: *`.
    fn read(headers: &HeaderMap) -> ApiResult<Self> {
        let refuse = |header: HeaderName, detail: &str| {
            Err(ApiError::field(ErrorCode::ValidationFailed, header.as_str(), detail))
        };
        let text = |header: HeaderName| headers.get(header).map(|value| value.to_str().unwrap_or_default().trim());
        match (text(IF_MATCH), text(IF_NONE_MATCH)) {
            (None, None) => Ok(Self::Any),
            (None, Some("*")) => Ok(Self::Absent),
            (None, Some(_)) => refuse(IF_NONE_MATCH, "must be *, which means that the task must not exist"),
            (Some("*"), None) => Ok(Self::Present),
            (Some(tag), None) => {
                let version = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
                match version.and_then(|version| version.parse().ok()) {
                    Some(version) => Ok(Self::Version(version)),
                    None => refuse(IF_MATCH, "must be * or one version in double quotes, such as \"3\""),
                }
            }
            (Some(_), Some(_)) => refuse(IF_MATCH, "cannot be combined with if-none-match"),
        }
    }

    /// Compares the condition with what was found.
    fn check(self, found: Option<&Task>) -> ApiResult<()> {
        let mismatch = |detail: String| Err(ApiError::new(ErrorCode::VersionMismatch, detail));
        match (self, found) {
            (Self::Any, _) | (Self::Absent, None) | (Self::Present, Some(_)) => Ok(()),
            (Self::Version(version), Some(task)) if task.version == version => Ok(()),
            (Self::Absent, Some(task)) => {
                mismatch(format!("the task exists and has version {}; it must not by if-none-match", task.version))
            }
            (Self::Version(_), Some(task)) => {
                mismatch(format!("the task has version {} now; read it and edit again", task.version))
            }
            (Self::Present | Self::Version(_), None) => mismatch("there is no task of this name".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_strictly() {
        let read = |pairs: &[(HeaderName, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(name, value.parse().unwrap());
            }
            Condition::read(&headers).ok()
        };
        assert_eq!(read(&[]), Some(Condition::Any));
        assert_eq!(read(&[(IF_MATCH, "\"3\"")]), Some(Condition::Version(3)));
        assert_eq!(read(&[(IF_MATCH, "*")]), Some(Condition::Present));
        assert_eq!(read(&[(IF_NONE_MATCH, "*")]), Some(Condition::Absent));
        for bad in ["3", "W/\"3\"", "\"3\", \"4\"", "\"x\"", ""] {
            assert_eq!(read(&[(IF_MATCH, bad)]), None, "{bad}");
        }
        assert_eq!(read(&[(IF_NONE_MATCH, "\"3\"")]), None);
        assert_eq!(read(&[(IF_MATCH, "*"), (IF_NONE_MATCH, "*")]), None);
    }
}
