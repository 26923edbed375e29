//! Background loops: one activity that runs when it is woken and, as a backstop, every period.
//!
//! Wake-ups are hints, re-reading the database is the truth. Errors, panics and calls that never return
//! do not end a loop: the next run follows after a short wait, which doubles up to the period. They are
//! logged when a loop begins to fail and when it works again. It knows nothing of what a loop does.

use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use switchboard_model::span::Span;
use switchboard_store_api::StoreResult;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::meters;
use crate::wake::Wake;

/// The longest time that a store may take, far beyond what a healthy one needs: a call on a connection
/// that died without a word would never return.
pub(crate) const LONGEST_CALL: Duration = Duration::from_secs(30);
/// The longest time from the start of a run that failed, after others that did not, to the next one.
const FIRST_RETRY: Duration = Duration::from_millis(250);

/// How a loop that runs on every replica keeps out of the way of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusivity {
    /// It works on what it holds under leases.
    Leased,
    /// Doing the work twice has the effect of doing it once, for this reason.
    Idempotent(&'static str),
    /// It serves its own process only, for this reason.
    PerProcess(&'static str),
}

/// What a loop does each time.
#[async_trait]
pub trait Activity: Send + 'static {
    /// Does the work once and says in a few words what was done. It is idempotent and learns what
    /// there is to do from the database. One that takes too long is dropped wherever it waits.
    ///
    /// # Errors
    /// Fails when a store does; the loop goes on.
    async fn run_once(&mut self) -> StoreResult<String>;
}

/// When a loop runs.
#[derive(Clone, Debug)]
pub struct Activation {
    /// Its name in logs, metrics and the console; one of a closed list.
    pub name: &'static str,
    /// Why it may run on every replica.
    pub exclusivity: Exclusivity,
    /// The longest time between the starts of two runs.
    pub period: Span,
    /// The share of each wait that chance takes off, and of the period by which the first run is delayed: 0 to 1.
    pub jitter: f64,
    /// What makes it run earlier.
    pub wake: Wake,
}

impl Activation {
    /// Makes the loop and the handle that watches it. The caller spawns the loop; it ends after the
    /// run that is going on when `stop` is cancelled.
    pub fn into_loop<A: Activity>(
        self,
        activity: A,
        stop: CancellationToken,
    ) -> (LoopHandle, impl Future<Output = ()> + Send + use<A>) {
        let state = State { last_success: Instant::now(), report: String::new(), error: None };
        let handle = LoopHandle { name: self.name, exclusivity: self.exclusivity, state: Arc::new(Mutex::new(state)) };
        (handle.clone(), self.repeat(activity, stop, handle))
    }

    async fn repeat<A: Activity>(self, mut activity: A, stop: CancellationToken, handle: LoopHandle) {
        let period = self.period.to_std();
        let first_retry = FIRST_RETRY.min(period / 20);
        let mut retry = first_retry;
        let mut backstop = Instant::now() + self.chance_of(period);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.wake.due() => {}
                () = sleep_until(backstop) => {}
            }
            self.wake.arm();
            let started = Instant::now();
            let wait = match run(&mut activity).await {
                Ok(report) => {
                    handle.succeeded(report);
                    retry = first_retry;
                    period
                }
                Err(error) => {
                    handle.failed(error);
                    let wait = retry;
                    retry = (wait * 2).min(period);
                    wait
                }
            };
            backstop = started + wait.saturating_sub(self.chance_of(wait));
        }
        tracing::debug!(name = self.name, "loop stopped");
    }

    fn chance_of(&self, wait: Duration) -> Duration {
        wait.mul_f64(self.jitter.clamp(0.0, 1.0) * rand::random::<f64>())
    }
}

/// Lets an activity work once; returns what it did or why it failed.
async fn run(activity: &mut impl Activity) -> Result<String, String> {
    match timeout(LONGEST_CALL, AssertUnwindSafe(activity.run_once()).catch_unwind()).await {
        Ok(Ok(outcome)) => outcome.map_err(|error| with_causes(&error)),
        Ok(Err(_)) => Err("panicked".to_owned()),
        Err(_) => Err(format!("not done after {} s", LONGEST_CALL.as_secs())),
    }
}

/// Watches a running loop.
#[derive(Clone, Debug)]
pub struct LoopHandle {
    name: &'static str,
    exclusivity: Exclusivity,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    last_success: Instant,
    report: String,
    error: Option<String>,
}

/// How a loop is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopStatus {
    /// Its name.
    pub name: &'static str,
    /// Why it may run on every replica.
    pub exclusivity: Exclusivity,
    /// How long ago it last succeeded, or was started if it never did.
    pub last_success: Duration,
    /// What it did then.
    pub report: String,
    /// Why it fails now, if it does.
    pub error: Option<String>,
}

impl LoopHandle {
    /// Tells how the loop is doing and brings the gauge of its age up to date.
    #[must_use]
    pub fn status(&self) -> LoopStatus {
        let state = self.state.lock();
        let last_success = state.last_success.elapsed();
        meters::loop_age(self.name, last_success);
        LoopStatus {
            name: self.name,
            exclusivity: self.exclusivity,
            last_success,
            report: state.report.clone(),
            error: state.error.clone(),
        }
    }

