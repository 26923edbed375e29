//! Tokens of providers: kept for all replicas, renewed by one of them.

use async_trait::async_trait;
use switchboard_model::identity::TokenName;
use switchboard_model::ids::{Fence, TokenId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_model::token::{NewToken, RefreshFailure, RefreshHold, StoredToken, TokenGrant, TokenReading};

use crate::StoreResult;
use crate::context::WriteContext;

/// What setting a token gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenPutOutcome {
    /// It was set.
    Set(StoredToken),
    /// The name belongs to a token of another identity, for which it is to be sealed.
    Moved,
}

/// Tokens by name.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Sets a token. Whoever asks its provider at the time will write in vain.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn put(&self, context: &WriteContext, token: &NewToken) -> StoreResult<TokenPutOutcome>;

    /// Finds a token by name.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find(&self, name: &TokenName) -> StoreResult<Option<TokenReading>>;

    /// Lists tokens by name.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<StoredToken>>;

    /// Deletes a token. `false` means that there is none of this name.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn delete(&self, context: &WriteContext, name: &TokenName) -> StoreResult<bool>;

    /// Takes the right to ask the provider, for a time, to renew this version. `None` means that somebody else has it,
    /// that the token has another version by now, or that the provider is not to be asked yet.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn hold_refresh(&self, id: TokenId, version: i64, lease: Span) -> StoreResult<Option<Fence>>;

    /// Writes what the provider gave, if the token still has the version that was renewed, whoever may ask by now: what
    /// comes late is still the newest. `false` means that it has not.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn finish_refresh(&self, hold: RefreshHold, grant: &TokenGrant) -> StoreResult<bool>;

    /// Writes that the provider gave nothing, if the hold has not passed to somebody else. `false` means that it has.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn fail_refresh(&self, hold: RefreshHold, failure: &RefreshFailure) -> StoreResult<bool>;
}
