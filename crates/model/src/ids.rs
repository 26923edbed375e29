//! Identifiers: UUIDv7 newtypes made by the caller, and the textual identity of a replica.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Makes a new time-ordered identifier.
            #[must_use]
            #[expect(clippy::new_without_default, reason = "a fresh identifier is not a default value")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// Wraps an identifier read from storage.
            #[must_use]
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// Returns the raw UUID.
            #[must_use]
            pub const fn as_uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self)
            }
        }
    )+};
}

uuid_ids! {
    /// A stored task definition.
    TaskId,
    /// One execution of an occurrence, trigger or retry.
    RunId,
    /// A room row; people address rooms by name.
    RoomId,
    /// An API key row; never the key itself.
    ApiKeyId,
    /// A sign-in session that tickets and sockets belong to.
    SessionId,
    /// One WebSocket connection.
    ConnectionId,
    /// One audit entry.
    AuditId,
    /// A secret of a webhook; never the secret itself.
    WebhookSecretId,
    /// A named secret; never its value.
    SecretId,
    /// A token of a provider; never what is secret about it.
    TokenId,
    /// A request to one client.
    CallId,
    /// What a client that claimed a call answers it with.
    ClaimToken,
    /// An append-only sequence of chunks.
    StreamId,
}

/// What the identities of external workers begin with.
const EXTERNAL_PREFIX: &str = "worker:";

/// The identity of one running process: its configured name and a suffix that is new at every boot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct InstanceId(String);

impl InstanceId {
    /// Makes the identity of a process that boots now under `name`.
    #[must_use]
    pub fn boot(name: &str) -> Self {
        let suffix = Uuid::new_v4().simple().to_string();
        Self(format!("{name}-{}", &suffix[..10]))
    }

    /// Makes the identity of an external worker, which no process has: names of processes contain no colon.
    #[must_use]
    pub fn external(worker: &str) -> Self {
        Self(format!("{EXTERNAL_PREFIX}{worker}"))
    }

    /// Tells whether it is that of an external worker.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.0.starts_with(EXTERNAL_PREFIX)
    }

    /// Wraps an identity read from storage.
    #[must_use]
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// Returns the text form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A number that grows with every lease; a write that carries an older one changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Fence(pub i64);
