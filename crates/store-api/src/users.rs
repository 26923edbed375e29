//! Users.

use async_trait::async_trait;
use switchboard_model::identity::{UserId, UserName};
use switchboard_model::ids::SessionId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::user::{NewUser, PasswordHash, User, UserEdit};

use crate::StoreResult;
use crate::context::{WriteContext, Written};

/// What making a user gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserCreateOutcome {
    /// The user was made.
    Created(User),
    /// This user has the name, or the identity, already; nothing was changed.
    Taken(UserId),
}

/// What editing a user gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserUpdateOutcome {
    /// The user was edited, or the edit changed nothing.
    Updated(User),
    /// There is no such user.
    NotFound,
    /// The user was edited in between; this is the version now.
    VersionMismatch(i64),
}

/// What signing in with a password goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user, who may be disabled.
    pub user: User,
    /// The hash to verify against; `None` when the user has no password.
    pub password: Option<PasswordHash>,
}

/// How a password is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PasswordChange {
    /// The hash of the new password.
    pub new: PasswordHash,
    /// The hash that the old password was verified against; it must be in force still.
    pub verified: Option<PasswordHash>,
    /// The sign-in session that goes on; it must be live still.
    pub keep: Option<SessionId>,
}

impl PasswordChange {
    /// Replaces the password whatever it was, and ends every session.
    #[must_use]
    pub const fn to(new: PasswordHash) -> Self {
        Self { new, verified: None, keep: None }
    }
}

/// Users. Names are unique.
#[async_trait]
pub trait UserStore: Send + Sync {
    /// Makes a user.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn create(&self, context: &WriteContext, user: &NewUser) -> StoreResult<Written<UserCreateOutcome>>;

    /// Reads a user.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn get(&self, id: &UserId) -> StoreResult<Option<User>>;

    /// Finds what signing in as `name` goes by.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find_login(&self, name: &UserName) -> StoreResult<Option<Login>>;

    /// Lists users in the order of their ids.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<User>>;

    /// Edits a user who still has version `expected`; an edit without any change keeps the version. Disabling
    /// and another role end all sign-in sessions and tickets of the user and signal `UserRevoked`: tickets and sockets
    /// carry what the old role allowed.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn update(
        &self,
        context: &WriteContext,
        id: &UserId,
        expected: i64,
        edit: &UserEdit,
    ) -> StoreResult<UserUpdateOutcome>;

    /// Replaces a password and ends all sign-in sessions of the user but the kept one, with their tickets; signals
    /// `SessionRevoked` for each. `false` means that there is no such user, or that what the change was decided on
    /// holds no more.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn set_password(&self, context: &WriteContext, id: &UserId, change: &PasswordChange) -> StoreResult<bool>;

    /// Replaces the hash of a password that was verified, by one with newer parameters, if it is still `old`.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn rehash_password(&self, id: &UserId, old: &PasswordHash, new: &PasswordHash) -> StoreResult<()>;

    /// Deletes a user with all sign-in sessions and tickets, and signals `UserRevoked`. `false` means that
    /// there is none.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn delete(&self, context: &WriteContext, id: &UserId) -> StoreResult<bool>;
}
