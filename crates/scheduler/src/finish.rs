//! The finisher: records how runs ended, many in one commit.
//!
//! Batches form by themselves: whatever ended while the previous batch was on its way is the next one.
//! An end stays here with the place of its run, its lease renewed, until the database has acknowledged it; when the database is
//! away for so long that the lease is lost, it is dropped and the run is recovered by somebody else.

use std::sync::Arc;
use std::time::Duration;

use switchboard_model::run::{Ending, Finish, RunState};
use switchboard_store_api::{FinishOutcome, RunStore, StoreError};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::activation::{LONGEST_CALL, with_causes};
use crate::meters;
use crate::observer::Wakes;
use crate::place::Place;

/// The most ends of one commit, and the most that wait; a run whose end finds no room waits with it.
pub(crate) const BATCH: usize = 500;
/// How long the finisher waits after the first failure; the wait doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The end of a run, on its way to the database.
pub(crate) struct Ended {
    pub(crate) finish: Finish,
    /// Freed once the end is acknowledged or given up.
    pub(crate) place: Place,
}

pub(crate) struct Finisher {
    pub(crate) runs: Arc<dyn RunStore>,
    pub(crate) wakes: Arc<Wakes>,
}

impl Finisher {
    /// Records ends until nobody can send any more.
    pub(crate) async fn run(self, mut ends: mpsc::Receiver<Ended>) {
        let mut batch = Vec::new();
        while ends.recv_many(&mut batch, BATCH).await > 0 {
            // Runs that were leased together end together: those that can end now do so before the batch is closed.
            yield_now().await;
            while batch.len() < BATCH
                && let Ok(ended) = ends.try_recv()
            {
                batch.push(ended);
            }
            self.settle(std::mem::take(&mut batch)).await;
        }
    }

    /// Records a batch. One that the database refuses is halved until the bad end is found, so that it does not harm its
    /// neighbours.
    async fn settle(&self, batch: Vec<Ended>) {
        let mut pending = vec![batch];
        while let Some(batch) = pending.pop() {
            match self.record(batch).await {
                Ok(()) => {}
                Err((refused, error)) if refused.len() == 1 => self.give_up(refused, &with_causes(&error)),
                Err((mut refused, _)) => {
                    let second = refused.split_off(refused.len() / 2);
                    pending.extend([second, refused]);
                }
            }
        }
    }

    /// Records a batch, however often the database must be asked; returns what it refuses for good.
    async fn record(&self, mut batch: Vec<Ended>) -> Result<(), (Vec<Ended>, StoreError)> {
        let mut wait = FIRST_WAIT;
        while !batch.is_empty() {
            let finishes: Vec<_> = batch.iter().map(|ended| ended.finish.clone()).collect();
            // Without an answer the outcome is unknown; ends are fenced, so to repeat them is safe.
            let answer = timeout(LONGEST_CALL, self.runs.finish(&finishes)).await;
            let error = match answer.unwrap_or_else(|elapsed| Err(StoreError::Unavailable(elapsed.into()))) {
                Ok(outcomes) => {
                    self.acknowledged(batch, outcomes);
                    return Ok(());
                }
                Err(error) if error.is_transient() => error,
                Err(error) => return Err((batch, error)),
            };
            tracing::debug!(error = with_causes(&error), ends = batch.len(), "ends not recorded yet");
            sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
            wait = (wait * 2).min(LONGEST_WAIT);
            let lost: Vec<Ended> = batch.extract_if(.., |ended| ended.place.lease.is_lost()).collect();
            self.give_up(lost, &with_causes(&error));
        }
        Ok(())
    }

    fn acknowledged(&self, batch: Vec<Ended>, outcomes: Vec<FinishOutcome>) {
        for (ended, outcome) in batch.iter().zip(outcomes) {
            let (FinishOutcome::Accepted(state) | FinishOutcome::Repeated(state)) = outcome else {
                note_lost(ended, "the run was taken away");
                continue;
            };
            meters::finished(state);
            if let (RunState::Scheduled, Ending::Retry { delay, .. }) = (state, &ended.finish.ending) {
                self.wakes.promote.when(delay.to_delta(), Instant::now());
            }
        }
        self.wakes.free(batch.into_iter().map(|ended| ended.place));
    }

    fn give_up(&self, batch: Vec<Ended>, error: &str) {
        batch.iter().for_each(|ended| note_lost(ended, error));
        self.wakes.free(batch.into_iter().map(|ended| ended.place));
    }
}

fn note_lost(ended: &Ended, error: &str) {
    meters::lost();
    tracing::warn!(run = %ended.finish.id, error, "the end of a run could not be recorded");
}
