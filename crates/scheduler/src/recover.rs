//! The recover loop: runs whose lease has expired are taken away from their holders, whoever they are.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_store_api::{RecoverReport, RunStore, StoreResult};

use crate::activation::Activity;
use crate::meters;
use crate::observer::Wakes;

/// The most runs of one pass.
const BATCH: u32 = 500;

pub(crate) struct Recover {
    pub(crate) runs: Arc<dyn RunStore>,
    pub(crate) wakes: Arc<Wakes>,
}

#[async_trait]
impl Activity for Recover {
    async fn run_once(&mut self) -> StoreResult<String> {
        let report = self.runs.recover(BATCH).await?;
        meters::recovered(&report);
        let RecoverReport { requeued, dead, cancelled, timed_out } = report;
        let recovered = requeued + dead + cancelled + timed_out;
        if recovered > 0 {
            tracing::info!(requeued, dead, cancelled, timed_out, "runs recovered");
            self.wakes.dispatch.now();
        }
        if recovered >= u64::from(BATCH) {
            self.wakes.recover.now();
        }
        Ok(format!("{requeued} runs queued again, {dead} dead, {cancelled} cancelled, {timed_out} timed out"))
    }
}
