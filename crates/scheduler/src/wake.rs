//! Wake-ups of background loops: at once, and by a timer. Knows nothing of what a loop does.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Timers further ahead are left to a later tick of the feed, which comes every second: a short timer
/// cannot drift away from database time, and one for something that has changed costs no query.
const HORIZON: Duration = Duration::from_secs(3);

/// Wakes one loop, at once or at an instant; clones wake the same loop.
#[derive(Clone, Debug)]
pub struct Wake(Arc<watch::Sender<Pending>>);

/// What a loop was asked for since it last ran. A run at once does not stand for a later one.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    at_once: bool,
    earliest: Option<Instant>,
}

impl Default for Wake {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Pending::default())))
    }
}

impl Wake {
    /// Lets the loop run at once.
    pub fn now(&self) {
        self.0.send_modify(|pending| pending.at_once = true);
    }

    /// Lets the loop run at `instant`, or earlier when that is asked for too. An instant that has
    /// come already means at once and leaves a later timer alone.
    pub fn at(&self, instant: Instant) {
        if instant <= Instant::now() {
            return self.now();
        }
        self.0.send_if_modified(|pending| {
            let is_earlier = pending.earliest.is_none_or(|earliest| instant < earliest);
            if is_earlier {
                pending.earliest = Some(instant);
            }
            is_earlier
        });
    }

    /// Lets the loop run when database time has moved on by `ahead` since `read_at`, at which it was
    /// read; at once when that lies in the past, not at all when it lies beyond the horizon.
    pub(crate) fn when(&self, ahead: TimeDelta, read_at: Instant) {
        let ahead = ahead.to_std().unwrap_or_default();
        if ahead <= HORIZON {
            self.at(read_at + ahead);
        }
    }

    /// Forgets what has come; the loop does so before it looks at the database, so that whatever
    /// happens from here on wakes it again.
    pub(crate) fn arm(&self) {
        let now = Instant::now();
        self.0.send_if_modified(|pending| {
            *pending = Pending { at_once: false, earliest: pending.earliest.filter(|earliest| *earliest > now) };
            false
        });
    }

    /// Waits until the loop is to run.
    pub(crate) async fn due(&self) {
        let mut changes = self.0.subscribe();
        loop {
            let pending = *changes.borrow_and_update();
            let timer = async {
                match pending {
                    Pending { at_once: true, .. } => {}
                    Pending { earliest: Some(instant), .. } => sleep_until(instant).await,
                    Pending { .. } => std::future::pending().await,
                }
            };
            let has_come = tokio::select! {
                () = timer => true,
                _ = changes.changed() => false,
            };
            if has_come {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_earliest_instant_counts() {
        let wake = Wake::default();
        let start = Instant::now();
        wake.at(start + Duration::from_secs(5));
        wake.at(start + Duration::from_secs(2));
        wake.at(start + Duration::from_secs(9));
        wake.due().await;
        assert_eq!(start.elapsed(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_instant_shortens_a_wait() {
        let wake = Wake::default();
        let start = Instant::now();
        wake.at(start + Duration::from_secs(60));
        let ((), ()) = tokio::join!(wake.due(), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            wake.now();
        });
        assert_eq!(start.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_at_once_does_not_stand_for_a_later_one() {
        let wake = Wake::default();
        let start = Instant::now();
        wake.at(start + Duration::from_secs(1));
        for already_come in [start, start - Duration::from_secs(1)] {
            wake.at(already_come);
            wake.due().await;
            assert_eq!(start.elapsed(), Duration::ZERO);
            wake.arm();
        }
        wake.due().await;
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        wake.arm();
        assert!(tokio::time::timeout(Duration::from_secs(60), wake.due()).await.is_err(), "it has come and is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn timers_follow_database_time_up_to_the_horizon() {
        let wake = Wake::default();
        let start = Instant::now();
        wake.when(TimeDelta::days(36_500), start);
        wake.when(TimeDelta::milliseconds(300), start);
        wake.due().await;
        assert_eq!(start.elapsed(), Duration::from_millis(300));

        wake.arm();
        wake.when(TimeDelta::seconds(-10), Instant::now());
        wake.due().await;
        assert_eq!(start.elapsed(), Duration::from_millis(300), "what is overdue wakes at once");

        wake.arm();
        wake.when(TimeDelta::seconds(60), Instant::now());
        assert!(tokio::time::timeout(Duration::from_secs(120), wake.due()).await.is_err());
    }
}
