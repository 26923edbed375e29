//! Tasks over REST.

use reqwest::Method;
use serde::Serialize;
use switchboard_model::Timestamp;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::TaskId;
use switchboard_model::occurrence::Occurrence;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::SkipRange;
use switchboard_model::schedule::Upcoming;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_model::wire::rest::{PreviewRequest, TaskUpdate, TriggerRequest, TriggerResponse};

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

/// Which occurrences of a task are asked for; the default is all that were due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OccurrenceQuery {
    /// The first instant.
    pub from: Option<Timestamp>,
    /// The last instant; one in the future asks for occurrences to come.
    pub to: Option<Timestamp>,
}

impl Client {
    /// Creates a task.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_task(&self, spec: &TaskSpec) -> Result<Task, ClientError> {
        fetch(self.api(Method::POST, &["tasks"]).json(spec)).await
    }

    /// Returns a task.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_task(&self, id: TaskId) -> Result<Task, ClientError> {
        fetch(self.api(Method::GET, &["tasks", &id.to_string()])).await
    }

    /// Returns the task with this name.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn find_task(&self, name: &TaskName) -> Result<Task, ClientError> {
        fetch(self.api(Method::GET, &["tasks", "by-name", name.as_str()])).await
    }

    /// Returns a page of all tasks.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_tasks(&self, page: PageRequest) -> Result<Page<Task>, ClientError> {
        fetch(self.api_page(&["tasks"], &page)).await
    }

    /// Shows what a schedule will do, without storing anything.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn preview_schedule(&self, request: &PreviewRequest) -> Result<Page<Upcoming>, ClientError> {
        fetch(self.api(Method::POST, &["tasks", "preview"]).json(request)).await
    }

    /// Replaces the definition of a task, unless somebody edited it in between.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn update_task(&self, id: TaskId, update: &TaskUpdate) -> Result<Task, ClientError> {
        fetch(self.api(Method::PUT, &["tasks", &id.to_string()]).json(update)).await
    }

    /// Makes the task of this name exist as defined: creates it, or replaces its definition whatever its version.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put_task(&self, spec: &TaskSpec) -> Result<Task, ClientError> {
        fetch(self.api(Method::PUT, &["tasks", "by-name", spec.name.as_str()]).json(spec)).await
    }

    /// Deletes a task; its runs stay.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_task(&self, id: TaskId) -> Result<(), ClientError> {
        send(self.api(Method::DELETE, &["tasks", &id.to_string()])).await.map(drop)
    }

    /// Asks for a run of a task.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn trigger_task(&self, id: TaskId, request: &TriggerRequest) -> Result<TriggerResponse, ClientError> {
        fetch(self.api(Method::POST, &["tasks", &id.to_string(), "trigger"]).json(request)).await
    }

    /// Takes the schedule of a task out of force.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn pause_task(&self, id: TaskId) -> Result<Task, ClientError> {
        fetch(self.api(Method::POST, &["tasks", &id.to_string(), "pause"])).await
    }

    /// Puts the schedule of a task in force again.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn resume_task(&self, id: TaskId) -> Result<Task, ClientError> {
        fetch(self.api(Method::POST, &["tasks", &id.to_string(), "resume"])).await
    }

    /// Returns a page of the occurrences of a task, newest first: the run of each, or why there is none.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_occurrences(
        &self,
        id: TaskId,
        query: OccurrenceQuery,
        page: PageRequest,
    ) -> Result<Page<Occurrence>, ClientError> {
        fetch(self.api_page(&["tasks", &id.to_string(), "occurrences"], &page).query(&query)).await
    }

    /// Returns a page of the occurrences of a task that did not run, and why.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_skips(&self, id: TaskId, page: PageRequest) -> Result<Page<SkipRange>, ClientError> {
        fetch(self.api_page(&["tasks", &id.to_string(), "skips"], &page)).await
    }
}
