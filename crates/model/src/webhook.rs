//! Secrets of webhooks (Standard Webhooks): which of them may trigger a task, and which sign what a task sends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::ids::{TaskId, WebhookSecretId};
use crate::span::Span;
use crate::text_enum::text_enum;

/// The prefix that marks a text as the secret of a webhook, as Standard Webhooks writes it.
pub const WEBHOOK_SECRET_PREFIX: &str = "whsec_";

/// The most secrets of one task and purpose that work at the same time.
pub const WEBHOOK_SECRETS: u32 = 10;

text_enum! {
    /// What a secret of a task is for; a secret serves no other purpose than its own.
    #[derive(Default)]
    SecretPurpose, "purpose of a secret" {
        /// Verifies the webhooks that trigger the task.
        #[default]
        Receive = "receive",
        /// Signs the requests that the task sends.
        Sign = "sign",
    }
}

/// A stored secret of a webhook, without the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookSecret {
    /// The identity.
    pub id: WebhookSecretId,
    /// The task that it belongs to.
    pub task_id: TaskId,
    /// What it is for.
    pub purpose: SecretPurpose,
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
    /// The task that it belongs to.
    pub task_id: TaskId,
    /// What it is for.
    pub purpose: SecretPurpose,
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
