//! The outbox: what applications have left in their transactions.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_store_api::{FailedEntry, OutboxStore, RelayReport, StoreResult};

use crate::connect::Database;

pub(crate) struct Outbox(#[expect(dead_code, reason = "nothing is relayed yet")] pub(crate) Arc<Database>);

#[async_trait]
impl OutboxStore for Outbox {
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
