//! Operations from client to server. Every one carries an `id` that its reply repeats.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::code::ErrorCode;
use super::frame::ReplyError;
use super::strict;
use crate::identity::{ClientKey, EventName, RoomName};
use crate::ids::{CallId, ClaimToken};
use crate::json_text::JsonText;
use crate::room::Position;

/// Where a join starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", untagged)]
pub enum Since {
    /// After a position that the client has seen.
    Position(Position),
    /// At one end of the history.
    End(SinceEnd),
}

/// One end of a room's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SinceEnd {
    /// Only what comes from now on.
    Latest,
    /// Everything that is kept.
    Earliest,
}

impl Default for Since {
    fn default() -> Self {
        Self::End(SinceEnd::Latest)
    }
}

impl<'de> Deserialize<'de> for Since {
    /// Reads an object as a position and a text as an end. Untagged enums of serde also read arrays as objects.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;

        impl<'de> Visitor<'de> for Form {
            type Value = Since;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a position, \"latest\" or \"earliest\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Since, E> {
                SinceEnd::deserialize(text.into_deserializer()).map(Since::End)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Since, A::Error> {
                Position::deserialize(MapAccessDeserializer::new(map)).map(Since::Position)
            }
        }
        deserializer.deserialize_any(Form)
    }
}

/// Joins a room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Join {
    /// The room.
    pub room: RoomName,
    /// Where to start.
    #[serde(default)]
    pub since: Since,
    /// Whether the user shows themselves in the room.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub presence: bool,
}

/// Leaves a room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Leave {
    /// The room.
    pub room: RoomName,
}

/// Publishes an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Publish {
    /// The room.
    pub room: RoomName,
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

/// Reads a stretch of history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// The room.
    pub room: RoomName,
    /// Only events after this offset.
    #[serde(default)]
    pub after: i64,
    /// The most events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Reads who is in a room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadPresence {
    /// The room.
    pub room: RoomName,
}

/// Takes a call over; the client executes it only after this succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Claim {
    /// The call.
    pub call_id: CallId,
}

/// Answers a call that was claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reply {
    /// The call.
    pub call_id: CallId,
    /// What the claim gave.
    pub token: ClaimToken,
    /// Whether the client did what was asked for.
    pub ok: bool,
    /// What it gave, when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<JsonText>,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallFailure>,
}

/// Why a client did not do what it was called for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallFailure {
    /// What happened.
    pub message: String,
}

/// Prolongs the right to the socket with a new access token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Auth {
    /// The access token.
    pub token: String,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Auth(…)")
    }
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientOp {
    /// Joins a room.
    Join(Join),
    /// Leaves a room.
    Leave(Leave),
    /// Publishes an event.
    Publish(Publish),
    /// Reads a stretch of history.
    History(History),
    /// Reads who is in a room.
    Presence(ReadPresence),
    /// Takes a call over.
    Claim(Claim),
    /// Answers a call.
    Reply(Reply),
    /// Prolongs the right to the socket.
    Auth(Auth),
    /// Asks for an answer; also the answer to the server's ping.
    Ping,
}

impl ClientOp {
    /// The names of all operations on the wire.
    pub const NAMES: [&'static str; 9] =
        ["join", "leave", "publish", "history", "presence", "claim", "reply", "auth", "ping"];
}

/// An operation and the `id` that its reply repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFrame {
    /// Chosen by the client, at most 2^53 − 1.
    pub id: u64,
    /// What it asks for.
    pub op: ClientOp,
}

/// A frame that is no operation; `id` is known if at least the head could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFrame {
    /// The `id` of the operation.
    pub id: Option<u64>,
    /// What is wrong with it.
    pub error: ReplyError,
}

