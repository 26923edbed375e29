//! Sign-in sessions and their refresh tokens.

use async_trait::async_trait;
use switchboard_model::auth_session::{AuthSession, Credential, NewAuthSession, SignedIn};
use switchboard_model::identity::UserId;
use switchboard_model::ids::SessionId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::secret_text::SecretHash;
use switchboard_model::span::Span;

use crate::StoreResult;
use crate::context::WriteContext;

/// What a refresh token gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefreshOutcome {
    /// Its successor is the token of the session now, and the session lives on.
    Refreshed(SignedIn),
    /// It had a successor that was used since, so somebody else has a copy: the session was ended.
    Reused(AuthSession),
    /// It is unknown, or its session has ended, or its user is disabled or gone.
    Invalid,
}

/// Sign-in sessions. One that has ended is forgotten: its row, its refresh tokens and its tickets are gone.
#[async_trait]
pub trait AuthSessionStore: Send + Sync {
    /// Starts a session. `None` means that the user is disabled, gone or edited since, as of this transaction.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn start(&self, context: &WriteContext, session: &NewAuthSession) -> StoreResult<Option<AuthSession>>;

    /// Uses up a refresh token; `successor` is the hash of the one that the caller gets instead, which callers
    /// derive from `presented`, so that equal requests have equal answers.
    ///
    /// The latest token of a session is succeeded. Its predecessor gives the same again, for as long as the
    /// latest was not used itself: the answer to the first request may have been lost. (A latest token other
    /// than `successor` is then replaced by it.) Any older token is a copy: it ends the session with its
    /// tickets, signals `SessionRevoked` and writes the audit entry of `context`, which is not written
    /// otherwise. The session row is locked before anything is decided.
    ///
    /// A refresh prolongs the session to `idle_ttl` from now, not beyond its end.
    ///
    /// # Errors
    /// Fails when the database does; the outcome is then unknown and a repetition is safe.
    async fn refresh(
        &self,
        context: &WriteContext,
        presented: SecretHash,
        successor: SecretHash,
        idle_ttl: Span,
    ) -> StoreResult<RefreshOutcome>;

    /// Finds a session that has not ended, whose user is not disabled.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find_valid(&self, id: SessionId) -> StoreResult<Option<SignedIn>>;

    /// Lists the sessions of a user that have not ended, in the order of their start.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, user: &UserId, page: &PageRequest) -> StoreResult<Page<AuthSession>>;

    /// Ends a session of this user and signals `SessionRevoked`. `false` means that the user has no such session.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn end(&self, context: &WriteContext, user: &UserId, id: SessionId) -> StoreResult<bool>;

    /// Ends all sessions of a user but `keep`, signals `SessionRevoked` for each, and returns how many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn end_all(&self, context: &WriteContext, user: &UserId, keep: Option<SessionId>) -> StoreResult<u64>;

    /// Returns those of `credentials` that are revoked, in one read: sessions that have ended or whose user is
    /// disabled, API keys that are revoked or have expired or never were, and users who are disabled. A user
    /// without a row here is somebody else's and not revoked.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn revoked(&self, credentials: &[Credential]) -> StoreResult<Vec<Credential>>;

    /// Forgets up to `limit` sessions that ended by themselves, and returns how many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;
}
