//! Runs over REST.

use reqwest::Method;
use serde::Serialize;
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{Run, RunState};
use switchboard_model::wire::rest::{CancelProgress, CancelResponse};

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

/// Which runs a list shows; the default is all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunQuery {
    /// Only runs of this task.
    pub task_id: Option<TaskId>,
    /// Only runs in this state.
    pub state: Option<RunState>,
}

impl Client {
    /// Returns a page of the runs that `query` selects.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_runs(&self, query: RunQuery, page: PageRequest) -> Result<Page<Run>, ClientError> {
        fetch(self.api_page(&["runs"], &page).query(&query)).await
    }

    /// Returns a run.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_run(&self, id: RunId) -> Result<Run, ClientError> {
        fetch(self.api(Method::GET, &["runs", &id.to_string()])).await
    }

    /// Asks to cancel a run and tells how far that has come.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn cancel_run(&self, id: RunId) -> Result<CancelProgress, ClientError> {
        let response: CancelResponse = fetch(self.api(Method::POST, &["runs", &id.to_string(), "cancel"])).await?;
        Ok(response.outcome)
    }

    /// Queues an ended run again.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn retry_run(&self, id: RunId) -> Result<(), ClientError> {
        send(self.api(Method::POST, &["runs", &id.to_string(), "retry"])).await.map(drop)
    }
}
