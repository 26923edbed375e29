//! The heartbeat: renews all leases of this process in one batch, whatever their runs are doing.
//!
//! It is independent of the work and stops last. What follows from an answer is the business of the
//! run that holds the lease.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{RenewOutcome, Renewal, RunStore, StoreError, StoreResult, WorkerKind};
use tokio::time::{Instant, timeout};

use crate::activation::Activity;
use crate::lease::Held;

pub(crate) struct Heartbeat {
    pub(crate) runs: Arc<dyn RunStore>,
    pub(crate) held: Arc<Held>,
}

#[async_trait]
impl Activity for Heartbeat {
    async fn run_once(&mut self) -> StoreResult<String> {
        let leases = self.held.all();
        if leases.is_empty() {
            return Ok("nothing to renew".to_owned());
        }
        fail_point::hit(FailPoint::DuringRenewal);
        let renewals: Vec<_> = leases.iter().map(|lease| lease.renewal()).collect();
        let asked = Instant::now();
        // Younger leases need the next renewal before their own patience ends.
        let answer = timeout(self.held.length().to_std() / 3, self.renew(&renewals)).await;
        let outcomes = answer.map_err(|elapsed| StoreError::Unavailable(elapsed.into()))??;
        let mut lost = 0;
        for (lease, outcome) in leases.iter().zip(outcomes) {
            match outcome {
                RenewOutcome::Renewed => lease.renewed(asked),
                RenewOutcome::CancelRequested => {
                    lease.renewed(asked);
                    lease.ask_to_cancel();
                }
                RenewOutcome::Lost => {
                    lost += 1;
                    lease.refuse();
                }
            }
        }
        // Some of the lost may have ended a moment ago; their runs know better.
        Ok(format!("{} leases renewed, {lost} lost or ended", leases.len() - lost))
    }
}

impl Heartbeat {
    /// Asks for renewals, and once more while there is no answer: by the time of a renewal a third of
    /// the lease, only a sixth of it is left to patience, and a connection may be dead without a word.
    /// A slow answer to the first request still counts, and to be renewed twice does no harm.
    async fn renew(&self, renewals: &[Renewal]) -> StoreResult<Vec<RenewOutcome>> {
        let ask = || self.runs.renew(WorkerKind::Replica, renewals, self.held.length());
        let mut first = ask();
        if let Ok(answer) = timeout(self.held.length().to_std() / 12, &mut first).await {
            return answer;
        }
        tokio::select! {
            answer = first => answer,
            answer = ask() => answer,
        }
    }
}
