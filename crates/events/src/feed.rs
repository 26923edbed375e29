//! The feed reader: the one loop of a replica that asks the database what changed.
//!
//! It ticks once a second, at once on a hint, and four times a second while hints cannot arrive; what hints carry it
//! passes on beside that. It knows nothing of what signals and news mean: observers do.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng as _;
use switchboard_model::feed::{FeedCursor, ListenerMode, Tick, TickRequest};
use switchboard_store_api::{FeedStore, HintReceiver, News, StoreError, StoreResult};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often the feed is read while hints arrive.
const PERIOD: Duration = Duration::from_secs(1);

/// How often the feed is read while no hint can arrive.
const PERIOD_WITHOUT_HINTS: Duration = Duration::from_millis(250);

/// How long one read of the feed may take.
const TICK_PATIENCE: Duration = Duration::from_secs(10);

/// Learns what the feed says. Called in order, once per tick; must only note what to do and return.
pub trait FeedObserver: Send + Sync {
    /// Takes note of a tick.
    fn observe(&self, tick: &Tick);

    /// Takes note of news, which a tick may bring, too, before or after.
    fn hear(&self, _news: &News) {}
}

/// How the feed is doing, for probes and metrics.
#[derive(Clone, Debug)]
pub struct FeedStatus(Arc<Mutex<StatusState>>);

#[derive(Debug)]
struct StatusState {
    last_success: Instant,
    mode: ListenerMode,
}

impl FeedStatus {
    /// Returns how long ago the feed was read successfully.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.0.lock().last_success.elapsed()
    }

    /// Returns how hints arrive.
    #[must_use]
    pub fn mode(&self) -> ListenerMode {
        self.0.lock().mode
    }
}

/// The feed reader of one replica.
pub struct Feed {
    store: Arc<dyn FeedStore>,
    observers: Vec<Arc<dyn FeedObserver>>,
    request: TickRequest,
    hints: HintReceiver,
    status: FeedStatus,
}

impl Feed {
    /// Makes the reader; every tick goes to the observers in the given order.
    #[must_use]
    pub fn new(store: Arc<dyn FeedStore>, request: TickRequest, observers: Vec<Arc<dyn FeedObserver>>) -> Self {
        let hints = store.hints();
        let status = StatusState { last_success: Instant::now(), mode: hints.mode() };
        Self { store, observers, request, hints, status: FeedStatus(Arc::new(Mutex::new(status))) }
    }

    /// Returns a handle on how the feed is doing.
    #[must_use]
    pub fn status(&self) -> FeedStatus {
        self.status.clone()
    }

    /// Reads the feed until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(async { tokio::join!(self.listen(), self.read()) }).await;
    }

    /// Passes news on, also while a tick is on its way.
    async fn listen(&self) {
        let mut news = self.hints.news();
        loop {
            let news = news.next().await;
            for observer in &self.observers {
                observer.hear(&news);
            }
        }
    }

    async fn read(&self) {
        let mut hints = self.hints.clone();
        let mut cursor: Option<FeedCursor> = None;
        let mut is_failing = false;
        loop {
            let result = self.tick(cursor.as_ref()).await;
            is_failing = self.note(&result, is_failing);
            if let Ok(tick) = result {
                for observer in &self.observers {
                    observer.observe(&tick);
                }
                // Only now: a signal that was not handed over is read again.
                cursor = Some(tick.cursor);
            }
            let mode = hints.mode();
            self.status.0.lock().mode = mode;
            let pause = if mode == ListenerMode::Polling || is_failing { PERIOD_WITHOUT_HINTS } else { PERIOD };
            // A hint that came while the tick ran is still pending here, so none is lost.
            tokio::select! {
                () = hints.changed() => {}
                () = tokio::time::sleep(with_jitter(pause)) => {}
            }
            if is_failing {
                // Hints do not make a failing database answer sooner.
                tokio::time::sleep(with_jitter(PERIOD_WITHOUT_HINTS)).await;
            }
        }
    }

    /// Ticks, within a time after which the connection counts as dead.
    async fn tick(&self, cursor: Option<&FeedCursor>) -> StoreResult<Tick> {
        let tick = tokio::time::timeout(TICK_PATIENCE, self.store.tick(cursor, &self.request)).await;
        tick.unwrap_or_else(|late| Err(StoreError::Unavailable(late.into())))
    }

    /// Counts and logs a tick; returns whether the feed fails now.
    fn note(&self, result: &StoreResult<Tick>, was_failing: bool) -> bool {
        match result {
            Ok(tick) => {
                metrics::counter!("switchboard_feed_ticks_total", "outcome" => "ok").increment(1);
                metrics::counter!("switchboard_feed_signals_total").increment(tick.signals.len() as u64);
                if tick.resync {
                    metrics::counter!("switchboard_feed_resyncs_total").increment(1);
                    tracing::info!("reading everything held here again");
                }
                if was_failing {
                    tracing::info!("the change feed is readable again");
                }
                self.status.0.lock().last_success = Instant::now();
                false
            }
            Err(error) => {
                metrics::counter!("switchboard_feed_ticks_total", "outcome" => "failed").increment(1);
                if !was_failing {
                    tracing::warn!(error = %error_chain(error), "the change feed cannot be read");
                }
                true
            }
        }
    }
}

/// Spreads periods by a tenth either way, so that replicas do not tick in step.
fn with_jitter(period: Duration) -> Duration {
    period.mul_f64(rand::rng().random_range(0.9..1.1))
}

/// Writes an error with its causes.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
