//! Users: people who sign in, and what their roles let them do.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::{UserId, UserName};
use crate::scope::Scope;
use crate::text_enum::text_enum;

text_enum! {
    /// What a user may do.
    UserRole, "user role" {
        /// Everything.
        Admin = "admin",
        /// Works with tasks, runs, rooms and events, but not with users, keys and settings.
        Operator = "operator",
        /// Uses what applications offer: own sign-in sessions, own sockets.
        User = "user",
    }
}

impl UserRole {
    /// Returns the scopes that users of this role hold.
    #[must_use]
    pub fn scopes(self) -> Vec<Scope> {
        match self {
            Self::Admin => vec![Scope::Admin],
            Self::Operator => {
                vec![
                    Scope::TasksWrite,
                    Scope::RunsWrite,
                    Scope::RoomsWrite,
                    Scope::Publish(String::new()),
                    Scope::Calls,
                    Scope::StreamsWrite,
                ]
            }
            Self::User => Vec::new(),
        }
    }
}

/// A stored user, without the password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct User {
    /// The identity; a UUID for accounts made here, the `sub` of the tokens of somebody else's.
    pub id: UserId,
    /// What the user signs in with; unique.
    pub name: UserName,
    /// What the user may do.
    pub role: UserRole,
    /// Whether the user can sign in with a password.
    pub has_password: bool,
    /// Whether neither signing in nor any credential of the user works.
    pub is_disabled: bool,
    /// Grows with every edit.
    pub version: i64,
    /// When the user was made.
    pub created_at: Timestamp,
    /// When the user was last edited.
    pub updated_at: Timestamp,
}

/// A user to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewUser {
    /// The identity.
    pub id: UserId,
    /// What the user signs in with.
    pub name: UserName,
    /// What the user may do.
    pub role: UserRole,
    /// The hash of the password as a PHC string; `None` for users of another issuer.
    pub password: Option<PasswordHash>,
}

/// What of a user can be edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserEdit {
    /// What the user may do.
    pub role: UserRole,
    /// Whether neither signing in nor any credential of the user works.
    pub is_disabled: bool,
}

/// The hash of a password, as a PHC string; it has no `Display`, so that it cannot slip into a log.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(String);

impl PasswordHash {
    /// Wraps a PHC string.
    #[must_use]
    pub fn from_phc(text: String) -> Self {
        Self(text)
    }

    /// Returns the PHC string, to store it or to verify against it.
    #[must_use]
    pub fn as_phc(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PasswordHash(…)")
    }
}
