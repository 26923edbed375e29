//! The leases that this process holds: what is renewed, what is to stop, what counts as lost.
//!
//! A lease counts as lost when the database says so, or when no renewal was acknowledged for half its
//! length, on the local monotonic clock and from the start of the last acknowledged one: the work then
//! stops before anybody else can begin it. Knows neither the database nor what a run does.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchboard_model::ids::{Fence, RunId};
use switchboard_model::span::Span;
use switchboard_store_api::Renewal;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::meters;

/// One lease.
#[derive(Debug)]
pub(crate) struct Lease {
    renewal: Renewal,
    /// When the last acknowledged renewal, or the lease itself, was asked for.
    renewed: Mutex<Instant>,
    patience: Duration,
    refused: CancellationToken,
    cancel: CancellationToken,
}

impl Lease {
    /// Returns what a renewal of it says.
    pub(crate) const fn renewal(&self) -> Renewal {
        self.renewal
    }

    /// Notes that a renewal which was asked for at `asked` is acknowledged.
    pub(crate) fn renewed(&self, asked: Instant) {
        *self.renewed.lock() = asked;
    }

    /// Notes that the database refused to renew it.
    pub(crate) fn refuse(&self) {
        self.refused.cancel();
    }

    /// Notes that somebody asked to cancel its run.
    pub(crate) fn ask_to_cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits until somebody asks to cancel its run.
    pub(crate) async fn asked_to_cancel(&self) {
        self.cancel.cancelled().await;
    }

    /// Waits until it counts as lost.
    pub(crate) async fn lost(&self) {
        tokio::select! {
            () = self.refused.cancelled() => {}
            () = self.unanswered() => {}
        }
    }

    /// Tells whether it counts as lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.refused.is_cancelled() || Instant::now() >= self.patience_ends()
    }

    async fn unanswered(&self) {
        while !self.is_lost() {
            sleep_until(self.patience_ends()).await;
        }
    }

    fn patience_ends(&self) -> Instant {
        *self.renewed.lock() + self.patience
    }
}

/// All leases of this process, by fence: a run that was lost may be leased again before its first
/// attempt here has stopped.
#[derive(Debug)]
pub(crate) struct Held {
    leases: Mutex<HashMap<Fence, Arc<Lease>>>,
    length: Span,
}

impl Held {
    /// Holds nothing yet; leases will be `length` long.
    pub(crate) fn new(length: Span) -> Self {
        Self { leases: Mutex::default(), length }
    }

    /// Returns how long a lease is.
    pub(crate) const fn length(&self) -> Span {
        self.length
    }

    /// Returns how long a renewal may stay unanswered.
    pub(crate) const fn patience(&self) -> Duration {
        Duration::from_millis(self.length.as_millis() / 2)
    }

    /// Holds a lease that was asked for at `asked`, until the guard drops.
    pub(crate) fn insert(self: &Arc<Self>, renewal: Renewal, asked: Instant) -> HeldLease {
        let lease = Arc::new(Lease {
            renewal,
            renewed: Mutex::new(asked),
            patience: self.patience(),
            refused: CancellationToken::new(),
            cancel: CancellationToken::new(),
        });
        let mut leases = self.leases.lock();
        leases.insert(renewal.fence, lease.clone());
        meters::running(leases.len());
        HeldLease { held: self.clone(), lease }
    }

    /// Returns every lease.
    pub(crate) fn all(&self) -> Vec<Arc<Lease>> {
        self.leases.lock().values().cloned().collect()
    }

    /// Tells whether a lease of the run is held.
    pub(crate) fn holds(&self, run: RunId) -> bool {
        self.leases.lock().values().any(|lease| lease.renewal.id == run)
    }

    /// Counts the leases.
    pub(crate) fn len(&self) -> usize {
        self.leases.lock().len()
    }
}

/// Holds a lease until it drops.
#[derive(Debug)]
pub(crate) struct HeldLease {
    held: Arc<Held>,
    lease: Arc<Lease>,
}

impl Deref for HeldLease {
    type Target = Arc<Lease>;

    fn deref(&self) -> &Arc<Lease> {
        &self.lease
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        let mut leases = self.held.leases.lock();
        leases.remove(&self.lease.renewal.fence);
        meters::running(leases.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Arc<Held> {
        Arc::new(Held::new(Span::from_secs(15)))
    }

    fn renewal(fence: i64) -> Renewal {
        Renewal { id: RunId::new(), fence: Fence(fence) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_lost_after_half_its_length_without_an_answer() {
        let held = held();
        let start = Instant::now();
        let lease = held.insert(renewal(1), start);
        let ((), ()) = tokio::join!(lease.lost(), async {
            tokio::time::sleep(Duration::from_secs(6)).await;
            // Asked for at 5 s and acknowledged a second later.
            lease.renewed(start + Duration::from_secs(5));
            assert!(!lease.is_lost());
        });
        assert_eq!(start.elapsed(), Duration::from_millis(12_500));
        assert!(lease.is_lost());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_renewal_loses_the_lease_at_once() {
        let held = held();
        let start = Instant::now();
        let lease = held.insert(renewal(1), start);
        lease.refuse();
        lease.lost().await;
        assert!(lease.is_lost());
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_may_be_held_twice_and_each_hold_ends_for_itself() {
        let held = held();
        let first = renewal(1);
        let second = Renewal { fence: Fence(2), ..first };
        let first_hold = held.insert(first, Instant::now());
        let second_hold = held.insert(second, Instant::now());
        drop(first_hold);
        assert!(held.holds(first.id));
        assert_eq!(held.all().iter().map(|lease| lease.renewal().fence).collect::<Vec<_>>(), [Fence(2)]);
        drop(second_hold);
        assert!(!held.holds(first.id));
        assert_eq!(held.len(), 0);
    }
}
