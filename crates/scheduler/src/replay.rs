//! The replay: the schedule clock moves from one due instant to the next, and nothing is left behind on the way.
//!
//! It does none of the work itself. It moves the clock, wakes the loops that look at it, and goes on when they and the
//! workers have nothing left to do.

use std::sync::Arc;
use std::time::Duration;

use switchboard_model::Timestamp;
use switchboard_model::feed::Agenda;
use switchboard_model::wire::test_clock::{TestClockReport, TestClockState};
use switchboard_store_api::{FeedStore, ScheduleClock, StoreError, Stores};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use crate::lease::Held;
use crate::observer::Wakes;

/// How soon to look again when nothing was heard of: workers outside this process tell only the database.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What the loops of this process have done since it started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Runs of schedules.
    pub(crate) runs: u64,
    /// Ended attempts.
    pub(crate) attempts: u64,
}

/// How long a replay waits, in real time.
#[derive(Clone, Copy, Debug)]
pub struct ReplayPatience {
    /// For what became due at one instant.
    pub instant: Duration,
    /// For everything.
    pub whole: Duration,
}

/// Why the clock was not moved, or not reported on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Somebody else is moving it.
    #[error("the test clock is being moved by another request")]
    Busy,
    /// The database failed; the clock stands where it came to.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Moves the schedule clock of one process; clones move the same clock, one at a time.
#[derive(Clone)]
pub struct Replay {
    feed: Arc<dyn FeedStore>,
    clock: ScheduleClock,
    wakes: Arc<Wakes>,
    held: Arc<Held>,
    turn: Arc<Semaphore>,
}

impl Replay {
    /// Makes the replay of stores that have a clock to be moved.
    pub(crate) fn new(stores: &Stores, wakes: &Arc<Wakes>, held: &Arc<Held>) -> Option<Self> {
        stores.schedule_clock.set_time()?;
        Some(Self {
            feed: Arc::clone(&stores.feed),
            clock: stores.schedule_clock.clone(),
            wakes: Arc::clone(wakes),
            held: Arc::clone(held),
            turn: Arc::new(Semaphore::new(1)),
        })
    }

    /// Returns where the clock stands.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.set_time().unwrap_or_default()
    }

    /// Says where the clock stands and what is to be done.
    ///
    /// # Errors
    /// Fails when the database does.
    pub async fn state(&self) -> Result<TestClockState, ReplayError> {
        Ok(self.at(self.feed.agenda().await?))
    }

    /// Moves the clock to `target`, instant by instant: at each at which a task or a scheduled run is due, waits until
    /// what is due was fired or promoted and no run is queued, waiting or running. It stops earlier, and says so, when
    /// that takes longer than the patience.
    ///
    /// # Errors
    /// [`ReplayError`] says why the clock stands where it does.
    pub async fn advance(&self, target: Timestamp, patience: ReplayPatience) -> Result<TestClockReport, ReplayError> {
        let _turn = self.turn.try_acquire().map_err(|_| ReplayError::Busy)?;
        let mut progress = self.wakes.progress.subscribe();
        let before = *progress.borrow_and_update();
        let end = Instant::now() + patience.whole;
        let mut instants = 0;
        let (agenda, is_there) = loop {
            let until = end.min(Instant::now() + patience.instant);
            let agenda = match self.settle(&mut progress, until).await? {
                Settled::Quiet(agenda) => agenda,
                Settled::TooSlow(agenda) => break (agenda, false),
            };
            match agenda.next.filter(|next| *next <= target) {
                Some(_) if Instant::now() >= end => break (agenda, false),
                Some(next) => {
                    self.clock.advance_to(next);
                    instants += 1;
                }
                None => {
                    self.clock.advance_to(target);
                    break (agenda, true);
                }
            }
        };
        let Progress { runs, attempts } = *self.wakes.progress.borrow();
        Ok(TestClockReport {
            state: self.at(agenda),
            is_there,
            instants,
            runs: runs - before.runs,
            attempts: attempts - before.attempts,
        })
    }

    /// Waits until nothing is due and no run is active, or until the time is over.
    async fn settle(&self, progress: &mut watch::Receiver<Progress>, until: Instant) -> Result<Settled, ReplayError> {
        loop {
            // Before the read, so that whatever happens from here on is heard of.
            progress.borrow_and_update();
            let agenda = self.feed.agenda().await?;
            let is_due = agenda.next.is_some_and(|next| next <= self.now());
            // An attempt counts once this process has let go of it, a moment after the database knows its end.
            if !is_due && agenda.active == 0 && self.held.len() == 0 {
                return Ok(Settled::Quiet(agenda));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Settled::TooSlow(agenda));
            }
            if is_due {
                self.wakes.fire.now();
                self.wakes.promote.now();
            }
            // Which of the two it was does not matter: the read says what there is.
            let _ = timeout(LOOK_AGAIN.min(left), progress.changed()).await;
        }
    }

    fn at(&self, agenda: Agenda) -> TestClockState {
        TestClockState { now: self.now(), next: agenda.next, active: agenda.active }
    }
}

/// How waiting ended.
enum Settled {
    Quiet(Agenda),
    TooSlow(Agenda),
}
