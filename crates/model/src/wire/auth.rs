//! Bodies of the REST surface about users, sign-in and what they may do.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::{UserId, UserName};
use crate::ids::{ApiKeyId, SessionId};
use crate::scope::Scope;
use crate::user::{User, UserRole};

/// A password on its way in; it has no `Display` and no readable `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("format" = "password"))]
pub struct Password(String);

impl Password {
    /// The fewest characters.
    pub const SHORTEST: usize = 8;
    /// The most characters.
    pub const LONGEST: usize = 128;

    /// Takes a password as somebody gave it.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Shows the password; only to hash it, to verify it and to send it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Tells whether it may be set: 8 to 128 characters, any of them.
    #[must_use]
    pub fn has_allowed_length(&self) -> bool {
        (Self::SHORTEST..=Self::LONGEST).contains(&self.0.chars().count())
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(…)")
    }
}

/// Signs a user in, or registers one where that is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginRequest {
    /// The name.
    pub name: UserName,
    /// The password.
    pub password: Password,
}

/// Asks for new tokens.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RefreshRequest {
    /// The latest refresh token; it is used up.
    pub refresh_token: String,
}

/// The tokens of a sign-in session (RFC 6749, section 5.1).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenResponse {
    /// What requests present as `Authorization: Bearer …`.
    pub access_token: String,
    /// How it is presented: `Bearer`.
    pub token_type: String,
    /// How long the access token works, in seconds.
    pub expires_in: u64,
    /// What gets the next tokens, once.
    pub refresh_token: String,
    /// The sign-in session.
    pub session_id: SessionId,
    /// The user.
    pub user: User,
}

/// Signs out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogoutRequest {
    /// Whether all sign-in sessions of the user end, not only this one.
    pub everywhere: bool,
}

/// Who the caller is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Me {
    /// The user, for tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// What the user may do, for tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<UserRole>,
    /// The sign-in session, for tokens of this server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The API key, for keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_id: Option<ApiKeyId>,
    /// What the credential allows.
    pub scopes: Vec<Scope>,
}

/// Makes a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserRequest {
    /// The identity; made by the server when absent, the `sub` for users of another issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<UserId>,
    /// What the user signs in with.
    pub name: UserName,
    /// The password; absent for users of another issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Password>,
    /// What the user may do.
    #[serde(default = "plain_user")]
    pub role: UserRole,
}

fn plain_user() -> UserRole {
    UserRole::User
}

/// Edits a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserUpdate {
    /// The version that was edited.
    pub version: i64,
    /// What the user may do.
    pub role: UserRole,
    /// Whether neither signing in nor any credential of the user works.
    pub is_disabled: bool,
}

/// Sets a password; all sign-in sessions of the user end but the caller's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordRequest {
    /// The password until now; needed by users for themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<Password>,
    /// The new password.
    pub new: Password,
}
