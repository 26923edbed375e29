//! The change feed: what replicas tell each other through the database.

use crate::Timestamp;
use crate::json_text::JsonText;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a signal says has changed, and what its key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalKind {
    /// A room has new events up to `pos`; the key is the room name.
    RoomEvents,
    /// A room was created, edited or deleted; the key is the room name.
    RoomChanged,
    /// An event that is not stored; the key is the room name, the body the event, and `pos` the number of the hub that
    /// has served its own sessions already.
    Ephemeral,
    /// A pool has queued runs; the key is the pool name.
    PoolQueued,
    /// Somebody asked to cancel a running run; the key is the run id.
    RunCancelled,
    /// A task was created, edited or deleted; the key is the task id, or `*` for many new ones at once.
    TaskChanged,
    /// A fleet setting changed; the key is its name.
    SettingChanged,
    /// A replica came or went; the key is its instance id.
    InstanceChanged,
    /// An API key was revoked; the key is its id.
    ApiKeyRevoked,
    /// A sign-in session was ended before its time; the key is its id.
    SessionRevoked,
    /// A user was disabled or deleted; the key is the user id.
    UserRevoked,
    /// Applications have left triggers or events to be relayed; the key is `outbox`.
    OutboxFilled,
    /// A socket of a user came or went; the key is the user id.
    ConnectionsChanged,
    /// A socket is to be closed for good; the key is the connection id.
    Kicked,
    /// Somebody came to or left a room; the key is the room name.
    PresenceChanged,
    /// A call is offered to another socket of a user, or to none any more; the key is the user id.
    CallOffered,
    /// A call has ended; the key is its id.
    CallEnded,
    /// A stream has new chunks up to `pos`, or has ended; the key is its id.
    StreamGrew,
    /// Somebody asked to stop a stream; the key is its id.
    StreamStopped,
    /// A run has begun to write; the key is the run id.
    OutputBegan,
    /// A value of the shared state was written or deleted; the key is its namespace and key, and `pos` the version of
    /// the change.
    StateChanged,
}

impl SignalKind {
    /// Every kind.
    pub const ALL: [Self; 21] = [
        Self::RoomEvents,
        Self::RoomChanged,
        Self::Ephemeral,
        Self::PoolQueued,
        Self::RunCancelled,
        Self::TaskChanged,
        Self::SettingChanged,
        Self::InstanceChanged,
        Self::ApiKeyRevoked,
        Self::SessionRevoked,
        Self::UserRevoked,
        Self::OutboxFilled,
        Self::ConnectionsChanged,
        Self::Kicked,
        Self::PresenceChanged,
        Self::CallOffered,
        Self::CallEnded,
        Self::StreamGrew,
        Self::StreamStopped,
        Self::OutputBegan,
        Self::StateChanged,
    ];

    /// Returns the text form, as stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoomEvents => "room_events",
            Self::RoomChanged => "room_changed",
            Self::Ephemeral => "ephemeral",
            Self::PoolQueued => "pool_queued",
            Self::RunCancelled => "run_cancelled",
            Self::TaskChanged => "task_changed",
            Self::SettingChanged => "setting_changed",
            Self::InstanceChanged => "instance_changed",
            Self::ApiKeyRevoked => "api_key_revoked",
            Self::SessionRevoked => "session_revoked",
            Self::UserRevoked => "user_revoked",
            Self::OutboxFilled => "outbox_filled",
            Self::ConnectionsChanged => "connections_changed",
            Self::Kicked => "kicked",
            Self::PresenceChanged => "presence_changed",
            Self::CallOffered => "call_offered",
            Self::CallEnded => "call_ended",
            Self::StreamGrew => "stream_grew",
            Self::StreamStopped => "stream_stopped",
            Self::OutputBegan => "output_began",
            Self::StateChanged => "state_changed",
        }
    }
}

impl fmt::Display for SignalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SignalKind {
    type Err = crate::text_enum::UnknownText;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| crate::text_enum::UnknownText { what: "signal kind", text: text.to_owned() })
    }
}

/// One changed thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signal {
    /// What has changed.
    pub kind: SignalKind,
    /// Which one.
    pub key: String,
    /// How far it has come; 0 where that has no meaning.
    pub pos: i64,
    /// What it carries, for kinds that are not stored elsewhere.
    pub body: Option<JsonText>,
}

/// What one replica has seen of the feed. Opaque outside the backend that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedCursor(pub String);

/// What a tick reads beside the signals.
#[derive(Clone, Debug, Default)]
pub struct TickRequest {
    /// The pools whose queues the replica serves.
    pub pools: Vec<crate::identity::PoolName>,
}

/// What is due next in the whole deployment, in database time; `None` where nothing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextDue {
    /// The earliest `next_run_at` of an active task. With a set schedule clock: now when that has come, else absent,
    /// and so is `scheduled_run`.
    pub task: Option<Timestamp>,
    /// The earliest `run_at` of a scheduled run.
    pub scheduled_run: Option<Timestamp>,
    /// The earliest instant after which a run that has not started is too late, by the same clock.
    pub start_by: Option<Timestamp>,
    /// The earliest end of a lease.
    pub lease: Option<Timestamp>,
    /// The earliest end of a replica's lease.
    pub instance: Option<Timestamp>,
    /// The earliest end of the grace of somebody who left a room by losing their socket.
    pub presence: Option<Timestamp>,
    /// The earliest instant at which an open call is offered to another socket or expires.
    pub call: Option<Timestamp>,
    /// The earliest end of the lease of a producer of an open stream.
    pub stream: Option<Timestamp>,
    /// Whether a pool of the request has queued runs.
    pub has_queued: bool,
    /// Whether runs wait for a permit or a rate limit.
    pub has_waiting: bool,
    /// Whether applications have left something in the outbox.
    pub has_outbox: bool,
}

/// What is to be done by schedule time, which a test may set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agenda {
    /// The earliest `next_run_at` of an active task or `run_at` of a scheduled run, in schedule time.
    pub next: Option<Timestamp>,
    /// Runs that are queued, waiting or running.
    pub active: u64,
}

/// Everything a replica learns in one read of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Database time of the read.
    pub now: Timestamp,
    /// Where the next tick goes on, once the signals were handed over.
    pub cursor: FeedCursor,
    /// Whether the feed may have lost something, so that everything held locally must be read again.
    pub resync: bool,
    /// What became visible since the previous tick: folded to the highest `pos` per kind and key,
    /// except signals with a body, which come one by one in the order of their insertion.
    pub signals: Vec<Signal>,
    /// What is due next.
    pub next: NextDue,
}

/// How a replica learns of changes between two regular ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerMode {
    /// In the same process; nothing can be lost.
    InProcess,
    /// Over a connection that listens.
    Listening,
    /// Not at all: the feed is read more often instead.
    Polling,
}

impl ListenerMode {
    /// Returns the text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InProcess => "in_process",
            Self::Listening => "listening",
            Self::Polling => "polling",
        }
    }
}
