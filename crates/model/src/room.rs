//! Rooms, events and positions.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::{Actor, ClientKey, EventName, Namespace, RoomName, UserId};
use crate::ids::RoomId;
use crate::json_text::JsonText;
use crate::span::Span;
use uuid::Uuid;

/// A name for one unbroken history of a room; positions of different epochs do not compare.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Epoch(String);

impl Epoch {
    /// Joins the epoch of a room row and the timeline of the database.
    #[must_use]
    pub fn new(room_epoch: &str, timeline: &str) -> Self {
        Self(format!("{room_epoch}-{timeline}"))
    }

    /// Returns the text form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes the epoch text of a new room row.
    #[must_use]
    pub fn fresh_room_epoch() -> String {
        Uuid::new_v4().simple().to_string()[..12].to_owned()
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where an event stands in its room. Offsets start at 1 and have no holes; 0 is before the first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The history that the offset counts in.
    pub epoch: Epoch,
    /// The number of the event.
    pub offset: i64,
}

/// Who may join a room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RoomKind {
    /// Every user.
    Public,
    /// Users whose ticket grants it.
    #[default]
    Private,
    /// One user: the room `user:<id>`.
    User,
    /// Two users: the room `dm:<a>:<b>`.
    Direct,
}

impl RoomKind {
    /// Returns the text form, as stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Private => "private",
            Self::User => "user",
            Self::Direct => "direct",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn from_stored(text: &str) -> Option<Self> {
        [Self::Public, Self::Private, Self::User, Self::Direct].into_iter().find(|kind| kind.as_str() == text)
    }
}

/// What a room name says about the room before any row is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomClass {
    /// It exists only after somebody created it.
    Explicit,
    /// The room of one user; its row comes into being with the first event.
    User(UserId),
    /// The room of two users, sorted; its row comes into being with the first event.
    Direct(UserId, UserId),
    /// Events of runs and of shared state; never stored.
    Ephemeral,
    /// The name uses a reserved head wrongly, such as `dm:b:a`.
    Malformed,
}

impl RoomName {
    /// Classifies the room by its name.
    #[must_use]
    pub fn class(&self) -> RoomClass {
        let parts: Vec<&str> = self.as_str().split(':').collect();
        match parts.as_slice() {
            ["user", id] => id.parse().map_or(RoomClass::Malformed, RoomClass::User),
            ["dm", a, b] if a < b => match (a.parse(), b.parse()) {
                (Ok(a), Ok(b)) => RoomClass::Direct(a, b),
                _ => RoomClass::Malformed,
            },
            ["task" | "run", id] if Uuid::parse_str(id).is_ok() => RoomClass::Ephemeral,
            ["state", ns] if ns.parse::<Namespace>().is_ok() => RoomClass::Ephemeral,
            ["user" | "dm" | "task" | "run" | "state", ..] => RoomClass::Malformed,
            _ => RoomClass::Explicit,
        }
    }
}

/// How much history a room keeps; what is older by any of the bounds is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// The most events.
    #[schemars(range(min = 1))]
    pub max_count: i64,
    /// The greatest age.
    pub max_age: Span,
    /// The most bytes of payload.
    #[schemars(range(min = 1))]
    pub max_bytes: i64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_count: 10_000, max_age: Span::from_secs(7 * 24 * 3600), max_bytes: 64 * 1024 * 1024 }
    }
}

/// A stored room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Room {
    /// Its identity.
    pub id: RoomId,
    /// Its unique name.
    pub name: RoomName,
    /// Who may join.
    pub kind: RoomKind,
    /// Its current history.
    pub epoch: Epoch,
    /// The offset of its newest event, 0 when there was none.
    pub top: i64,
    /// The offset of the oldest event that is kept; `top + 1` when none is.
    pub first_kept: i64,
    /// How much history it keeps.
    pub retention: Retention,
    /// When it was created.
    pub created_at: Timestamp,
}

/// A room that a caller creates.
#[derive(Clone, Debug)]
pub struct NewRoom {
    /// The identity it will have.
    pub id: RoomId,
    /// Its name.
    pub name: RoomName,
    /// Who may join.
    pub kind: RoomKind,
    /// How much history it keeps.
    pub retention: Retention,
}

/// The identity of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MessageId {
    /// Given by the sender and deduplicated per sender for [`crate::wire::limits::DEDUPE_TTL`].
    Given(ClientKey),
    /// Made by the server; always new.
    Generated(Uuid),
}

impl MessageId {
    /// Takes what the sender gave, or makes a new identity.
    #[must_use]
    pub fn given_or_new(given: Option<ClientKey>) -> Self {
        given.map_or_else(|| Self::Generated(Uuid::now_v7()), Self::Given)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(key) => key.fmt(f),
            Self::Generated(id) => id.fmt(f),
        }
    }
}

/// An event to be appended to a room.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// The room; [`RoomClass::User`] and [`RoomClass::Direct`] rooms are made when missing.
    pub room: RoomName,
    /// What it is called.
    pub event: EventName,
    /// What it carries.
    pub payload: JsonText,
    /// Its identity.
    pub msg_id: MessageId,
    /// Who sends it.
    pub sender: Actor,
}

/// A stored event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredEvent {
    /// The number of the event in its room.
    pub offset: i64,
    /// What it is called.
    pub event: EventName,
    /// What it carries.
    pub payload: JsonText,
    /// Its identity.
    pub msg_id: String,
    /// Who sent it, such as `user:7` or `key:…`.
    pub sender: String,
    /// When it was appended, in database time.
    pub at: Timestamp,
}

/// A stretch of a room's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryPage {
    /// The history that the offsets count in.
    pub epoch: Epoch,
    /// The offset of the newest event at the time of reading.
    pub top: i64,
    /// The offset of the oldest event that is kept.
    pub first_kept: i64,
    /// The events after the asked offset, in order, without holes.
    pub events: Vec<StoredEvent>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_room_is() {
        let class = |text: &str| text.parse::<RoomName>().unwrap().class();
        assert_eq!(class("lobby"), RoomClass::Explicit);
        assert_eq!(class("user:7"), RoomClass::User("7".parse().unwrap()));
        assert_eq!(class("dm:a:b"), RoomClass::Direct("a".parse().unwrap(), "b".parse().unwrap()));
        assert_eq!(class("dm:b:a"), RoomClass::Malformed);
        assert_eq!(class("run:0190a0b0-0000-7000-8000-000000000000"), RoomClass::Ephemeral);
        assert_eq!(class("run:x"), RoomClass::Malformed);
        assert_eq!(class("state:approvals"), RoomClass::Ephemeral);
        assert_eq!(class("state:Approvals"), RoomClass::Malformed);
        assert_eq!(class("user:7:8"), RoomClass::Malformed);
    }
}
