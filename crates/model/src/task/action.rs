//! Actions: what a run does. How it is done is the business of the runners.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::{EventName, RoomName, UserId};
use crate::json_text::JsonText;
use crate::task::HttpAction;

/// What a run does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Publishes an event.
    Event(EventAction),
    /// Sends an HTTP request.
    Http(HttpAction),
    /// Waits for an external worker that takes the run over HTTP.
    Pull(PullAction),
    /// Calls a function of the server.
    System(SystemAction),
}

impl Action {
    /// Names the kind of the action, as in its JSON form.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Event(_) => "event",
            Self::Http(_) => "http",
            Self::Pull(_) => "pull",
            Self::System(_) => "system",
        }
    }

    /// Tells whether runs wait for an external worker instead of one of the replicas.
    #[must_use]
    pub const fn is_pull(&self) -> bool {
        matches!(self, Self::Pull(_))
    }
}

/// Where an event goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventTarget {
    /// To a room.
    Room(RoomName),
    /// To all sockets of a user.
    User(UserId),
}

impl EventTarget {
    /// Returns the room that carries the event.
    #[must_use]
    pub fn room(&self) -> RoomName {
        match self {
            Self::Room(room) => room.clone(),
            Self::User(user) => user.room(),
        }
    }
}

/// Publishes an event to a room or a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventAction {
    /// Where it goes.
    pub to: EventTarget,
    /// What it is called.
    pub event: EventName,
    /// What it carries; the input of the run when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<JsonText>,
}

/// Waits for an external worker: one in any language that leases runs of the pool over HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PullAction {}

/// Calls a named function from the registry of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SystemAction {
    /// The name of the function.
    pub function: String,
}
