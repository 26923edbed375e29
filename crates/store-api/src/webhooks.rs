//! Secrets of webhooks, received and sent. What a webhook does is [`crate::RunStore::trigger`].

use async_trait::async_trait;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::{TaskId, WebhookSecretId};
use switchboard_model::webhook::{NewWebhookSecret, SealedWebhookSecret, WebhookSecret};

use crate::StoreResult;
use crate::context::{WriteContext, Written};

/// What adding a secret gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookSecretOutcome {
    /// It was added.
    Added(WebhookSecret),
    /// The task has as many secrets of the purpose that work as [`switchboard_model::webhook::WEBHOOK_SECRETS`] allows.
    TooMany,
    /// There is no such task.
    TaskNotFound,
}

/// What a webhook goes by.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookTarget {
    /// The task.
    pub task_id: TaskId,
    /// The secrets that verify and work now, newest first.
    pub secrets: Vec<SealedWebhookSecret>,
}

/// Secrets of webhooks. Each belongs to a task and goes with it; one that signs stays while there are runs of the task,
/// which may still be executed or retried.
#[async_trait]
pub trait WebhookStore: Send + Sync {
    /// Adds a secret to a task.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn add(
        &self,
        context: &WriteContext,
        secret: &NewWebhookSecret,
    ) -> StoreResult<Written<WebhookSecretOutcome>>;

    /// Finds what webhooks of the task of this name go by; `None` when there is no such task.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn target(&self, task: &TaskName) -> StoreResult<Option<WebhookTarget>>;

    /// Returns the secrets that sign what a task sends and work now, newest first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn signing(&self, task: TaskId) -> StoreResult<Vec<SealedWebhookSecret>>;

    /// Lists the secrets of a task, oldest first, those that have expired included.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, task: TaskId) -> StoreResult<Vec<WebhookSecret>>;

    /// Deletes a secret of this task. `false` means that it has no such secret.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn delete(&self, context: &WriteContext, task: TaskId, id: WebhookSecretId) -> StoreResult<bool>;

    /// Deletes up to `limit` secrets that have expired, or whose task was deleted and has no runs left, and returns how
    /// many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;
}
