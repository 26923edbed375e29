//! What a credential may do: the closed list of scopes.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::identity::{PoolName, RoomName, SecretName, TokenName};

/// One permission of an API key or a role.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Reads tasks and their occurrences.
    TasksRead,
    /// Creates, edits, triggers and deletes tasks.
    TasksWrite,
    /// Reads runs.
    RunsRead,
    /// Cancels and retries runs.
    RunsWrite,
    /// Executes the runs of this pool as an external worker; those of every pool when none is named.
    Work(Option<PoolName>),
    /// Reads rooms and their events.
    RoomsRead,
    /// Creates and deletes rooms and mints tickets.
    RoomsWrite,
    /// Publishes to rooms whose name starts with the prefix; an empty prefix means every room.
    Publish(String),
    /// Reads streams and what runs write.
    StreamsRead,
    /// Opens, writes and stops streams.
    StreamsWrite,
    /// Calls clients of users, and reads what calls gave.
    Calls,
    /// Reads and administers users and their sign-in sessions.
    Users,
    /// Reads which secrets and tokens there are, and which keys encrypt them.
    SecretsRead,
    /// Sets and deletes secrets and tokens.
    SecretsWrite,
    /// Lets tasks and tokens use the secrets whose name starts with the prefix; an empty prefix means every secret.
    SecretsUse(String),
    /// Is handed access tokens of the tokens whose name starts with the prefix; an empty prefix means every token.
    TokensAccess(String),
    /// Uses the coordination primitives, such as rate limits.
    Coordination,
    /// Everything.
    Admin,
}

/// Makes a scope that names begin for.
type FromPrefix = fn(String) -> Scope;

/// Why a text is not a scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown scope {0:?}; known are tasks:read, tasks:write, runs:read, runs:write, work:<pool>, rooms:read, rooms:write, publish:<prefix>, calls:write, streams:read, streams:write, users:*, secrets:read, secrets:write, secrets:use:<prefix>, tokens:access:<prefix>, coordination:*, admin"
)]
pub struct ScopeError(String);

impl Scope {
    /// Tells whether holding this scope grants `wanted`.
    #[must_use]
    pub fn grants(&self, wanted: &Self) -> bool {
        match (self, wanted) {
            (Self::Admin, _)
            | (Self::TasksWrite, Self::TasksRead)
            | (Self::RunsWrite, Self::RunsRead)
            | (Self::RoomsWrite, Self::RoomsRead)
            | (Self::StreamsWrite, Self::StreamsRead)
            | (Self::SecretsWrite, Self::SecretsRead)
            | (Self::Work(None), Self::Work(_)) => true,
            (Self::Publish(held), Self::Publish(wanted))
            | (Self::SecretsUse(held), Self::SecretsUse(wanted))
            | (Self::TokensAccess(held), Self::TokensAccess(wanted)) => wanted.starts_with(held.as_str()),
            (held, wanted) => held == wanted,
        }
    }

    /// Names the scope that publishing to `room` asks for.
    #[must_use]
    pub fn publish_to(room: &RoomName) -> Self {
        Self::Publish(room.as_str().to_owned())
    }

    /// Names the scope that executing the runs of `pool` asks for.
    #[must_use]
    pub fn work_on(pool: &PoolName) -> Self {
        Self::Work(Some(pool.clone()))
    }

    /// Names the scope that using a secret asks for.
    #[must_use]
    pub fn use_of(secret: &SecretName) -> Self {
        Self::SecretsUse(secret.as_str().to_owned())
    }

    /// Names the scope that taking an access token asks for.
    #[must_use]
    pub fn access_to(token: &TokenName) -> Self {
        Self::TokensAccess(token.as_str().to_owned())
    }

