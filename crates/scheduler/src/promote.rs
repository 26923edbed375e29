//! The promote loop: runs become ready whose time has come or for which a permit is free.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_store_api::{PromoteReport, RunStore, StoreResult};
use tokio::time::Instant;

use crate::activation::Activity;
use crate::observer::Wakes;

/// The most runs of one pass.
const BATCH: u32 = 500;

pub(crate) struct Promote {
    pub(crate) runs: Arc<dyn RunStore>,
    pub(crate) wakes: Arc<Wakes>,
}

#[async_trait]
impl Activity for Promote {
    async fn run_once(&mut self) -> StoreResult<String> {
        let read_at = Instant::now();
        let PromoteReport { due, permitted, paced, expired, paced_for } = self.runs.promote(BATCH).await?;
        if due + permitted + paced > 0 {
            self.wakes.dispatch.now();
            self.wakes.progress.send_modify(|_| {});
        }
        if let Some(wait) = paced_for {
            self.wakes.promote.when(wait.to_delta(), read_at);
        }
        if [due, permitted, paced, expired].into_iter().max() >= Some(u64::from(BATCH)) {
            self.wakes.promote.now();
        }
        Ok(format!("{due} runs due, {permitted} permitted, {paced} let go by rate limits, {expired} too late"))
    }
}
