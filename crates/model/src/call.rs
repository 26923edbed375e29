//! Calls: requests of a program to one client of a user, answered once.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::{Actor, EventName, UserId};
use crate::ids::{CallId, ClaimToken, ConnectionId};
use crate::json_text::JsonText;
use crate::span::Span;
use crate::wire::code::ErrorCode;
use crate::wire::frame::ReplyError;

/// How long a call stays offered to one socket before it goes to the next.
pub const OFFER_TIME: Span = Span::from_secs(2);

/// The most calls that `hello` tells a new socket of; the others are offered to it one by one.
pub const PENDING_CALLS: u32 = 20;

/// The most offers of one user that are told to sockets at a time, the oldest first.
pub const STANDING_OFFERS: u32 = 200;

/// How long an answer is waited for when the caller does not say.
pub const CALL_TIMEOUT: Span = Span::from_secs(30);

/// The longest that an answer is waited for.
pub const LONGEST_CALL: Span = Span::from_secs(300);

/// How long an ended call can be read.
pub const CALL_RETENTION: Span = Span::from_secs(24 * 3600);

/// How a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// It is offered to a socket, or waits for one.
    Offered,
    /// A client executes it.
    Claimed,
    /// It was answered with a result.
    Done,
    /// It was answered with an error, or nobody was there to answer.
    Failed,
    /// Its deadline passed.
    Expired,
}

impl CallState {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::Offered, Self::Claimed, Self::Done, Self::Failed, Self::Expired];

    /// Returns the text form, as stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Claimed => "claimed",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Expired => "expired",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn from_stored(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Tells whether nothing changes any more.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Expired)
    }
}

/// What becomes of a call while its user has no socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenAbsent {
    /// It fails at once with `no_responder`.
    #[default]
    Fail,
    /// It waits for a socket until its deadline.
    Wait,
}

/// A call to be made.
#[derive(Clone, Debug)]
pub struct NewCall {
    /// The identity it will have.
    pub id: CallId,
    /// Who is to answer.
    pub user_id: UserId,
    /// What is asked for.
    pub event: EventName,
    /// What it carries.
    pub payload: JsonText,
    /// Who asks.
    pub sender: Actor,
    /// How long an answer is waited for.
    pub timeout: Span,
    /// What happens while the user has no socket.
    pub when_absent: WhenAbsent,
}

/// A stored call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Call {
    /// The identity.
    pub id: CallId,
    /// Who is to answer.
    pub user_id: UserId,
    /// What is asked for.
    pub event: EventName,
    /// What it carries.
    pub payload: JsonText,
    /// Who asks, such as `key:…`.
    pub sender: String,
    /// How it stands.
    pub state: CallState,
    /// The socket that claimed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_by: Option<ConnectionId>,
    /// What it was answered with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JsonText>,
    /// Why it failed or expired: what the client said, or `no_responder` or `call_timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ReplyError>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Until when it can be answered.
    pub deadline_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

/// Says that a user has no socket that could answer a call.
#[must_use]
pub fn no_responder() -> ReplyError {
    ReplyError::new(ErrorCode::NoResponder, "no client of the user is connected")
}

/// Says that the deadline of a call has passed.
#[must_use]
pub fn call_timeout() -> ReplyError {
    ReplyError::new(ErrorCode::CallTimeout, "no client answered in time")
}

/// A call on its way to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CallOffer {
    /// The identity.
    pub call_id: CallId,
    /// What is asked for.
    pub event: EventName,
    /// What it carries.
    pub payload: JsonText,
    /// How long it can still be answered, in milliseconds.
    pub deadline_ms: u64,
}

/// What claiming a call gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Claimed {
    /// What the answer must carry.
    pub token: ClaimToken,
}

/// What a client answers a call with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallAnswer {
    /// It did what was asked for.
    Done(JsonText),
    /// It could not.
    Failed(ReplyError),
}
