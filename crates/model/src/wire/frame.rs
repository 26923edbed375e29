//! Frames from server to client. One JSON object a frame; text only.
//!
//! A frame is recognised by its first distinguishing key: `re` marks a reply, `event` an event,
//! `op` a notice of the server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::code::ErrorCode;
use crate::call::CallOffer;
use crate::identity::{EventName, RoomName, UserId};
use crate::ids::{ConnectionId, InstanceId};
use crate::json_text::JsonText;
use crate::room::{Epoch, Position, StoredEvent};

/// An event on its way to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventFrame {
    /// What it is called.
    pub event: EventName,
    /// The room it travels in.
    pub room: RoomName,
    /// What it carries.
    pub payload: JsonText,
    /// When it was published, in milliseconds since 1970.
    pub ts: i64,
    /// The identity of the message.
    pub msg_id: String,
    /// Its number in the room, if it is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// The history that the offset counts in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
}

impl EventFrame {
    /// Makes the frame of a stored event.
    #[must_use]
    pub fn stored(room: &RoomName, epoch: &Epoch, event: &StoredEvent) -> Self {
        Self {
            event: event.event.clone(),
            room: room.clone(),
            payload: event.payload.clone(),
            ts: event.at.timestamp_millis(),
            msg_id: event.msg_id.clone(),
            offset: Some(event.offset),
            epoch: Some(epoch.clone()),
        }
    }

    /// Returns the position, if the event is stored.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        Some(Position { epoch: self.epoch.clone()?, offset: self.offset? })
    }
}

/// The answer to a client operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyFrame {
    /// The `id` of the operation.
    pub re: u64,
    /// What it gave, if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<JsonText>,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ReplyError>,
}

/// Why a client operation failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplyError {
    /// The kind of problem.
    pub code: ErrorCode,
    /// What happened, and what to do.
    pub message: String,
    /// Whether the same operation may succeed later.
    pub retryable: bool,
    /// How long to wait first, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl ReplyError {
    /// Makes the error of an operation.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retryable: code.is_retryable(), retry_after_ms: None }
    }
}

/// A notice of the server.
///
/// It is read by [`NoticeFrame::parse`]: tagged enums of serde buffer their content, and a buffered payload is no
/// longer verbatim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum NoticeFrame {
    /// The first frame on every socket.
    Hello(Hello),
    /// The client must read the room anew.
    Desync(Desync),
    /// The client is slower than the room.
    Lag(Lag),
    /// A call is offered to this socket; it is executed only after it was claimed.
    Call(CallOffer),
    /// The replica is being stopped; the client moves within the window.
    Goaway(Goaway),
    /// Asks for a sign of life.
    Ping {},
}

/// What a client must read anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Desync {
    /// The room.
    pub room: RoomName,
    /// Why its position cannot be continued.
    pub reason: String,
}

/// Where a client is too slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lag {
    /// The room.
    pub room: RoomName,
    /// How it goes on.
    pub state: LagState,
    /// How many ephemeral events were dropped.
    pub dropped: u64,
}

/// When a client moves to another replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Goaway {
    /// Why.
    pub reason: String,
    /// The earliest time to reconnect, in milliseconds from now.
    pub reconnect_min_ms: u64,
    /// The latest time to reconnect, in milliseconds from now.
    pub reconnect_max_ms: u64,
}

impl NoticeFrame {
    /// Reads the notice `op`; `None` is one that this program does not know.
    ///
    /// # Errors
    /// Fails when the text is no such notice.
    pub fn parse(op: &str, text: &str) -> Result<Option<Self>, serde_json::Error> {
        Ok(Some(match op {
            "hello" => Self::Hello(serde_json::from_str(text)?),
            "desync" => Self::Desync(serde_json::from_str(text)?),
            "lag" => Self::Lag(serde_json::from_str(text)?),
            "call" => Self::Call(serde_json::from_str(text)?),
            "goaway" => Self::Goaway(serde_json::from_str(text)?),
            "ping" => Self::Ping {},
            _ => return Ok(None),
        }))
    }
}

/// How a socket that is slower than a room goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LagState {
    /// Ephemeral events were dropped; nothing stored is lost.
    Dropping,
    /// Stored events are read from the log as the socket drains.
    CatchingUp,
    /// The socket is live again.
    Live,
}

/// What a new socket is told about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hello {
    /// The identity of the connection.
    pub conn_id: ConnectionId,
    /// Whom it belongs to.
    pub user_id: UserId,
    /// The replica that serves it.
    pub instance: InstanceId,
    /// How often the server pings, in milliseconds.
    pub heartbeat_ms: u64,
    /// The limits that the client must keep.
    pub limits: HelloLimits,
    /// Calls that wait for an answer of this user; each is claimed before it is executed.
    pub pending_calls: Vec<CallOffer>,
}

/// The limits that a client must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HelloLimits {
    /// The largest message, in bytes.
    pub message_bytes: usize,
    /// The largest payload, in bytes.
    pub payload_bytes: usize,
    /// The most rooms.
    pub rooms: usize,
    /// Operations a second, in the long run.
    pub ops_per_second: u32,
}

/// What a join gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Joined {
    /// The history of the room.
    pub epoch: Epoch,
    /// Where live delivery or the replay starts: the last offset that is not sent.
    pub offset: i64,
    /// Whether everything after the given position follows.
    pub recovered: bool,
    /// How many events follow before live ones.
    pub replayed: i64,
}

/// What a publish gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Published {
    /// The identity of the message.
    pub msg_id: String,
    /// Where it stands; absent for an ephemeral event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Whether the same message had been published before.
    #[serde(default)]
    pub duplicate: bool,
}

/// What an `auth` operation gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Authenticated {
    /// When the socket ends unless it shows another token, in milliseconds since 1970; absent when it need not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<i64>,
}

/// Any frame that the server sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerFrame {
    /// An event.
    Event(EventFrame),
    /// The answer to an operation.
    Reply(ReplyFrame),
    /// A notice.
    Notice(NoticeFrame),
}

impl ServerFrame {
    /// Reads a frame.
    ///
    /// # Errors
    /// Fails when the text is no frame of this protocol.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Head {
            re: Option<serde::de::IgnoredAny>,
            op: Option<String>,
        }
        let head: Head = serde_json::from_str(text)?;
        if head.re.is_some() {
            serde_json::from_str(text).map(Self::Reply)
        } else if let Some(op) = head.op {
            let unknown = || serde::de::Error::custom(format_args!("unknown notice {op:?}"));
            NoticeFrame::parse(&op, text)?.map(Self::Notice).ok_or_else(unknown)
        } else {
            serde_json::from_str(text).map(Self::Event)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart() {
        let event =
            r#"{"event":"tick","room":"lobby","payload":{"op":1},"ts":1,"msg_id":"m","offset":2,"epoch":"e-1"}"#;
        let ServerFrame::Event(frame) = ServerFrame::parse(event).unwrap() else { panic!("event expected") };
        assert_eq!(serde_json::to_string(&frame).unwrap(), event);
        assert!(matches!(ServerFrame::parse(r#"{"re":1,"ok":{}}"#).unwrap(), ServerFrame::Reply(_)));
        assert!(matches!(ServerFrame::parse(r#"{"op":"ping"}"#).unwrap(), ServerFrame::Notice(NoticeFrame::Ping {})));
    }
}
