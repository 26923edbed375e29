//! Executing leased runs: each in a task of its own, under its timeout, its lease and the shutdown.
//!
//! A run holds its permit and its lease until the database has acknowledged its end, so a database
//! that is away never lets work pile up here. Knows neither how runs are found nor how ends are stored.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use switchboard_model::redact::Redactor;
use switchboard_model::run::{Ending, Finish, LeasedRun};
use switchboard_model::span::Span;
use switchboard_model::stream::StreamEnd;
use switchboard_store_api::Renewal;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::actions::{ActionError, ActionRunner, OutputSink, RunOutput};
use crate::finish::Ended;
use crate::lease::{Held, Lease};
use crate::meters;
use crate::observer::Wakes;
use crate::place::Place;

/// How long an action may take to notice that it is to stop; then it is dropped where it stands.
const STOP_GRACE: Duration = Duration::from_millis(500);

pub(crate) struct Executor {
    pub(crate) runners: HashMap<&'static str, Arc<dyn ActionRunner>>,
    pub(crate) output: Arc<dyn OutputSink>,
    pub(crate) held: Arc<Held>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) finishes: mpsc::Sender<Ended>,
    /// Cancelled when in-flight work is to be given back.
    pub(crate) hard: CancellationToken,
    /// Every task of the process.
    pub(crate) tracker: TaskTracker,
    /// The runs in flight, of which the drain waits for the last.
    pub(crate) work: TaskTracker,
}

/// Why an attempt is stopped before its end.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Lost,
    Cancelled,
    TimedOut,
    Shutdown,
}

impl Executor {
    /// Starts a run whose lease was asked for at `asked`.
    pub(crate) fn start(self: &Arc<Self>, run: LeasedRun, asked: Instant, permit: Option<OwnedSemaphorePermit>) {
        let lease = self.held.insert(Renewal { id: run.id, fence: run.fence }, asked);
        let place = Place { lease, permit, in_flight: self.work.token() };
        let span = tracing::info_span!("scheduler.run", run = %run.id, task = %run.task_name, attempt = run.attempt);
        let executor = self.clone();
        self.tracker.spawn(async move { executor.execute(&run, place).await }.instrument(span));
    }

    async fn execute(&self, run: &LeasedRun, place: Place) {
        let output = self.output.begin(run);
        let Some(ending) = self.attempt(run, &place.lease, &output).await else {
            meters::lost();
            tracing::warn!("lease lost, the result is dropped");
            return self.wakes.free([place]);
        };
        // Whatever an action brings back is stored and shown; this is the one place where all of it passes.
        let ending = ending.redacted(&Redactor::of(&run.action));
        if let Ending::Failed(error) | Ending::Retry { error, .. } = &ending {
            tracing::info!(error, "attempt failed");
        }
        // Before the run ends: nobody is to find it ended and its output open.
        output.end(StreamEnd::of_attempt(&ending)).await;
        let ended = Ended { finish: Finish { id: run.id, fence: run.fence, ending }, place };
        // The finisher goes on until the last executor is gone.
        if let Err(mpsc::error::SendError(ended)) = self.finishes.send(ended).await {
            self.wakes.free([ended.place]);
        }
    }

    /// Lets the runner work until it ends or must stop; `None` means that the lease was lost.
    async fn attempt(&self, run: &LeasedRun, lease: &Lease, output: &Arc<dyn RunOutput>) -> Option<Ending> {
        let kind = run.action.kind();
        let Some(runner) = self.runners.get(kind) else {
            return Some(failed(
                run,
                ActionError::retryable(format!("this replica executes no actions of kind {kind}")),
            ));
        };
        let stop = CancellationToken::new();
        let work = AssertUnwindSafe(runner.run(run, &stop, output)).catch_unwind();
        let work = work.map(|caught| caught.unwrap_or_else(|_| Err(ActionError::retryable("panicked"))));
        tokio::pin!(work);
        let cause = tokio::select! {
            biased;
            outcome = &mut work => return Some(outcome.map_or_else(|error| failed(run, error), Ending::Succeeded)),
            () = lease.lost() => Stop::Lost,
            () = lease.asked_to_cancel() => Stop::Cancelled,
            () = self.hard.cancelled() => Stop::Shutdown,
            () = after(run.timeout) => Stop::TimedOut,
        };
        tracing::debug!(?cause, "stopping");
        stop.cancel();
        let outcome = timeout(STOP_GRACE, work).await;
        match (cause, outcome) {
            (Stop::Lost, _) => None,
            (_, Ok(Ok(result))) => Some(Ending::Succeeded(result)),
            (Stop::Cancelled, _) => Some(Ending::Cancelled),
            (Stop::TimedOut, _) => Some(failed(run, ActionError::retryable("timed out"))),
            (Stop::Shutdown, _) => Some(Ending::Released),
        }
    }
}

fn failed(run: &LeasedRun, error: ActionError) -> Ending {
    match error {
        ActionError::Permanent(error) => Ending::Failed(error),
        ActionError::Retryable { error, after } => {
            // Whoever asks for less than the back-off would make a tight loop of it.
            let delay = run.backoff.delay(run.attempt, rand::random()).max(after.unwrap_or_default());
            Ending::Retry { error, delay }
        }
    }
}

async fn after(limit: Option<Span>) {
    match limit {
        Some(limit) => sleep(limit.to_std()).await,
        None => std::future::pending().await,
    }
}
