//! Triggers over REST whose caller waits for the end of the run.

use reqwest::Method;
use switchboard_model::ids::TaskId;
use switchboard_model::run::Run;
use switchboard_model::span::Span;
use switchboard_model::wire::rest::{TriggerRequest, TriggerResponse};

use crate::client::{Client, send};
use crate::error::ClientError;

/// What triggering a task and waiting for its run gave.
#[derive(Clone, Debug, PartialEq)]
pub enum Triggered {
    /// The run has ended.
    Ended(Box<Run>),
    /// The run had not ended when the time was over.
    Pending(TriggerResponse),
}

impl Client {
    /// Asks for a run of a task and waits up to `wait` for its end, wherever it is executed.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn trigger_and_wait(
        &self,
        task: TaskId,
        request: &TriggerRequest,
        wait: Span,
    ) -> Result<Triggered, ClientError> {
        let path = ["tasks", &task.to_string(), "trigger"];
        let request = self.api(Method::POST, &path).query(&[("wait", wait.to_string())]).json(request);
        let body = send(request).await?;
        // Only the answer without a run names one by `run_id`.
        match serde_json::from_slice(&body) {
            Ok(pending) => Ok(Triggered::Pending(pending)),
            Err(_) => {
                serde_json::from_slice(&body).map(|run| Triggered::Ended(Box::new(run))).map_err(ClientError::Decode)
            }
        }
    }
}
