//! Bodies of the REST surface that are not entities themselves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::api_key::ApiKey;
use crate::call::WhenAbsent;
use crate::identity::{ClientKey, EventName, RoomName, UserId};
use crate::ids::RunId;
use crate::json_text::JsonText;
use crate::limit::Rate;
use crate::room::{Retention, RoomKind};
use crate::run::DedupeScope;
use crate::scope::Scope;
use crate::span::Span;
use crate::ticket::Grants;
use crate::webhook::{SecretPurpose, WebhookSecret};
use crate::wire::frame::{Published, ReplyError};
use crate::wire::limits::BATCH_EVENTS;

/// Asks for a run of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerRequest {
    /// What the run is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<JsonText>,
    /// How long it waits before it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// A key against doubles: while it is taken, no second run is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe_key: Option<ClientKey>,
    /// How long the key is taken: while its run is active, or for ever.
    pub dedupe_scope: DedupeScope,
}

/// Names the run that a trigger made or found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TriggerResponse {
    /// The run.
    pub run_id: RunId,
    /// Whether an active run with the same deduplication key was found instead.
    pub duplicate: bool,
}

/// Asks what a schedule will do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewRequest {
    /// The schedule.
    pub schedule: crate::schedule::Schedule,
    /// Only occurrences after this instant; now when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// How many occurrences.
    #[serde(default = "default_preview_count")]
    #[schemars(range(min = 1, max = PREVIEW_MOST))]
    pub count: u32,
}

/// The most occurrences of one preview.
pub const PREVIEW_MOST: u32 = 100;

fn default_preview_count() -> u32 {
    10
}

/// Replaces the definition of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskUpdate {
    /// The version that was edited.
    pub version: i64,
    /// The new definition.
    pub spec: crate::task::TaskSpec,
}

/// Creates a room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoomRequest {
    /// Its name.
    pub name: RoomName,
    /// Who may join: `public` or `private`.
    #[serde(default)]
    #[schemars(extend("enum" = ["public", "private"]))]
    pub kind: RoomKind,
    /// How much history it keeps.
    #[serde(default)]
    pub retention: Retention,
}

/// Publishes an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishRequest {
    /// What it is called.
    pub event: EventName,
    /// What it carries.
    pub payload: JsonText,
    /// Its identity; the server makes one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msg_id: Option<ClientKey>,
    /// Whether it is not stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ephemeral: bool,
}

/// Asks one client of a user, and waits for its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallRequest {
    /// What is asked for: any name, except that `sb.` belongs to the server.
    pub event: EventName,
    /// What it carries; `null` when absent.
    #[serde(default = "JsonText::null")]
    pub payload: JsonText,
    /// How long a client has to answer, at most 5 minutes. When absent: 30 seconds, or, unless `wait` is given, as long as
    /// a request may wait if that is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// What happens while the user has no socket.
    #[serde(default)]
    pub when_absent: WhenAbsent,
    /// How long this request waits for the answer: until the timeout when absent, as far as a request may wait that
    /// long; `0s` does not wait. A request that waits less than the call is answered with the open call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Span>,
}

/// Asks for a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketRequest {
    /// Whom the socket will belong to; a user's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// The only origin from which it may be used; absent for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// What the socket may do.
    #[serde(default)]
    pub grants: Grants,
}

/// A ticket, shown once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TicketResponse {
    /// The secret.
    pub ticket: String,
    /// When it stops working unless it is used.
    pub expires_at: Timestamp,
}

/// Publishes several events to one room, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishBatchRequest {
    /// The events, at least one.
    #[schemars(length(min = 1, max = BATCH_EVENTS))]
    pub events: Vec<PublishRequest>,
}

/// What a batch publish gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PublishBatchResponse {
    /// One item for each event, in the order of the request.
    pub items: Vec<PublishItem>,
}

/// What became of one event of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PublishItem {
    /// It was published.
    Ok(Published),
    /// It was refused; its neighbours are not affected.
    Error(ReplyError),
}

/// What a request to cancel a run gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CancelResponse {
    /// How far the cancellation has come.
    pub outcome: CancelProgress,
}

/// How far a cancellation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelProgress {
    /// The run had not started and is over.
    Cancelled,
    /// The worker that executes the run was asked to stop.
    Requested,
}

/// Makes an API key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyRequest {
    /// What the operator calls it.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// What it may do.
    #[schemars(length(min = 1))]
    pub scopes: Vec<Scope>,
    /// How long it works; absent means until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
}

/// An API key with its secret, shown once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApiKeyResponse {
    /// The key.
    pub key: ApiKey,
    /// The secret.
    pub secret: String,
}

/// Makes a secret of a task, for the webhooks that it receives or for the requests that it sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WebhookSecretRequest {
    /// What it is for.
    pub purpose: SecretPurpose,
    /// A secret that the other side has already, `whsec_` and base64 of 24 to 64 bytes; made by the server when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// How long it works; absent means until it is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
}

/// A secret of a webhook, shown once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookSecretResponse {
    /// What is stored of it.
    pub webhook_secret: WebhookSecret,
    /// The secret, `whsec_` and base64, as the libraries of Standard Webhooks take it.
    pub secret: String,
    /// Where the sender posts to; absent for a secret that signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// What a webhook gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookResponse {
    /// The run that carries it out.
    pub run_id: RunId,
    /// Whether an earlier delivery of the same message made the run.
    pub duplicate: bool,
    /// Whether a run that was waiting already carries it out, under the overlap policy `skip`.
    pub adopted: bool,
}

/// Takes units from a rate limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitTakeRequest {
    /// What is allowed, such as `100/1m burst 20`.
    pub rate: Rate,
    /// How many units are taken.
    #[serde(default = "one")]
    pub cost: u32,
    /// What happens while the database does not answer.
    #[serde(default)]
    pub outage: Outage,
}

fn one() -> u32 {
    1
}

/// What a limit does while the database does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outage {
    /// Everything is allowed.
    Open,
    /// Each replica limits by itself, by the same rate.
    #[default]
    Local,
    /// The request is answered with `unavailable`.
    Refuse,
}

/// What taking from a rate limit gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitTakeResponse {
    /// Whether the units were given; nothing was used up otherwise.
    pub allowed: bool,
    /// How many units could be taken now.
    pub remaining: u32,
    /// How long to wait before the same request can succeed, in milliseconds; 0 when it did.
    pub retry_after_ms: u64,
    /// How long until everything is there again, in milliseconds.
    pub reset_after_ms: u64,
}
