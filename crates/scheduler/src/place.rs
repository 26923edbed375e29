//! The place of a run in this process, which it keeps until the database has acknowledged its end. Knows neither what a
//! run does nor how its end is recorded.

use std::sync::atomic::Ordering;

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::lease::HeldLease;
use crate::observer::Wakes;

/// What a run takes up: its lease, its permit if it needs one, and the wait of the drain for it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) lease: HeldLease,
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    pub(crate) in_flight: TaskTrackerToken,
}

impl Wakes {
    /// Frees the places of attempts that are over, and then says so once: a lease that is asked for takes all of them.
    pub(crate) fn free(&self, places: impl IntoIterator<Item = Place>) {
        let mut freed = 0;
        for Place { lease, permit, in_flight } in places {
            // In this order: whoever finds the work done finds no lease held.
            drop((lease, permit));
            drop(in_flight);
            freed += 1;
        }
        if freed == 0 {
            return;
        }
        self.progress.send_modify(|progress| progress.attempts += freed);
        if self.wants_permits.load(Ordering::SeqCst) {
            self.dispatch.now();
        }
    }
}
