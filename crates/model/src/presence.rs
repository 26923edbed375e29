//! Presence: who shows themselves in a room, derived from sockets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::UserId;
use crate::span::Span;

/// How long somebody whose socket is gone still counts as present, so that a reconnect does not flap.
pub const PRESENCE_GRACE: Span = Span::from_secs(5);

/// The most members of a room that are told one by one; a larger room tells their number only.
pub const PRESENCE_MEMBERS: usize = 1_000;

/// Somebody in a room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PresentUser {
    /// Who.
    pub user_id: UserId,
    /// Since when, by the oldest of their sockets here.
    pub since: Timestamp,
}

/// Everybody in a room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Presence {
    /// How many users are here.
    pub count: i64,
    /// Who they are, by user id; absent above 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<PresentUser>>,
}
