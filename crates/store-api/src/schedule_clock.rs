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

    /// Says when something is due that has its place in schedule time, in the real time that it is `now`: an instant
    /// that no timer can wait for, because a test decides when it comes, is absent.
    #[must_use]
    pub fn due(&self, at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        match self.set_time() {
            None => at,
            Some(set) => at.filter(|at| *at <= set).map(|_| now),
        }
    }

    /// Moves the clock to `instant` unless it is there or past it already; does nothing to a clock that the database
    /// keeps.
    pub fn advance_to(&self, instant: Timestamp) {
        if let Some(us) = &self.0 {
            us.fetch_max(instant.timestamp_micros(), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_standing_clock_moves_forward_only_and_sets_no_timers() {
        let clock = ScheduleClock::standing_at(at("2027-01-01T00:00:00Z"));
        let same = clock.clone();
        same.advance_to(at("2027-01-02T00:00:00Z"));
        same.advance_to(at("2026-01-01T00:00:00Z"));
        assert_eq!(clock.set_time(), Some(at("2027-01-02T00:00:00Z")));
        let now = at("2026-06-01T00:00:00Z");
        assert_eq!(clock.due(Some(at("2027-01-02T00:00:00Z")), now), Some(now));
        assert_eq!(clock.due(Some(at("2027-01-02T00:00:01Z")), now), None);
        assert_eq!(clock.due(None, now), None);
    }

    #[test]
    fn the_clock_of_the_database_leaves_instants_alone() {
        let clock = ScheduleClock::default();
        clock.advance_to(at("2027-01-02T00:00:00Z"));
        assert_eq!(clock.set_time(), None);
        let due = Some(at("2027-01-02T00:00:00Z"));
        assert_eq!(clock.due(due, at("2026-06-01T00:00:00Z")), due);
    }
}
