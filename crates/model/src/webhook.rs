//! Secrets of inbound webhooks (Standard Webhooks): which of them may trigger a task.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::ids::{TaskId, WebhookSecretId};
use crate::span::Span;

/// The prefix that marks a text as the secret of a webhook, as Standard Webhooks writes it.
pub const WEBHOOK_SECRET_PREFIX: &str = "whsec_";

/// The most secrets of one task that work at the same time.
pub const WEBHOOK_SECRETS: u32 = 10;

/// A stored secret of a webhook, without the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookSecret {
    /// The identity.
    pub id: WebhookSecretId,
    /// The task that it may trigger.
    pub task_id: TaskId,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops working by itself.
    pub expires_at: Option<Timestamp>,
}

/// A secret to be stored, encrypted.
#[derive(Clone)]
pub struct NewWebhookSecret {
    /// The identity.
    pub id: WebhookSecretId,
    /// The task that it may trigger.
    pub task_id: TaskId,
    /// The encrypted secret.
    pub sealed: Vec<u8>,
    /// How long it works; `None` means until it is deleted.
    pub ttl: Option<Span>,
}

/// A secret that works now, encrypted.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedWebhookSecret {
    /// The identity.
    pub id: WebhookSecretId,
    /// The encrypted secret.
    pub sealed: Vec<u8>,
}
