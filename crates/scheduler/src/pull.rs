//! The pull queue: leases runs for external workers, and lets them wait for some. It knows no HTTP.
//!
//! Of all who wait for the same pool on this replica, a change wakes one at a time; whoever gets as much as they asked
//! for passes the turn on, since there may be more. As a backstop one of them looks each second. When a worker goes
//! away while its runs are being leased, nobody is told: they expire unless it repeats its request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use switchboard_model::identity::{PoolName, WorkerName};
use switchboard_model::ids::InstanceId;
use switchboard_model::run::{Ending, Finish, LeasedRun, RunState};
use switchboard_model::span::Span;
use switchboard_store_api::{FinishOutcome, LeaseRequest, RunStore, StoreResult, WorkerKind};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use crate::meters;
use crate::observer::Wakes;

/// How often somebody who waits looks without being told to.
const PERIOD: Duration = Duration::from_secs(1);

/// What an external worker asks for.
#[derive(Clone, Debug)]
pub struct PullRequest {
    /// What the worker calls itself.
    pub worker: WorkerName,
    /// The pool it serves.
    pub pool: PoolName,
    /// The most runs to lease.
    pub limit: u32,
    /// How long the leases hold without renewal.
    pub lease: Span,
    /// Identifies the request, so that it can be repeated.
    pub request: Uuid,
}

/// Leases runs for external workers; clones share who waits.
#[derive(Clone)]
pub struct PullQueue {
    pub(crate) runs: Arc<dyn RunStore>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) lease: Span,
}

impl PullQueue {
    /// Returns how long leases of this replica hold.
    #[must_use]
    pub const fn default_lease(&self) -> Span {
        self.lease
    }

    /// Leases runs, and waits for some until `until` or until `stop` is done; returns none when nothing came.
    ///
    /// # Errors
    /// Fails when the database does.
    pub async fn lease(
        &self,
        request: PullRequest,
        until: Instant,
        stop: impl Future<Output = ()>,
    ) -> StoreResult<Vec<LeasedRun>> {
        let queue = self.wakes.pulls.join(&request.pool);
        let request = LeaseRequest {
            holder: InstanceId::external(request.worker.as_str()),
            kind: WorkerKind::External,
            pools: vec![request.pool],
            limit: request.limit,
            lease: request.lease,
            request: Some(request.request),
        };
        tokio::pin!(stop);
        loop {
            let asked = queue.look();
            let batch = self.runs.lease(&request).await?;
            queue.found_full.store(batch.is_full, Ordering::SeqCst);
            if let Some(wait) = batch.paced_for {
                self.wakes.promote.when(wait.to_delta(), asked);
            }
            if !batch.runs.is_empty() {
                if batch.again || batch.runs.len() >= request.limit as usize {
                    queue.turn.notify_one();
                }
                batch.runs.iter().for_each(|run| meters::start_lag(run.leased_at - run.run_at));
                return Ok(batch.runs);
            }
            let look = async {
                if batch.again {
                    // A little chance keeps workers apart that contend for the same keys.
                    sleep(Duration::from_micros(rand::random_range(1_000..5_000))).await;
                } else {
                    queue.due().await;
                }
            };
            let is_over = tokio::select! {
                biased;
                () = &mut stop => true,
                () = sleep_until(until) => true,
                () = look => false,
            };
            if is_over {
                return Ok(Vec::new());
            }
        }
    }

    /// Records what a worker reports of an attempt at a run of `pool`.
    ///
    /// # Errors
    /// Fails when the database does; the outcome is then unknown and a repetition is safe.
    pub async fn finish(&self, pool: &PoolName, finish: Finish) -> StoreResult<FinishOutcome> {
        let reported = Instant::now();
        let outcomes = self.runs.finish(std::slice::from_ref(&finish)).await?;
        let outcome = outcomes.into_iter().next().unwrap_or(FinishOutcome::Fenced);
        if let FinishOutcome::Accepted(state) = outcome {
            meters::finished(state);
            self.wakes.pulls.made_room(pool.as_str());
            if let (RunState::Scheduled, Ending::Retry { delay, .. }) = (state, &finish.ending) {
                self.wakes.promote.when(delay.to_delta(), reported);
            }
        }
        Ok(outcome)
    }
}

/// Who waits for which pool. A pool for which nobody waits is forgotten.
#[derive(Debug, Default)]
pub(crate) struct PullWakes(Mutex<HashMap<String, Weak<Waiting>>>);

