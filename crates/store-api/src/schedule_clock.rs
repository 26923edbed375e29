//! The clock by which tasks become due: the database's, or one that a test moves.
//!
//! It replaces time for `next_run_at` and `run_at` only. Leases, tickets and limits always use real database time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use switchboard_model::Timestamp;

/// The clock of schedules; clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct ScheduleClock(Option<Arc<AtomicI64>>);

impl ScheduleClock {
    /// Makes a clock that stands at `start` until it is advanced.
    #[must_use]
    pub fn standing_at(start: Timestamp) -> Self {
        Self(Some(Arc::new(AtomicI64::new(start.timestamp_micros()))))
    }

    /// Returns the time that a test has set; `None` means that the database says what time it is.
    #[must_use]
    pub fn set_time(&self) -> Option<Timestamp> {
        let us = self.0.as_ref()?.load(Ordering::SeqCst);
        Timestamp::from_timestamp_micros(us)
    }

    /// Moves the clock to `instant` unless it is there or past it already; does nothing to a clock that the database
    /// keeps.
    pub fn advance_to(&self, instant: Timestamp) {
        if let Some(us) = &self.0 {
            us.fetch_max(instant.timestamp_micros(), Ordering::SeqCst);
        }
    }
}
