//! The token bucket that bounds how many operations one socket sends.

use std::time::Duration;

use switchboard_model::wire::limits::{OPS_BURST, OPS_PER_SECOND};
use tokio::time::Instant;

/// Admits [`OPS_PER_SECOND`] in the long run and [`OPS_BURST`] at once, on the monotonic clock.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// When the bucket would be full again (the theoretical arrival time of GCRA).
    full_at: Instant,
}

impl TokenBucket {
    const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / OPS_PER_SECOND as u64);

    /// Makes a full bucket.
    pub(crate) fn full(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes a token, or says how long to wait for one.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let from = self.full_at.max(now);
        let next = from + Self::INTERVAL;
        let debt = next - now;
        let allowed = Self::INTERVAL * OPS_BURST;
        if debt > allowed {
            return Err(debt - allowed);
        }
        self.full_at = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_the_burst_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full(start);
        let burst = (0..OPS_BURST * 2).filter(|_| bucket.take(start).is_ok()).count();
        assert_eq!(burst, OPS_BURST as usize);
        let wait = bucket.take(start).unwrap_err();
        assert_eq!(wait, TokenBucket::INTERVAL);
        let later = start + Duration::from_secs(1);
        let second = (0..OPS_BURST).filter(|_| bucket.take(later).is_ok()).count();
        assert_eq!(second, OPS_PER_SECOND as usize);
    }
}
