//! Close codes of sockets, by class: 40xx stop, 41xx back off, 42xx reconnect at once and resume.

macro_rules! close_codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $reason:literal;)+) => {
        /// Why the server closes a socket.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum CloseCode {
            $($(#[$doc])* $variant),+
        }

        impl CloseCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the number on the wire.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self { $(Self::$variant => $number),+ }
            }

            /// Returns the reason text on the wire.
            #[must_use]
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$variant => $reason),+ }
            }
        }
    };
}

close_codes! {
    /// An `auth` operation failed.
    AuthFailed = 4001, "auth failed";
    /// The user may not be here.
    Forbidden = 4003, "forbidden";
    /// The client broke the protocol.
    ProtocolAbuse = 4008, "protocol abuse";
    /// An operator kicked the socket.
    Kicked = 4010, "kicked";
    /// The sign-in session was revoked.
    SessionRevoked = 4011, "session revoked";
    /// The client accepted no byte for too long.
    Slow = 4100, "slow consumer";
    /// The client did not answer a ping.
    NoPong = 4101, "no pong";
    /// The client sent too many operations.
    Rate = 4102, "rate exceeded";
    /// The token expired.
    TokenExpired = 4103, "token expired";
    /// The server failed.
    ServerError = 4104, "server error";
    /// The client never became active.
    Silent = 4105, "silent too long";
    /// The replica is being stopped.
    Drain = 4200, "drain";
    /// The position of the client cannot be continued.
    Desync = 4201, "desync";
    /// The replica lost its place in the fleet.
    Reconnect = 4202, "reconnect";
    /// The message is not text.
    Unsupported = 1003, "text frames only";
    /// The message is too large.
    TooBig = 1009, "message too big";
}

/// What a client does after a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterClose {
    /// It needs a new ticket or a person.
    Stop,
    /// It waits with growing delays, then resumes.
    BackOff,
    /// It reconnects at once and resumes.
    Resume,
}

impl AfterClose {
    /// Reads the class of a close code; unknown and missing codes mean a lost connection.
    #[must_use]
    pub const fn of(number: u16) -> Self {
        match number {
            4000..=4099 | 1002 | 1003 | 1007 | 1009 => Self::Stop,
            4200..=4299 => Self::Resume,
            _ => Self::BackOff,
        }
    }
}
