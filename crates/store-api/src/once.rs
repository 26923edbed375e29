//! Once-keys: the memory behind idempotent requests, and what programs claim before something that must not happen twice.

use async_trait::async_trait;
use switchboard_model::ids::Fence;
use switchboard_model::json_text::JsonText;
use switchboard_model::once::{NewOnce, OnceEntry, OnceKey};
use switchboard_model::span::Span;

use crate::StoreResult;
use crate::context::WriteContext;

/// What claiming a once-key gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceClaimOutcome {
    /// It is the caller's.
    New(OnceEntry),
    /// It was claimed before for the same; the state tells what became of it.
    Found(OnceEntry),
    /// It was claimed for something else.
    Mismatch,
}

/// What taking a once-key over gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceTakeOver {
    /// It is the caller's, with a greater fence.
    Taken(OnceEntry),
    /// It is not unknown, or somebody else has taken it over: this is how it stands.
    Refused(OnceEntry),
    /// There is no such key.
    NotFound,
}

/// What completing a once-key, or giving it up, gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceEnd {
    /// It is done.
    Ended,
    /// The claim is somebody else's now, or it has ended otherwise.
    Fenced,
    /// There is no such key.
    NotFound,
}

/// What consuming a once-key gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceConsumed {
    /// This was in it, and it is gone: nobody else gets it.
    Consumed(OnceEntry),
    /// It is not completed, and stays.
    NotDone(OnceEntry),
    /// There is no such key, or it was consumed.
    NotFound,
}

/// Once-keys. Those of requests are claimed and completed inside the write methods that carry them in their
/// [`crate::WriteContext`]; a claim whose effect was refused or rolled back is not kept. Those of programs are claimed
/// before what they do and completed after it, and are other keys than those of requests whatever they are called.
#[async_trait]
pub trait OnceStore: Send + Sync {
    /// Claims a key that nobody has claimed, or whose time is over.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn claim(&self, claim: &NewOnce) -> StoreResult<OnceClaimOutcome>;

    /// Makes a claim that is unknown, and still has this fence, that of the caller.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn take_over(
        &self,
        context: &WriteContext,
        key: &OnceKey,
        fence: Fence,
        lease: Span,
    ) -> StoreResult<OnceTakeOver>;

    /// Completes a claim, also after its lease unless somebody has taken it over. Repeating it changes nothing.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn complete(&self, key: &OnceKey, fence: Fence, result: &JsonText) -> StoreResult<OnceEnd>;

    /// Gives up a claim that is not completed: the key can be claimed again.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn abandon(&self, context: &WriteContext, key: &OnceKey, fence: Fence) -> StoreResult<OnceEnd>;

    /// Finds a key.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find(&self, key: &OnceKey) -> StoreResult<Option<OnceEntry>>;

    /// Deletes a completed key and returns what was in it, to one caller.
    ///
    /// # Errors
    /// Fails when the database does; whether it was consumed is not known then.
    async fn consume(&self, key: &OnceKey) -> StoreResult<OnceConsumed>;

    /// Deletes up to `limit` expired keys and returns how many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;
}
