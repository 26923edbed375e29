//! Runs that have written nothing yet, and who waits for them to. The feed says when one begins; that one has ended
//! without a word no signal says, so one look a second finds it out, for all who wait on this replica together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchboard_model::ids::RunId;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Streams;
use crate::feed::error_chain;

/// How often somebody looks as long as somebody waits.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The most runs of one statement.
const LOOK_RUNS: usize = 500;

/// Who waits for which run.
#[derive(Default)]
pub(super) struct Awaited {
    runs: Mutex<HashMap<RunId, watch::Sender<()>>>,
    /// When the next look is due; whoever finds it past takes it.
    next_look: Mutex<Option<Instant>>,
}

impl Awaited {
    fn join(&self, run: RunId) -> watch::Receiver<()> {
        self.runs.lock().entry(run).or_default().subscribe()
    }

    /// Forgets a run for which one waits no longer, unless others do; that one still counts here.
    fn leave(&self, run: RunId) {
        let mut runs = self.runs.lock();
        if runs.get(&run).is_some_and(|told| told.receiver_count() <= 1) {
            runs.remove(&run);
        }
    }

    /// Tells those who wait for a run that there is news of it.
    pub(super) fn wake(&self, run: RunId) {
        if let Some(told) = self.runs.lock().get(&run) {
            told.send_replace(());
        }
    }

    /// Tells everybody that there may be news.
    pub(super) fn wake_all(&self) {
        self.runs.lock().values().for_each(|told| told.send_replace(()));
    }

    /// Returns when the next look is due, a while from now at the earliest for the first one who waits.
    fn next_look(&self) -> Instant {
        *self.next_look.lock().get_or_insert_with(|| Instant::now() + LOOK_EVERY)
    }

    /// Tells whether a look is due; then it is the caller's.
    fn takes_look(&self) -> bool {
        let now = Instant::now();
        let mut next = self.next_look.lock();
        let is_due = next.is_some_and(|at| at <= now);
        if is_due {
            *next = Some(now + LOOK_EVERY);
        }
        is_due
    }
}

/// The waiting for the first word of a run, or for its end.
pub struct OutputWait {
    streams: Arc<Streams>,
    run: RunId,
    told: watch::Receiver<()>,
}

impl OutputWait {
    /// Waits until the run may have begun to write or have ended since the last time. Nothing is lost when it is dropped
    /// while it waits.
    pub async fn changed(&mut self) {
        loop {
            let due = self.streams.awaited.next_look();
            let is_told = tokio::select! {
                told = self.told.changed() => told.is_ok(),
                () = sleep_until(due) => false,
            };
            if is_told {
                return;
            }
            if self.streams.awaited.takes_look() {
                self.streams.look_for_settled().await;
            }
        }
    }
}

impl Drop for OutputWait {
    fn drop(&mut self) {
        self.streams.awaited.leave(self.run);
    }
}

impl Streams {
    /// Begins to wait for what a run writes first; look at the run after this, not before.
    #[must_use]
    pub fn await_output(self: &Arc<Self>, run: RunId) -> OutputWait {
        OutputWait { streams: Arc::clone(self), run, told: self.awaited.join(run) }
    }

    /// Looks at all runs for which somebody waits.
    async fn look_for_settled(&self) {
        let runs: Vec<RunId> = self.awaited.runs.lock().keys().copied().collect();
        for some in runs.chunks(LOOK_RUNS) {
            match self.store.settled_runs(some).await {
                Ok(settled) => settled.into_iter().for_each(|run| self.awaited.wake(run)),
                Err(error) => {
                    tracing::debug!(error = %error_chain(&error), "runs cannot be looked at now");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn only_those_who_wait_for_the_run_are_told_also_before_they_ask() {
        let awaited = Awaited::default();
        let (one, other) = (RunId::new(), RunId::new());
        let (mut first, mut second, mut third) = (awaited.join(one), awaited.join(one), awaited.join(other));
        awaited.wake(one);
        assert!(first.changed().now_or_never().is_some() && second.changed().now_or_never().is_some());
        assert!(third.changed().now_or_never().is_none());
        awaited.wake_all();
        assert!(third.changed().now_or_never().is_some());
        awaited.leave(other);
        assert_eq!(awaited.runs.lock().len(), 1);
        awaited.leave(one);
        assert_eq!(awaited.runs.lock().len(), 1, "the second one still waits");
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_who_wait_one_looks_each_second() {
        let awaited = Awaited::default();
        let mut looks = 0;
        let until = Instant::now() + LOOK_EVERY * 10;
        while Instant::now() < until {
            sleep_until(awaited.next_look()).await;
            for _ in 0..100 {
                looks += usize::from(awaited.takes_look());
            }
        }
        assert_eq!(looks, 10);
    }
}