    /// Reads a scope that carries a name.
    fn with_name(text: &str) -> Option<Self> {
        let with_prefix: [(&str, FromPrefix); 3] =
            [("publish:", Self::Publish), ("secrets:use:", Self::SecretsUse), ("tokens:access:", Self::TokensAccess)];
        for (head, scope) in with_prefix {
            if let Some(prefix) = text.strip_prefix(head) {
                let is_allowed = prefix.len() <= 256 && prefix.bytes().all(|b| b.is_ascii_graphic());
                return is_allowed.then(|| scope(prefix.trim_end_matches('*').to_owned()));
            }
        }
        match text.strip_prefix("work:")? {
            "" | "*" => Some(Self::Work(None)),
            pool => pool.parse().ok().map(|pool| Self::Work(Some(pool))),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TasksRead => "tasks:read",
            Self::TasksWrite => "tasks:write",
            Self::RunsRead => "runs:read",
            Self::RunsWrite => "runs:write",
            Self::RoomsRead => "rooms:read",
            Self::RoomsWrite => "rooms:write",
            Self::StreamsRead => "streams:read",
            Self::StreamsWrite => "streams:write",
            Self::Calls => "calls:write",
            Self::Users => "users:*",
            Self::SecretsRead => "secrets:read",
            Self::SecretsWrite => "secrets:write",
            Self::Coordination => "coordination:*",
            Self::Admin => "admin",
            Self::Work(None) => "work:",
            Self::Work(Some(pool)) => return write!(f, "work:{pool}"),
            Self::Publish(prefix) => return write!(f, "publish:{prefix}"),
            Self::SecretsUse(prefix) => return write!(f, "secrets:use:{prefix}"),
            Self::TokensAccess(prefix) => return write!(f, "tokens:access:{prefix}"),
        })
    }
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "tasks:read" => Self::TasksRead,
            "tasks:write" => Self::TasksWrite,
            "runs:read" => Self::RunsRead,
            "runs:write" => Self::RunsWrite,
            "rooms:read" => Self::RoomsRead,
            "rooms:write" => Self::RoomsWrite,
            "streams:read" => Self::StreamsRead,
            "streams:write" => Self::StreamsWrite,
            "calls:write" => Self::Calls,
            "users:*" => Self::Users,
            "secrets:read" => Self::SecretsRead,
            "secrets:write" => Self::SecretsWrite,
            "coordination:*" => Self::Coordination,
            "admin" => Self::Admin,
            _ => return Self::with_name(text).ok_or_else(|| ScopeError(text.chars().take(80).collect())),
        })
    }
}

impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Scope {
    fn schema_name() -> Cow<'static, str> {
        "Scope".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "One permission of an API key; `publish:`, `secrets:use:` and `tokens:access:` are followed by the start of the names, `work:` by a pool or nothing.",
            "type": "string",
            "pattern": r"^((tasks|runs|rooms|streams|secrets):(read|write)|(publish|secrets:use|tokens:access):[\x21-\x7e]{0,256}|work:([a-z][a-z0-9_-]{0,31}|\*)?|calls:write|users:\*|coordination:\*|admin)$",
            "examples": ["tasks:write", "publish:chat:", "work:gpu", "admin"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_grants_read_and_prefixes_grant_what_they_start() {
        assert!(Scope::TasksWrite.grants(&Scope::TasksRead));
        assert!(!Scope::TasksRead.grants(&Scope::TasksWrite));
        assert!(Scope::Admin.grants(&Scope::Publish("x".into())));
        let chat: Scope = "publish:chat:*".parse().unwrap();
        assert!(chat.grants(&Scope::publish_to(&"chat:1".parse().unwrap())));
        assert!(!chat.grants(&Scope::publish_to(&"chatter:1".parse().unwrap())));
    }

    #[test]
    fn secrets_and_tokens_are_granted_by_the_start_of_their_names() {
        let scope = |text: &str| text.parse::<Scope>().unwrap();
        let [secret, token] = [Scope::use_of(&"crm.key".parse().unwrap()), Scope::access_to(&"crm".parse().unwrap())];
        assert_eq!([secret.to_string(), token.to_string()], ["secrets:use:crm.key", "tokens:access:crm"]);
        assert!(scope("secrets:use:crm.").grants(&secret) && scope("secrets:use:*").grants(&secret));
        assert!(!scope("secrets:write").grants(&secret) && !scope("secrets:use:erp").grants(&secret));
        assert!(scope("tokens:access:crm").grants(&token) && !scope("secrets:use:crm").grants(&token));
        assert!(scope("secrets:write").grants(&scope("secrets:read")));
    }

    #[test]
    fn work_is_granted_on_one_pool_or_on_all() {
        let scope = |text: &str| text.parse::<Scope>().unwrap();
        let gpu = Scope::work_on(&"gpu".parse().unwrap());
        for (text, form, grants) in [
            ("work:", "work:", true),
            ("work:*", "work:", true),
            ("work:gpu", "work:gpu", true),
            ("work:gp", "work:gp", false),
            ("runs:write", "runs:write", false),
        ] {
            assert_eq!(scope(text).to_string(), form);
            assert_eq!(scope(text).grants(&gpu), grants, "{text}");
        }
        assert!(!gpu.grants(&scope("work:")));
        assert!("work:Gpu".parse::<Scope>().is_err());
    }
}
