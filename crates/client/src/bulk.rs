//! Many tasks and runs at once over REST.

use reqwest::Method;
use switchboard_model::wire::bulk::{
    BulkRunItem, BulkRunsRequest, BulkRunsResponse, BulkTaskItem, BulkTasksRequest, BulkTasksResponse, RedriveRequest,
    RedriveResponse,
};

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Creates many tasks in one commit; returns what became of each, in order.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_tasks(&self, request: &BulkTasksRequest) -> Result<Vec<BulkTaskItem>, ClientError> {
        let response: BulkTasksResponse = fetch(self.api(Method::POST, &["tasks", "bulk"]).json(request)).await?;
        Ok(response.items)
    }

    /// Asks for many runs in one commit; returns what became of each, in order.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn trigger_runs(&self, request: &BulkRunsRequest) -> Result<Vec<BulkRunItem>, ClientError> {
        let response: BulkRunsResponse = fetch(self.api(Method::POST, &["runs", "bulk"]).json(request)).await?;
        Ok(response.items)
    }

    /// Queues ended runs again, as many as one request may.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn redrive_runs(&self, request: &RedriveRequest) -> Result<RedriveResponse, ClientError> {
        fetch(self.api(Method::POST, &["runs", "redrive"]).json(request)).await
    }
}
