//! The outbox: always empty, because no application shares the file.

use async_trait::async_trait;
use switchboard_model::outbox::FailedEntry;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_store_api::{OutboxStore, RelayReport, StoreResult};

use crate::Database;

#[async_trait]
impl OutboxStore for Database {
    async fn relay(&self, _: u32) -> StoreResult<RelayReport> {
        Ok(RelayReport::default())
    }

    async fn failed(&self, _: &PageRequest) -> StoreResult<Page<FailedEntry>> {
        Ok(Page { items: Vec::new(), next_cursor: None })
    }

    async fn sweep(&self, _: Span, _: u32) -> StoreResult<u64> {
        Ok(0)
    }
}