impl ClientFrame {
    /// Reads an operation; unknown and doubled fields are refused.
    ///
    /// # Errors
    /// [`BadFrame`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, BadFrame> {
        let head: Head<'_> = strict::from_str(text).map_err(|error| BadFrame {
            id: None,
            error: ReplyError::new(ErrorCode::BadRequest, format!("not an operation: {error}")),
        })?;
        let bad = |error: serde_json::Error| BadFrame {
            id: Some(head.id),
            error: ReplyError::new(ErrorCode::BadRequest, format!("bad {} operation: {error}", head.op)),
        };
        if head.id > (1 << 53) - 1 {
            return Err(BadFrame { id: None, error: ReplyError::new(ErrorCode::BadRequest, "id is above 2^53 - 1") });
        }
        let op = match head.op.as_ref() {
            "join" => ClientOp::Join(strict::from_str::<JoinBody>(text).map_err(bad)?.into()),
            "leave" => ClientOp::Leave(strict::from_str::<LeaveBody>(text).map_err(bad)?.into()),
            "publish" => ClientOp::Publish(strict::from_str::<PublishBody>(text).map_err(bad)?.into()),
            "history" => ClientOp::History(strict::from_str::<HistoryBody>(text).map_err(bad)?.into()),
            "presence" => ClientOp::Presence(strict::from_str::<PresenceBody>(text).map_err(bad)?.into()),
            "claim" => ClientOp::Claim(strict::from_str::<ClaimBody>(text).map_err(bad)?.into()),
            "reply" => ClientOp::Reply(strict::from_str::<ReplyBody>(text).map_err(bad)?.into()),
            "auth" => ClientOp::Auth(strict::from_str::<AuthBody>(text).map_err(bad)?.into()),
            "ping" => {
                strict::from_str::<PingBody>(text).map_err(bad)?;
                ClientOp::Ping
            }
            other => {
                let message = format!("unknown operation {:?}; known are {}", cut(other), ClientOp::NAMES.join(", "));
                return Err(BadFrame { id: Some(head.id), error: ReplyError::new(ErrorCode::UnknownOp, message) });
            }
        };
        Ok(Self { id: head.id, op })
    }

    /// Writes the operation.
    ///
    /// # Errors
    /// Fails for nothing that this type can hold.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        #[derive(Serialize)]
        struct Tagged<'a, T> {
            id: u64,
            op: &'static str,
            #[serde(flatten)]
            body: &'a T,
        }
        #[derive(Serialize)]
        struct Nothing {}
        let id = self.id;
        match &self.op {
            ClientOp::Join(body) => serde_json::to_string(&Tagged { id, op: "join", body }),
            ClientOp::Leave(body) => serde_json::to_string(&Tagged { id, op: "leave", body }),
            ClientOp::Publish(body) => serde_json::to_string(&Tagged { id, op: "publish", body }),
            ClientOp::History(body) => serde_json::to_string(&Tagged { id, op: "history", body }),
            ClientOp::Presence(body) => serde_json::to_string(&Tagged { id, op: "presence", body }),
            ClientOp::Claim(body) => serde_json::to_string(&Tagged { id, op: "claim", body }),
            ClientOp::Reply(body) => serde_json::to_string(&Tagged { id, op: "reply", body }),
            ClientOp::Auth(body) => serde_json::to_string(&Tagged { id, op: "auth", body }),
            ClientOp::Ping => serde_json::to_string(&Tagged { id, op: "ping", body: &Nothing {} }),
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(40).collect()
}

#[derive(Deserialize)]
struct Head<'a> {
    id: u64,
    #[serde(borrow)]
    op: std::borrow::Cow<'a, str>,
}

