//! Single-use tickets that open a WebSocket.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::auth_session::Credential;
use crate::identity::{RoomName, UserId};
use crate::secret_text::SecretHash;
use crate::span::Span;

/// The prefix that marks a text as a ticket.
pub const TICKET_PREFIX: &str = "sbt_";

/// How long a ticket can be used.
pub const TICKET_TTL: Span = Span::from_secs(30);

/// A room name, or a prefix of room names when it ends in `*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct RoomPattern(String);

impl RoomPattern {
    /// Makes a pattern from its text form.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Tells whether the pattern covers `room`.
    #[must_use]
    pub fn matches(&self, room: &RoomName) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => room.as_str().starts_with(prefix),
            None => room.as_str() == self.0,
        }
    }
}

/// What the holder of a ticket may do beyond what every user may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Grants {
    /// Rooms that may be joined though they are not public.
    pub join: Vec<RoomPattern>,
    /// Rooms that may be published to.
    pub publish: Vec<RoomPattern>,
}

impl Grants {
    /// Tells whether the grants allow joining `room`.
    #[must_use]
    pub fn may_join(&self, room: &RoomName) -> bool {
        self.join.iter().any(|pattern| pattern.matches(room))
    }

    /// Tells whether the grants allow publishing to `room`.
    #[must_use]
    pub fn may_publish(&self, room: &RoomName) -> bool {
        self.publish.iter().any(|pattern| pattern.matches(room))
    }
}

/// A ticket to be stored.
#[derive(Clone, Debug)]
pub struct NewTicket {
    /// The hash of the ticket.
    pub hash: SecretHash,
    /// Whom the socket will belong to.
    pub user_id: UserId,
    /// What it hangs on: when that is revoked, the ticket and its socket end.
    pub minted_by: Credential,
    /// The only origin from which it may be used; `None` for programs without one.
    pub origin: Option<String>,
    /// What the socket may do.
    pub grants: Grants,
    /// How long it can be used.
    pub ttl: Span,
}

/// A ticket that was just burned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Whom the socket belongs to.
    pub user_id: UserId,
    /// What it hangs on: when that is revoked, the socket ends.
    pub minted_by: Credential,
    /// The only origin from which it may be used.
    pub origin: Option<String>,
    /// What the socket may do.
    pub grants: Grants,
    /// When it stopped being usable.
    pub expires_at: Timestamp,
}
