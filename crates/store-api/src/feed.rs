//! The change feed: one mechanism for every fact that crosses replicas.

use async_trait::async_trait;
use switchboard_model::feed::{Agenda, FeedCursor, Signal, Tick, TickRequest};

use crate::StoreResult;
use crate::hint::HintReceiver;

/// The feed of signals that the write methods leave behind.
#[async_trait]
pub trait FeedStore: Send + Sync {
    /// Reads, in one read-only statement, what became visible since `previous` and what is due next.
    ///
    /// Without a cursor, with one that the feed cannot continue, and after a loss of the feed, the
    /// tick says `resync` and carries no signals; its cursor starts anew.
    ///
    /// # Errors
    /// Fails when the database does; the caller then ticks again from the same cursor.
    async fn tick(&self, previous: Option<&FeedCursor>, request: &TickRequest) -> StoreResult<Tick>;

    /// Reads what is to be done by schedule time, of all pools.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn agenda(&self) -> StoreResult<Agenda>;

    /// Writes signals that belong to no other change, such as ephemeral events.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn emit(&self, signals: &[Signal]) -> StoreResult<()>;

    /// Tells the other replicas of signals that may be lost on the way, each the quickest way there is: by hints that
    /// carry them, or else as [`FeedStore::emit`] does. Whoever reads the feed here need not see them, so the caller
    /// serves its own replica itself and marks what it sends.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn broadcast(&self, signals: &[Signal]) -> StoreResult<()>;

    /// Deletes up to `limit` signals that every reader has had a minute to read.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;

    /// Returns the hints that make an early tick worthwhile.
    fn hints(&self) -> HintReceiver;

    /// Checks that the database answers, on its own connection where there is one.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn ping(&self) -> StoreResult<()>;
}