impl PullWakes {
    /// Takes note of runs that are queued in a pool.
    pub(crate) fn queued(&self, pool: &str) {
        if let Some(waiting) = self.0.lock().get(pool).and_then(Weak::upgrade) {
            waiting.turn.notify_one();
        }
    }

    /// Takes note of a run that has ended; that matters where the pool has a maximum which was found to be reached.
    fn made_room(&self, pool: &str) {
        let waiting = self.0.lock().get(pool).and_then(Weak::upgrade);
        if let Some(waiting) = waiting.filter(|waiting| waiting.found_full.load(Ordering::SeqCst)) {
            waiting.turn.notify_one();
        }
    }

    /// Takes note that runs may be queued in any pool.
    pub(crate) fn all(&self) {
        self.0.lock().values().filter_map(Weak::upgrade).for_each(|waiting| waiting.turn.notify_one());
    }

    fn join(&self, pool: &PoolName) -> Arc<Waiting> {
        let mut pools = self.0.lock();
        if let Some(waiting) = pools.get(pool.as_str()).and_then(Weak::upgrade) {
            return waiting;
        }
        pools.retain(|_, waiting| waiting.strong_count() > 0);
        let waiting = Arc::new(Waiting::new());
        pools.insert(pool.as_str().to_owned(), Arc::downgrade(&waiting));
        waiting
    }
}

/// Those who wait for one pool.
#[derive(Debug)]
struct Waiting {
    turn: Notify,
    /// When one of them last looked.
    looked: Mutex<Instant>,
    /// Whether the last look found as many runs of the pool as may go.
    found_full: AtomicBool,
}

impl Waiting {
    fn new() -> Self {
        Self { turn: Notify::new(), looked: Mutex::new(Instant::now()), found_full: AtomicBool::new(false) }
    }

    /// Notes that somebody looks now.
    fn look(&self) -> Instant {
        let now = Instant::now();
        *self.looked.lock() = now;
        now
    }

    /// Waits until it is the caller's turn to look.
    async fn due(&self) {
        loop {
            let next = *self.looked.lock() + PERIOD;
            let has_turn = tokio::select! {
                () = self.turn.notified() => true,
                () = sleep_until(next) => false,
            };
            if has_turn || self.is_overdue() {
                return;
            }
        }
    }

    /// Tells whether nobody has looked for a period; if so, the caller is the one to do it.
    fn is_overdue(&self) -> bool {
        let mut looked = self.looked.lock();
        let now = Instant::now();
        let is_overdue = now >= *looked + PERIOD;
        if is_overdue {
            *looked = now;
        }
        is_overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(wakes: &PullWakes) -> Arc<Waiting> {
        wakes.join(&"default".parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_wakes_one_of_those_who_wait_for_the_pool() {
        let wakes = PullWakes::default();
        let (one, other) = (waiting(&wakes), waiting(&wakes));
        let start = Instant::now();
        let notify = async {
            sleep(Duration::from_millis(300)).await;
            wakes.queued("light");
            wakes.queued("default");
        };
        let first = async {
            tokio::select! { () = one.due() => {} () = other.due() => {} }
        };
        let ((), ()) = tokio::join!(first, notify);
        assert_eq!(start.elapsed(), Duration::from_millis(300));
        one.look();
        one.due().await;
        assert_eq!(start.elapsed(), Duration::from_millis(1_300), "the other one was not woken");
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_many_looks_each_second() {
        let wakes = PullWakes::default();
        let all: Vec<_> = (0..100).map(|_| waiting(&wakes)).collect();
        let looks = Mutex::new(0);
        let wait = |waiting: Arc<Waiting>| {
            let looks = &looks;
            async move {
                loop {
                    waiting.due().await;
                    *looks.lock() += 1;
                }
            }
        };
        let forever = futures_util::future::join_all(all.into_iter().map(wait));
        let _ = tokio::time::timeout(Duration::from_millis(10_500), forever).await;
        assert_eq!(*looks.lock(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_comes_before_the_wait_is_not_lost_and_empty_pools_are_forgotten() {
        let wakes = PullWakes::default();
        let start = Instant::now();
        let own = waiting(&wakes);
        wakes.all();
        own.due().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        drop(own);
        let _other = wakes.join(&"heavy".parse().unwrap());
        assert_eq!(wakes.0.lock().len(), 1);
    }
}