    fn succeeded(&self, report: String) {
        tracing::debug!(name = self.name, report, "loop ran");
        let mut state = self.state.lock();
        if state.error.take().is_some() {
            tracing::info!(name = self.name, "loop works again");
        }
        state.report = report;
        state.last_success = Instant::now();
        meters::loop_age(self.name, Duration::ZERO);
    }

    fn failed(&self, error: String) {
        let mut state = self.state.lock();
        meters::loop_age(self.name, state.last_success.elapsed());
        if state.error.is_none() {
            tracing::warn!(name = self.name, error, "loop fails");
        } else {
            tracing::debug!(name = self.name, error, "loop still fails");
        }
        state.error = Some(error);
    }
}

/// Writes an error with all its causes in one line.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use switchboard_store_api::StoreError;
    use tokio::sync::mpsc;

    use super::*;

    /// `None` never ends.
    type Step = fn() -> Option<StoreResult<String>>;

    /// Goes through its steps, then repeats the last; tells when it ran.
    struct Script {
        steps: Vec<Step>,
        ran: mpsc::UnboundedSender<Duration>,
        start: Instant,
    }

    #[async_trait]
    impl Activity for Script {
        async fn run_once(&mut self) -> StoreResult<String> {
            self.ran.send(self.start.elapsed()).unwrap();
            let step = if self.steps.len() > 1 { self.steps.remove(0) } else { self.steps[0] };
            match step() {
                Some(outcome) => outcome,
                None => std::future::pending().await,
            }
        }
    }

    struct Running {
        handle: LoopHandle,
        wake: Wake,
        ran: mpsc::UnboundedReceiver<Duration>,
        stop: CancellationToken,
        tracker: tokio_util::task::TaskTracker,
    }

    fn start(steps: Vec<Step>) -> Running {
        let (sender, ran) = mpsc::unbounded_channel();
        let wake = Wake::default();
        let activation = Activation {
            name: "test",
            exclusivity: Exclusivity::PerProcess("a test"),
            period: Span::from_secs(10),
            jitter: 0.0,
            wake: wake.clone(),
        };
        let stop = CancellationToken::new();
        let tracker = tokio_util::task::TaskTracker::new();
        let script = Script { steps, ran: sender, start: Instant::now() };
        let (handle, running) = activation.into_loop(script, stop.clone());
        tracker.spawn(running);
        tracker.close();
        Running { handle, wake, ran, stop, tracker }
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_runs_at_its_start_every_period_and_when_woken() {
        let mut running = start(vec![|| Some(Ok("done".to_owned()))]);
        assert_eq!(running.ran.recv().await, Some(Duration::ZERO));
        assert_eq!(running.ran.recv().await, Some(Duration::from_secs(10)));
        running.wake.at(Instant::now() + Duration::from_secs(3));
        assert_eq!(running.ran.recv().await, Some(Duration::from_secs(13)));
        assert_eq!(running.ran.recv().await, Some(Duration::from_secs(23)));
        running.stop.cancel();
        running.tracker.wait().await;
        assert_eq!(running.ran.recv().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_and_panics_are_told_and_never_end_the_loop() {
        let mut running = start(vec![
            || Some(Ok("first".to_owned())),
            || Some(Err(StoreError::Unavailable("no route".into()))),
            || panic!("as told"),
            || Some(Ok("second".to_owned())),
        ]);
        let mut seen = Vec::new();
        for _ in 0..4 {
            running.ran.recv().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            seen.push(running.handle.status());
        }
        running.stop.cancel();
        let states: Vec<_> = seen
            .iter()
            .map(|status| (status.report.as_str(), status.error.as_deref(), status.last_success.as_millis()))
            .collect();
        assert_eq!(
            states,
            [
                ("first", None, 1),
                ("first", Some("the database is unavailable: no route"), 10_001),
                ("first", Some("panicked"), 10_251),
                ("second", None, 1),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_fails_tries_again_soon_and_then_less_and_less_often() {
        let fails: Step = || Some(Err(StoreError::Unavailable("no route".into())));
        let works: Step = || Some(Ok("done".to_owned()));
        let mut steps = vec![fails; 8];
        steps.extend([works, fails, works]);
        let mut running = start(steps);
        let mut waits = Vec::new();
        let mut last = running.ran.recv().await.unwrap();
        for _ in 0..10 {
            let ran = running.ran.recv().await.unwrap();
            waits.push((ran - last).as_millis());
            last = ran;
        }
        running.stop.cancel();
        assert_eq!(waits, [250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000, 250]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_never_ends_is_dropped_and_tried_again() {
        let mut running = start(vec![|| None, || Some(Ok("done".to_owned()))]);
        assert_eq!(running.ran.recv().await, Some(Duration::ZERO));
        assert_eq!(running.ran.recv().await, Some(LONGEST_CALL));
        running.stop.cancel();
        running.tracker.wait().await;
        let status = running.handle.status();
        assert_eq!((status.report.as_str(), status.error), ("done", None));
    }

    #[test]
    fn jitter_shortens_the_period_and_delays_the_first_run() {
        let activation = Activation {
            name: "test",
            exclusivity: Exclusivity::Leased,
            period: Span::from_secs(10),
            jitter: 0.5,
            wake: Wake::default(),
        };
        for _ in 0..1_000 {
            assert!(activation.chance_of(Duration::from_secs(10)) <= Duration::from_secs(5));
        }
    }
}
