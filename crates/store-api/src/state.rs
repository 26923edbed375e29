//! Shared state: small values that are changed by compare-and-set.

use async_trait::async_trait;
use switchboard_model::identity::Namespace;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::state::{StateEntry, StateHead, StateKey, StatePut, StateUsage};
use switchboard_model::wire::coordination::StateWritten;

use crate::StoreResult;
use crate::context::WriteContext;

/// What storing a value gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePutOutcome {
    /// It is stored.
    Written(StateWritten),
    /// This version is there instead of what was expected, or nothing.
    VersionMismatch(Option<i64>),
    /// The namespace would hold more than it may; this is what it holds.
    Full(StateUsage),
}

/// What deleting a value gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDeleteOutcome {
    /// It is gone, by a change of this version.
    Deleted(i64),
    /// This version is there instead of the expected one.
    VersionMismatch(i64),
    /// There was nothing.
    NotFound,
}

/// Shared state. Versions come from the sequence of fences: in one namespace they follow the order of commits, and none
/// comes again. A value whose time is over is not there any more, whether it was swept or not. Each change signals
/// `StateChanged`; the end of a time does not.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// Reads a value.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn get(&self, key: &StateKey) -> StoreResult<Option<StateEntry>>;

    /// Stores a value if what is expected is there, and if the namespace then holds no more than `quota` or no more than
    /// before. Writers of one namespace take turns, so the quota is exact.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn put(&self, context: &WriteContext, put: &StatePut, quota: StateUsage) -> StoreResult<StatePutOutcome>;

    /// Deletes a value, of this version if one is given.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn delete(
        &self,
        context: &WriteContext,
        key: &StateKey,
        version: Option<i64>,
    ) -> StoreResult<StateDeleteOutcome>;

    /// Lists the keys of a namespace that start with `prefix`, in the order of their bytes.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, ns: &Namespace, prefix: &str, page: &PageRequest) -> StoreResult<Page<StateHead>>;

    /// Deletes up to `limit` values whose time is over, and up to `limit` records of namespaces that are empty; returns
    /// how many there were of both.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;
}
