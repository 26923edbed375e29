//! Sign-in sessions: what access and refresh tokens, tickets and sockets of a user hang on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::UserId;
use crate::ids::{ApiKeyId, SessionId};
use crate::secret_text::SecretHash;
use crate::span::Span;
use crate::user::User;

/// The prefix that marks a text as a refresh token.
pub const REFRESH_PREFIX: &str = "sbr_";

/// A sign-in session that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuthSession {
    /// The identity.
    pub id: SessionId,
    /// Whose it is.
    pub user_id: UserId,
    /// What the client called itself when it signed in, cut at 200 characters.
    pub client: Option<String>,
    /// When the user signed in.
    pub created_at: Timestamp,
    /// When its tokens were last refreshed.
    pub refreshed_at: Timestamp,
    /// When it ends unless its tokens are refreshed.
    pub expires_at: Timestamp,
    /// When it ends whatever happens.
    pub ends_at: Timestamp,
}

/// A sign-in session to be stored.
#[derive(Clone, Debug)]
pub struct NewAuthSession {
    /// The identity.
    pub id: SessionId,
    /// Whose it is.
    pub user_id: UserId,
    /// The version of the user on which the sign-in was decided, so that a password that was replaced meanwhile
    /// opens nothing; `None` when it was decided on nothing of the user.
    pub user_version: Option<i64>,
    /// What the client called itself.
    pub client: Option<String>,
    /// The hash of its first refresh token.
    pub refresh: SecretHash,
    /// How long it lives without a refresh.
    pub idle_ttl: Span,
    /// How long it lives whatever happens.
    pub ttl: Span,
}

/// A signed-in user: the session, and the user as stored now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedIn {
    /// The user.
    pub user: User,
    /// The session.
    pub session: AuthSession,
}

/// What a ticket, and the socket that it opened, hangs on: when that is revoked, both end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Credential {
    /// A sign-in session.
    Session(SessionId),
    /// An API key.
    ApiKey(ApiKeyId),
    /// A user, by a token of another issuer.
    User(UserId),
}
