//! Once-keys: the memory behind idempotent requests.

use async_trait::async_trait;

use crate::StoreResult;

/// Once-keys. They are claimed and completed inside the write methods that carry them in their
/// [`crate::WriteContext`]; a claim whose effect was refused or rolled back is not kept.
#[async_trait]
pub trait OnceStore: Send + Sync {
    /// Deletes up to `limit` expired keys and returns how many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;
}
