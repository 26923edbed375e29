//! Names that people choose: users, rooms, events, tasks, pools; each parsed once at the edge.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Why a text is not accepted as a name; the message says which characters are allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} must match {pattern}")]
pub struct NameError {
    /// What kind of name was refused.
    pub what: &'static str,
    /// The grammar, as a regular expression.
    pub pattern: &'static str,
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident, $what:literal, $pattern:literal, $check:path);+ $(;)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
        #[serde(transparent)]
        #[schemars(extend("pattern" = $pattern))]
        pub struct $name(String);

        impl $name {
            /// The grammar, as a regular expression.
            pub const PATTERN: &'static str = $pattern;

            /// Returns the text form.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Returns the text, consuming the name.
            #[must_use]
            pub fn into_string(self) -> String {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                if $check(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(NameError { what: $what, pattern: $pattern })
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    )+};
}

names! {
    /// An opaque user id: a UUID of our own accounts, or the `sub` of somebody else's.
    UserId, "user id", r"^[A-Za-z0-9._~|@-]{1,128}$", is_opaque_id;
    /// What a user signs in with, such as a handle or an e-mail address; lower case, so that one person has one name.
    UserName, "user name", r"^[a-z0-9][a-z0-9._~|@+-]{0,127}$", is_user_name;
    /// A room name: a lower-case head and up to four `:`-separated parts.
    RoomName, "room name", r"^[a-z][a-z0-9_-]{0,31}(:[A-Za-z0-9._~|@-]{1,128}){0,4}$", is_room_name;
    /// An event name.
    EventName, "event name", r"^[a-z][a-z0-9_.-]{0,63}$", is_event_name;
    /// The unique name of a task.
    TaskName, "task name", r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$", is_task_name;
    /// A named class of runs.
    PoolName, "pool name", r"^[a-z][a-z0-9_-]{0,31}$", is_head;
    /// The unique name of a secret.
    SecretName, "secret name", r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$", is_secret_name;
    /// The unique name of a token of a provider.
    TokenName, "token name", r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$", is_secret_name;
    /// What an external worker calls itself.
    WorkerName, "worker name", r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$", is_worker_name;
    /// A key that limits how many runs go at the same time.
    ConcurrencyKey, "concurrency key", r"^[\x21-\x7e]{1,200}$", is_visible_key;
    /// A message id or deduplication key given by a client.
    ClientKey, "key", r"^[\x21-\x7e]{1,200}$", is_visible_key;
    /// A group of keys that belong together.
    Namespace, "namespace", r"^[a-z][a-z0-9_-]{0,63}$", is_namespace;
}

fn is_opaque(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._~|@-".contains(&byte)
}

fn is_opaque_id(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(is_opaque)
}

fn is_user_name(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._~|@+-".contains(&b);
    text.len() <= 128 && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric) && text.bytes().all(is_allowed)
}

fn is_head(text: &str) -> bool {
    starts_lower(text, 32) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b))
}

fn starts_lower(text: &str, longest: usize) -> bool {
    text.len() <= longest && text.as_bytes().first().is_some_and(u8::is_ascii_lowercase)
}

fn is_room_name(text: &str) -> bool {
    let mut parts = text.split(':');
    parts.next().is_some_and(is_head) && {
        let rest: Vec<&str> = parts.collect();
        rest.len() <= 4 && rest.into_iter().all(is_opaque_id)
    }
}

fn is_event_name(text: &str) -> bool {
    starts_lower(text, 64) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.-".contains(&b))
}

fn is_task_name(text: &str) -> bool {
    is_name_with(text, b"._:/-")
}

fn is_secret_name(text: &str) -> bool {
    is_name_with(text, b"._:-")
}

fn is_worker_name(text: &str) -> bool {
    is_name_with(text, b"._:@/-")
}

fn is_name_with(text: &str, others: &[u8]) -> bool {
    text.len() <= 128
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || others.contains(&b))
}

fn is_namespace(text: &str) -> bool {
    starts_lower(text, 64) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b))
}

fn is_visible_key(text: &str) -> bool {
    (1..=200).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

impl UserId {
    /// Returns the implicit room that carries the events targeted at this user.
    #[must_use]
    pub fn room(&self) -> RoomName {
        RoomName(format!("user:{}", self.0))
    }
}

impl EventName {
    /// Prefixes that only the server may publish under.
    pub const RESERVED: [&'static str; 5] = ["sb.", "turn.", "tool.", "run.", "presence."];

    /// Tells whether only the server may publish this event.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        Self::RESERVED.iter().any(|prefix| self.0.starts_with(prefix))
    }
}

impl PoolName {
    /// The pool of runs that name no other.
    #[must_use]
    pub fn default_pool() -> Self {
        Self("default".to_owned())
    }

    /// The name of [`Self::system_pool`].
    pub const SYSTEM: &'static str = "system";

    /// The pool of functions of the server itself, which every worker serves, also while the fleet is paused.
    #[must_use]
    pub fn system_pool() -> Self {
        Self(Self::SYSTEM.to_owned())
    }
}

/// Who causes a change, and whose message ids are deduplicated together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// A signed-in person or a ticket holder.
    User(UserId),
    /// A program with an API key.
    ApiKey(crate::ids::ApiKeyId),
    /// The server itself; the text names the part.
    System(&'static str),
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user:{user}"),
            Self::ApiKey(key) => write!(f, "key:{key}"),
            Self::System(part) => write!(f, "system:{part}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_names_follow_their_grammar() {
        for good in ["lobby", "chat:42", "dm:a@b.c:x|y", "a:1:2:3:4"] {
            assert!(good.parse::<RoomName>().is_ok(), "{good}");
        }
        for bad in ["", "Lobby", "1a", "a:", "a::b", "a:1:2:3:4:5", "a b", "a:é", "a\u{0}"] {
            assert!(bad.parse::<RoomName>().is_err(), "{bad:?}");
        }
        assert!(format!("a{}", "b".repeat(32)).parse::<RoomName>().is_err());
    }

    #[test]
    fn reserved_prefixes_are_the_servers() {
        assert!("run.started".parse::<EventName>().unwrap().is_reserved());
        assert!(!"running".parse::<EventName>().unwrap().is_reserved());
    }
}
