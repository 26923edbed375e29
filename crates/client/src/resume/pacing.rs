//! How long to wait before the next connection. Pure; chance comes from the caller.

use std::time::Duration;

use switchboard_model::span::Span;
use switchboard_model::task::Backoff;
use switchboard_model::wire::close::AfterClose;

/// The delays between connections that keep failing.
const DELAYS: Backoff = Backoff { base: Span::from_millis(100), cap: Span::from_secs(10), jitter: 0.5 };

/// Counts the connections that failed in a row.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    failures: u32,
}

impl Pacing {
    /// Takes note of a connection on which every room was joined.
    pub(super) fn settle(&mut self) {
        self.failures = 0;
    }

    /// Returns how long to wait after an end; `None` means for ever. `chance` is a random number in [0, 1).
    pub(super) fn delay(&mut self, after: AfterClose, chance: f64) -> Option<Duration> {
        let is_first = self.failures == 0;
        self.failures = self.failures.saturating_add(1);
        match after {
            AfterClose::Stop => None,
            AfterClose::Resume if is_first => Some(Duration::ZERO),
            AfterClose::Resume | AfterClose::BackOff => Some(DELAYS.delay(self.failures, chance).to_std()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_the_close_code_decides() {
        let mut pacing = Pacing::default();
        assert_eq!(pacing.delay(AfterClose::Resume, 0.0), Some(Duration::ZERO));
        assert_eq!(pacing.delay(AfterClose::Resume, 0.0), Some(Duration::from_millis(200)), "not settled");
        assert_eq!(pacing.delay(AfterClose::BackOff, 0.5), Some(Duration::from_millis(300)));
        assert_eq!(pacing.delay(AfterClose::Stop, 0.0), None);
        pacing.settle();
        assert_eq!(pacing.delay(AfterClose::BackOff, 0.0), Some(Duration::from_millis(100)));
        let longest = (0..40).filter_map(|_| pacing.delay(AfterClose::BackOff, 0.0)).max();
        assert_eq!(longest, Some(Duration::from_secs(10)));
    }
}
