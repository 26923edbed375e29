//! Requests about many tasks and runs at once, and what became of each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::ClientKey;
use crate::ids::{RunId, TaskId};
use crate::json_text::JsonText;
use crate::run::{DedupeScope, RunState};
use crate::span::Span;
use crate::task::{TaskRef, TaskSpec};
use crate::wire::frame::ReplyError;
use crate::wire::limits::BULK_ITEMS;
use crate::wire::rest::TriggerResponse;

/// Creates many tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkTasksRequest {
    /// The definitions, at least one.
    #[schemars(length(min = 1, max = BULK_ITEMS))]
    pub tasks: Vec<TaskSpec>,
}

/// What creating many tasks gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BulkTasksResponse {
    /// One item for each task, in the order of the request.
    pub items: Vec<BulkTaskItem>,
}

/// What became of one of many tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkTaskItem {
    /// It was created.
    Ok(BulkTask),
    /// It was refused; its neighbours are not affected.
    Error(ReplyError),
}

/// Names a task that was created among many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BulkTask {
    /// The task.
    pub id: TaskId,
}

/// Asks for many runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRunsRequest {
    /// The runs, at least one.
    #[schemars(length(min = 1, max = BULK_ITEMS))]
    pub runs: Vec<BulkRun>,
}

/// One of many runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRun {
    /// The task to execute.
    pub task: TaskRef,
    /// What the run is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<JsonText>,
    /// How long it waits before it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// A key against doubles: while it is taken, no second run is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe_key: Option<ClientKey>,
    /// How long the key is taken: while its run is active, or for ever.
    #[serde(default)]
    pub dedupe_scope: DedupeScope,
}

/// What asking for many runs gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BulkRunsResponse {
    /// One item for each run, in the order of the request.
    pub items: Vec<BulkRunItem>,
}

/// What became of one of many runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkRunItem {
    /// It was made, or one with the same key was found.
    Ok(TriggerResponse),
    /// It was refused; its neighbours are not affected.
    Error(ReplyError),
}

/// The most runs of one redrive.
pub const REDRIVE_RUNS: u32 = 1_000;

/// Queues ended runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedriveRequest {
    /// Only runs of this task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// Only runs in this state: `failed`, `cancelled` or `dead`.
    #[schemars(extend("enum" = ["failed", "cancelled", "dead"]))]
    pub state: RunState,
    /// Only runs that came into being after this one: the `after` of the previous answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<RunId>,
    /// The most runs to look at, oldest first.
    #[serde(default = "redrive_runs")]
    #[schemars(range(min = 1, max = REDRIVE_RUNS))]
    pub limit: u32,
}

fn redrive_runs() -> u32 {
    REDRIVE_RUNS
}

/// What queueing ended runs again gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RedriveResponse {
    /// Runs that are queued again.
    pub queued: u64,
    /// Runs that stay as they are, because an active run forbids a second one.
    pub refused: u64,
    /// From where the next request goes on; absent when there are no more.
    pub after: Option<RunId>,
}
