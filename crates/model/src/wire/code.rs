//! Error codes: a closed list, shared by problem documents and socket replies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:literal, $retryable:ident;)+) => {
        /// A stable error code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $text)] $variant),+
        }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the text form.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Returns the HTTP status that goes with the code.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status),+ }
            }

            /// Tells whether the same request may succeed later.
            #[must_use]
            pub const fn is_retryable(self) -> bool {
                match self { $(Self::$variant => codes!(@$retryable)),+ }
            }
        }
    };
    (@again) => { true };
    (@never) => { false };
}

codes! {
    /// The request cannot be read.
    BadRequest = "bad_request", 400, never;
    /// A field has a value that is not allowed.
    ValidationFailed = "validation_failed", 422, never;
    /// The socket operation does not exist.
    UnknownOp = "unknown_op", 400, never;
    /// The credential is missing or not valid.
    Unauthorized = "unauthorized", 401, never;
    /// The credential does not allow this.
    Forbidden = "forbidden", 403, never;
    /// There is no such thing, or it is not the caller's to know of.
    NotFound = "not_found", 404, never;
    /// The state of the thing does not allow this now.
    Conflict = "conflict", 409, never;
    /// The thing was edited in between.
    VersionMismatch = "version_mismatch", 409, never;
    /// The lease was lost; the write changed nothing.
    Fenced = "fenced", 409, never;
    /// The thing exists already.
    Duplicate = "duplicate", 409, never;
    /// The idempotency key was used with another request.
    IdempotencyMismatch = "idempotency_mismatch", 422, never;
    /// The same request is being worked on.
    InProgress = "in_progress", 409, again;
    /// The body or payload is too large.
    PayloadTooLarge = "payload_too_large", 413, never;
    /// Too many requests.
    RateLimited = "rate_limited", 429, again;
    /// The user has too many sockets.
    TooManyConnections = "too_many_connections", 429, again;
    /// The socket has joined too many rooms.
    TooManyRooms = "too_many_rooms", 409, never;
    /// The room name does not follow its grammar.
    RoomNameInvalid = "room_name_invalid", 422, never;
    /// The socket has not joined the room.
    NotJoined = "not_joined", 409, never;
    /// The socket has joined the room already.
    AlreadyJoined = "already_joined", 409, never;
    /// The position belongs to another history or was pruned.
    UnrecoverablePosition = "unrecoverable_position", 409, never;
    /// The room keeps no history.
    HistoryDisabled = "history_disabled", 409, never;
    /// Nobody is connected who could answer the call.
    NoResponder = "no_responder", 404, again;
    /// The call was not answered in time.
    CallTimeout = "call_timeout", 504, again;
    /// The call was claimed or answered by another connection.
    CallConflict = "call_conflict", 409, never;
    /// The client that executed the call says that it failed.
    CallFailed = "call_failed", 502, never;
    /// The schedule has no occurrence in the future.
    ScheduleNeverFires = "schedule_never_fires", 400, never;
    /// The time zone is not known.
    ZoneUnknown = "zone_unknown", 400, never;
    /// The run has ended.
    RunEnded = "run_ended", 409, never;
    /// A part that the request needs does not answer now.
    Unavailable = "unavailable", 503, again;
    /// The server failed.
    Internal = "internal", 500, again;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_serialise_as_their_text() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_string(code).unwrap(), format!("\"{}\"", code.as_str()));
        }
        assert_eq!(ErrorCode::ALL.len(), 30);
    }
}
