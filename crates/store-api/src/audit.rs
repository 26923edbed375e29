//! The audit log. Its entries are written with the changes that they tell of.

use async_trait::async_trait;
use switchboard_model::audit::{AuditFilter, AuditOrder, AuditRecord};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;

use crate::StoreResult;

/// The audit log: appended by every write that carries an [`crate::AuditEntry`], never edited.
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// Lists entries.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, filter: &AuditFilter, order: AuditOrder, page: &PageRequest)
    -> StoreResult<Page<AuditRecord>>;

    /// Deletes up to `limit` entries older than `age` and returns how many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64>;
}
