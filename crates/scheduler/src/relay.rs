//! The relay loop: what applications have left in their own transactions takes effect.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_store_api::{OutboxStore, RelayReport, StoreResult};

use crate::activation::Activity;
use crate::meters;
use crate::observer::Wakes;

/// The most entries of one pass: they lie in one transaction.
const BATCH: u32 = 100;

pub(crate) struct Relay {
    pub(crate) outbox: Arc<dyn OutboxStore>,
    pub(crate) wakes: Arc<Wakes>,
}

#[async_trait]
impl Activity for Relay {
    async fn run_once(&mut self) -> StoreResult<String> {
        let report = self.outbox.relay(BATCH).await?;
        meters::relayed(&report);
        let RelayReport { applied, failed, more } = report;
        if applied > 0 {
            self.wakes.dispatch.now();
        }
        if failed > 0 {
            tracing::warn!(failed, "entries of the outbox could not take effect; list them to see why");
        }
        if more {
            self.wakes.relay.now();
        }
        Ok(format!("{applied} entries took effect, {failed} could not"))
    }
}
