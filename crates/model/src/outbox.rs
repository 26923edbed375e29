//! The outbox: what applications leave in their own transactions on the database.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// An entry that could not take effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedEntry {
    /// The place of the entry among all entries.
    pub id: i64,
    /// What it was: `trigger` or `publish`.
    pub kind: String,
    /// What it was about: the name of a task or of a room.
    pub subject: String,
    /// Why it could not take effect.
    pub error: String,
    /// When it was left.
    pub created_at: Timestamp,
    /// When it was tried.
    pub failed_at: Timestamp,
}