/// Declares the strict form of an operation: its fields, the tag and nothing else.
///
/// The tag cannot be an enum tag of serde: tagged enums buffer their content, and a buffered
/// payload is no longer verbatim.
macro_rules! strict_bodies {
    ($($body:ident => $target:ident { $($(#[$attribute:meta])* $field:ident: $type:ty),* $(,)? })+) => {$(
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $body {
            #[serde(rename = "id")]
            _id: serde::de::IgnoredAny,
            #[serde(rename = "op")]
            _op: serde::de::IgnoredAny,
            $($(#[$attribute])* $field: $type),*
        }

        impl From<$body> for $target {
            fn from(body: $body) -> Self {
                Self { $($field: body.$field),* }
            }
        }
    )+};
}

/// A ping carries nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PingBody {
    #[serde(rename = "id")]
    _id: serde::de::IgnoredAny,
    #[serde(rename = "op")]
    _op: serde::de::IgnoredAny,
}

strict_bodies! {
    JoinBody => Join { room: RoomName, #[serde(default)] since: Since, #[serde(default)] presence: bool }
    LeaveBody => Leave { room: RoomName }
    PublishBody => Publish {
        room: RoomName,
        event: EventName,
        payload: JsonText,
        #[serde(default)] msg_id: Option<ClientKey>,
        #[serde(default)] ephemeral: bool,
    }
    PresenceBody => ReadPresence { room: RoomName }
    ClaimBody => Claim { call_id: CallId }
    ReplyBody => Reply {
        call_id: CallId,
        token: ClaimToken,
        ok: bool,
        #[serde(default)] payload: Option<JsonText>,
        #[serde(default)] error: Option<CallFailure>,
    }
    AuthBody => Auth { token: String }
    HistoryBody => History { room: RoomName, #[serde(default)] after: i64, #[serde(default)] limit: Option<u32> }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_read_back_what_they_write() {
        let position = Position { epoch: crate::room::Epoch::new("a", "1"), offset: 7 };
        let ops = [
            ClientOp::Join(Join { room: "lobby".parse().unwrap(), since: Since::Position(position), presence: true }),
            ClientOp::Join(Join { room: "lobby".parse().unwrap(), since: Since::default(), presence: false }),
            ClientOp::Leave(Leave { room: "lobby".parse().unwrap() }),
            ClientOp::Publish(Publish {
                room: "lobby".parse().unwrap(),
                event: "tick".parse().unwrap(),
                payload: JsonText::parse(r#"{"a": "\ud800"}"#).unwrap(),
                msg_id: Some("m-1".parse().unwrap()),
                ephemeral: true,
            }),
            ClientOp::History(History { room: "lobby".parse().unwrap(), after: 3, limit: Some(9) }),
            ClientOp::Presence(ReadPresence { room: "lobby".parse().unwrap() }),
            ClientOp::Claim(Claim { call_id: CallId::new() }),
            ClientOp::Reply(Reply {
                call_id: CallId::new(),
                token: ClaimToken::new(),
                ok: true,
                payload: Some(JsonText::parse(r#"{"a": "\ud800"}"#).unwrap()),
                error: None,
            }),
            ClientOp::Auth(Auth { token: "t".to_owned() }),
            ClientOp::Ping,
        ];
        for op in ops {
            let frame = ClientFrame { id: 5, op };
            assert_eq!(ClientFrame::parse(&frame.to_text().unwrap()).unwrap(), frame);
        }
    }

    #[test]
    fn refuses_unknown_operations_fields_and_doubles() {
        let code = |text: &str| ClientFrame::parse(text).unwrap_err();
        assert_eq!(code(r#"{"id":1,"op":"fly"}"#).error.code, ErrorCode::UnknownOp);
        assert_eq!(code(r#"{"id":1,"op":"ping","x":1}"#).id, Some(1));
        assert_eq!(code(r#"{"id":1,"op":"leave","room":"a","room":"b"}"#).error.code, ErrorCode::BadRequest);
        assert_eq!(code("[").id, None);
        assert_eq!(code(r#"[1,"ping"]"#).id, None);
        assert_eq!(code(r#"{"id":1,"op":"join","room":"a","since":["e",7]}"#).id, Some(1));
        assert_eq!(code(r#"{"id":1,"op":"join","room":"a","since":"yesterday"}"#).id, Some(1));
        assert_eq!(code(r#"{"id":1,"op":"join","room":"a","since":{"epoch":"\u0000","offset":7}}"#).id, Some(1));
        assert_eq!(code(r#"{"id":9007199254740993,"op":"ping"}"#).error.code, ErrorCode::BadRequest);
    }
}
