//! Rate limits that all replicas share.

use async_trait::async_trait;
use switchboard_model::limit::{Decision, Rate};

use crate::StoreResult;

/// Asks for units of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitTake {
    /// The key; keys of different scopes start with different words.
    pub key: String,
    /// What is allowed.
    pub rate: Rate,
    /// How many units are taken.
    pub cost: u32,
}

/// Rate limits by [`Rate::take`], one row for each key, always on real database time, read after any wait for
/// the row.
#[async_trait]
pub trait LimitStore: Send + Sync {
    /// Takes units of several keys, which are different, at once: of all of them or of none. Returns one
    /// decision for each, in order: when some are denied, the others say what they would have given and
    /// nothing was used up. A denial writes nothing.
    ///
    /// One key costs one statement. Several are locked in the order of their keys.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn take(&self, takes: &[LimitTake]) -> StoreResult<Vec<Decision>>;

    /// Deletes up to `limit` keys that are unused again and returns how many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;
}
