//! Encrypted values of all tables together: which keys they need, and their way from one key to another.

use async_trait::async_trait;
use switchboard_model::sealed::{Canary, Reseal, SealedCount, SealedTable, SealedValue};
use uuid::Uuid;

use crate::StoreResult;
use crate::context::WriteContext;

/// Encrypted values, whatever they are of.
#[async_trait]
pub trait SealedStore: Send + Sync {
    /// Counts the values of each table by how they begin; tables without any are left out.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn counts(&self) -> StoreResult<Vec<SealedCount>>;

    /// Returns values of a table that do not begin with `head`, in the order of their rows, from after `after` on.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn stale(&self, table: SealedTable, head: &[u8], after: Uuid, limit: u32) -> StoreResult<Vec<SealedValue>>;

    /// Replaces values in one transaction, each unless it was changed in between; returns how many it replaced.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn reseal(&self, table: SealedTable, changes: &[Reseal]) -> StoreResult<u64>;

    /// Lists the canaries, that of the key that was promoted last first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn canaries(&self) -> StoreResult<Vec<Canary>>;

    /// Adds the canary of a key, which becomes the one to which values go. One that is there already stays as it is:
    /// replicas may boot together.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn add_canary(&self, key_id: &str, value: &SealedValue) -> StoreResult<()>;

    /// Makes a key the one to which values go. `false` means that it has no canary or is retired.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn promote(&self, context: &WriteContext, key_id: &str) -> StoreResult<bool>;

    /// Retires a key: servers start without it, and none encrypts by it again. `false` means that it has no canary or is
    /// retired already.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn retire(&self, context: &WriteContext, key_id: &str) -> StoreResult<bool>;
}
