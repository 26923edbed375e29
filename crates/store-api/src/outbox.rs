//! The outbox: what applications leave in their own transactions, relayed by whichever replica is first.

use async_trait::async_trait;
use switchboard_model::outbox::FailedEntry;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;

use crate::StoreResult;

/// What relaying did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayReport {
    /// Entries that took effect.
    pub applied: u64,
    /// Entries that could not and are kept with their error.
    pub failed: u64,
    /// Whether more are left.
    pub more: bool,
}

impl RelayReport {
    /// Adds what relaying others did.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            applied: self.applied + other.applied,
            failed: self.failed + other.failed,
            more: self.more || other.more,
        }
    }
}

/// What applications have left. On a database that no application shares it is always empty.
#[async_trait]
pub trait OutboxStore: Send + Sync {
    /// Takes up to `limit` triggers and as many events, each in the order in which they were left, and lets each take
    /// effect in the transaction that takes it; entries that another replica is relaying are passed over. One that
    /// cannot take effect is kept with its error and does not stop the others.
    ///
    /// # Errors
    /// Fails when the database does; what was relayed before stays.
    async fn relay(&self, limit: u32) -> StoreResult<RelayReport>;

    /// Lists the entries that could not take effect, newest first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn failed(&self, page: &PageRequest) -> StoreResult<Page<FailedEntry>>;

    /// Forgets up to `limit` failed entries that are older than `age`.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64>;
}
