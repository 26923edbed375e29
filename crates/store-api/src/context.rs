//! What every write carries: who, for which request, once or often, and what the audit log says.

use std::sync::Arc;

use switchboard_model::identity::Actor;
use switchboard_model::json_text::JsonText;
use switchboard_model::span::Span;
use uuid::Uuid;

/// Goes to exactly one mutating store method per request. The change, its signals, the once-record
/// and the audit row commit together.
#[derive(Clone, Debug)]
pub struct WriteContext {
    /// Who causes the change.
    pub actor: Actor,
    /// The request, as it appears in the logs.
    pub request_id: Arc<str>,
    /// The claim that makes the request happen once, if the caller gave a key.
    pub once: Option<OnceClaim>,
    /// What the audit log says, for administrative changes.
    pub audit: Option<AuditEntry>,
}

impl WriteContext {
    /// Makes the context of a change by the server itself.
    #[must_use]
    pub fn system(part: &'static str) -> Self {
        Self { actor: Actor::System(part), request_id: Arc::from(part), once: None, audit: None }
    }
}

/// A claim on a once-key: the first request with it takes effect, the others read what it made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnceClaim {
    /// Keys of different scopes are different keys.
    pub scope: String,
    /// The caller's key.
    pub key: String,
    /// A hash of the request, to tell a repetition from a different request.
    pub request_hash: [u8; 32],
    /// How long the key is remembered.
    pub ttl: Span,
}

/// What a completed once-key remembers. Secrets are never part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnceRecord {
    /// The identity of what the first request made.
    pub result_id: Uuid,
    /// What the first request was answered with, for requests that make something without an identity.
    pub result: Option<JsonText>,
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// What was done, such as `task.create`.
    pub action: &'static str,
    /// What it was done to.
    pub subject: String,
    /// The state before, if there was any.
    pub before: Option<JsonText>,
    /// The state after, if there is any.
    pub after: Option<JsonText>,
}

/// What a method that honours once-keys returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written<T> {
    /// The change was made, or its ordinary refusal was found, by this request.
    Now(T),
    /// An earlier request with the same key and body made the change; nothing was done.
    Replayed(OnceRecord),
    /// The key was used with another body; nothing was done.
    Mismatch,
}

impl<T> Written<T> {
    /// Returns the outcome of this request, for callers that gave no once-key.
    #[must_use]
    pub fn now(self) -> Option<T> {
        match self {
            Self::Now(outcome) => Some(outcome),
            Self::Replayed(_) | Self::Mismatch => None,
        }
    }
}
