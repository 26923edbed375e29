//! The dispatch loop: leases ready runs, never more than there are free permits, and starts them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{LeaseRequest, RunStore, StoreResult};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use uuid::Uuid;

use crate::activation::Activity;
use crate::execute::Executor;
use crate::meters;
use crate::observer::Wakes;

/// The most runs of one lease.
const BATCH: u32 = 500;

pub(crate) struct Dispatch {
    pub(crate) runs: Arc<dyn RunStore>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) executor: Arc<Executor>,
    /// What is asked for; its limit is set anew in each pass. Its identity outlives a pass without an answer.
    pub(crate) request: LeaseRequest,
}

#[async_trait]
impl Activity for Dispatch {
    async fn run_once(&mut self) -> StoreResult<String> {
        // Said before looking at the permits: one that frees from here on wakes the loop again.
        self.wakes.wants_permits.store(true, Ordering::SeqCst);
        let free = u32::try_from(self.permits.available_permits()).unwrap_or(BATCH).min(BATCH);
        let permits = self.permits.clone().try_acquire_many_owned(free).ok().filter(|_| free > 0);
        let Some(mut permits) = permits else {
            return Ok("no permit is free".to_owned());
        };
        self.request.limit = free;
        // What a pass without an answer may have leased is asked for again under its identity. There is a permit for
        // each of those runs, because nobody took one meanwhile.
        let is_repeated = self.request.request.is_some();
        self.request.request.get_or_insert_with(Uuid::now_v7);
        let cancels = self.wakes.cancels.load(Ordering::SeqCst);
        let asked = Instant::now();
        let batch = self.runs.lease(&self.request).await?;
        self.request.request = None;
        let leased = batch.runs.len();
        if leased > 0 {
            fail_point::hit(FailPoint::AfterClaim);
        }
        for run in batch.runs {
            meters::start_lag(run.leased_at - run.run_at);
            self.executor.start(run, asked, permits.split(1));
        }
        // A cancel request may have met a run that was leased already and not yet held.
        if self.wakes.cancels.load(Ordering::SeqCst) != cancels {
            self.wakes.heartbeat.now();
        }
        if let Some(wait) = batch.paced_for {
            self.wakes.promote.when(wait.to_delta(), asked);
        }
        if batch.again {
            // A little chance keeps replicas apart that contend for the same keys.
            self.wakes.dispatch.at(asked + Duration::from_micros(rand::random_range(1_000..5_000)));
        } else if is_repeated || leased >= free as usize {
            self.wakes.dispatch.now();
        } else if !batch.is_full {
            self.wakes.wants_permits.store(false, Ordering::SeqCst);
        }
        Ok(format!("{leased} of {free} free permits taken"))
    }
}
