//! Hints between replicas: a flusher that notifies after commits and a listener that passes on what it hears.
//!
//! A hint says "tick now" or carries small news. Nothing stored depends on it, so losing one costs a moment and
//! nothing else. With one live replica there is nobody to tell, and nothing is sent.

mod packet;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use switchboard_model::feed::{ListenerMode, Signal, SignalKind};
use switchboard_model::ids::InstanceId;
use switchboard_model::json_text::JsonText;
use switchboard_store_api::{HintReceiver, HintSender, News, StoreResult, hint_channel};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connect::{ACQUIRE_TIMEOUT, Database, HintTransport, OpenError, PgOptions};
use crate::error::fault;
use crate::link::in_time;
use packet::{Packet, Senders, pack, room_for_news};

const CHANNEL: &str = "switchboard";
/// The pauses between two attempts to listen, doubling from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// After this much silence the listener asks its server whether it is still there.
const SILENCE: Duration = Duration::from_secs(15);
/// How many bytes of news wait for the flusher; what comes on top is left to the feed.
const WAITING_BYTES: usize = 1024 * 1024;

/// The raising side: wakes this replica directly and lets the flusher tell the others.
#[derive(Clone)]
pub(crate) struct Hints {
    local: HintSender,
    outgoing: Arc<Outgoing>,
}

/// What waits for the flusher.
struct Outgoing {
    instance: InstanceId,
    /// The most bytes of news that a packet holds.
    room: usize,
    transport: HintTransport,
    /// Whether this is the only live replica, as of the latest tick.
    is_alone: AtomicBool,
    waiting: Mutex<Waiting>,
    ask: Notify,
}

#[derive(Default)]
struct Waiting {
    news: Vec<JsonText>,
    bytes: usize,
    /// Whether the others must tick, since no news say what has changed.
    look: bool,
}

impl Hints {
    pub(crate) fn new(options: &PgOptions) -> Self {
        let (local, _) = hint_channel(ListenerMode::Polling);
        let outgoing = Outgoing {
            instance: options.instance.clone(),
            room: room_for_news(&options.instance),
            transport: options.notify,
            is_alone: AtomicBool::new(false),
            waiting: Mutex::default(),
            ask: Notify::new(),
        };
        Self { local, outgoing: Arc::new(outgoing) }
    }

    /// Says, after a commit, that the transaction left signals behind.
    pub(crate) fn raise(&self) {
        self.local.raise();
        if self.outgoing.has_listeners() {
            self.outgoing.waiting().look = true;
            self.outgoing.ask.notify_one();
        }
    }

    /// Tells this replica, after a commit, of the pools into which it has brought runs, so that their way to a worker
    /// here is not one read of the feed longer.
    pub(crate) fn tell_here(&self, signals: Vec<Signal>) {
        for signal in signals.into_iter().filter(|signal| signal.kind == SignalKind::PoolQueued) {
            self.local.tell(News::Signal(signal));
        }
    }

    /// Tells the other replicas, after a commit, what it has brought; what no hint can carry they read.
    pub(crate) fn tell(&self, news: &[News]) {
        if news.is_empty() || !self.outgoing.has_listeners() {
            return;
        }
        for news in news {
            if !self.outgoing.offer(news) {
                self.outgoing.waiting().look = true;
            }
        }
        self.outgoing.ask.notify_one();
    }

    /// Tells the other replicas of signals that may be lost, and returns those that must go by the feed: the large ones,
    /// or all of them while nobody can be expected to listen.
    pub(crate) fn broadcast(&self, signals: &[Signal]) -> Vec<Signal> {
        let outgoing = &self.outgoing;
        if outgoing.is_alone.load(Ordering::Relaxed) {
            return Vec::new();
        }
        // Replicas are configured alike, so one that listens takes the others to listen, too.
        if self.local.mode() != ListenerMode::Listening {
            return signals.to_vec();
        }
        let left = signals.iter().filter(|signal| !outgoing.offer(&News::Signal((*signal).clone()))).cloned().collect();
        outgoing.ask.notify_one();
        left
    }

    /// Takes note of how many replicas have a row; before the own one is there, that says nothing.
    pub(crate) fn count_replicas(&self, count: i64) {
        self.outgoing.is_alone.store(count == 1, Ordering::Relaxed);
    }

    pub(crate) fn subscribe(&self) -> HintReceiver {
        self.local.subscribe()
    }
}

impl Outgoing {
    fn has_listeners(&self) -> bool {
        self.transport == HintTransport::Notify && !self.is_alone.load(Ordering::Relaxed)
    }

    /// Queues news for the flusher; `false` when they are too large or too many are waiting.
    fn offer(&self, news: &News) -> bool {
        let Ok(text) = JsonText::encode(news) else { return false };
        let bytes = text.as_str().len();
        let mut waiting = self.waiting();
        if bytes > self.room || waiting.bytes + bytes > WAITING_BYTES {
            return false;
        }
        waiting.bytes += bytes;
        waiting.news.push(text);
        true
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the flusher, and the listener where a session can listen.
pub(crate) fn start(
    options: &PgOptions,
    database: &Arc<Database>,
    tracker: &TaskTracker,
    stop: &CancellationToken,
) -> Result<(), OpenError> {
    // Said from the boot on, also where nobody ever listens.
    let meters = Meters::new();
    if options.notify == HintTransport::Off {
        return Ok(());
    }
    tracker.spawn(flush(Arc::clone(database), stop.clone()));
    if let Some(target) = options.direct_target()? {
        let listener = Listener {
            pool: PgPoolOptions::new()
                .max_connections(1)
                .max_lifetime(None)
                .idle_timeout(None)
                .acquire_timeout(ACQUIRE_TIMEOUT)
                .connect_lazy_with(named(target)),
            local: database.hints.local.clone(),
            instance: options.instance.clone(),
            meters,
        };
        let stop = stop.clone();
        tracker.spawn(async move { stop.run_until_cancelled(Box::pin(listener.run())).await });
    } else {
        tracing::warn!("behind a transaction pooler without database.direct_url: the feed is polled");
    }
    Ok(())
}

/// Names the session, so that an operator can tell it from those of the pool.
fn named(target: PgConnectOptions) -> PgConnectOptions {
    let name = format!("{} listener", target.get_application_name().unwrap_or("switchboard"));
    target.application_name(&name)
}

/// Sends what gathered while the previous statement was on its way, in one statement.
async fn flush(database: Arc<Database>, stop: CancellationToken) {
    let sent = metrics::counter!("switchboard_feed_hints_sent_total");
    let outgoing = Arc::clone(&database.hints.outgoing);
    let mut seq = 0_u64;
    while stop.run_until_cancelled(outgoing.ask.notified()).await.is_some() {
        let Waiting { news, look, .. } = std::mem::take(&mut *outgoing.waiting());
        let packets = pack(&outgoing.instance, &mut seq, look, news);
        let count = packets.len() as u64;
        match notify(&database, packets).await {
            Ok(()) => sent.increment(count),
            // The readers see the gap in the sequence, or tick by themselves within a second.
            Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "hints were not sent"),
        }
    }
}

async fn notify(database: &Database, packets: Vec<String>) -> StoreResult<()> {
    if packets.is_empty() {
        return Ok(());
    }
    let mut session = database.session().await?;
    sqlx::query(
        "-- feed.notify
         SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, packet)
         FROM unnest($2::text[]) AS packet",
    )
    .bind(CHANNEL)
    .bind(packets)
    .execute(&mut *session)
    .await
    .map_err(fault)?;
    session.commit().await
}

/// Follows the hints of the other replicas over one connection.
struct Listener {
    pool: PgPool,
    local: HintSender,
    instance: InstanceId,
    meters: Meters,
}

impl Listener {
    /// Listens for ever; polling is announced while there is no connection.
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = match self.connect().await {
                Ok(listener) => {
                    // Whatever was notified while nobody listened is read by the tick that this causes.
                    self.local.set_mode(ListenerMode::Listening);
                    self.meters.listening.set(1.0);
                    pause = FIRST_PAUSE;
                    let reason = self.follow(listener).await;
                    self.local.set_mode(ListenerMode::Polling);
                    self.meters.listening.set(0.0);
                    reason
                }
                Err(reason) => reason,
            };
            tracing::warn!(reason = &reason as &dyn std::error::Error, "not listening for hints, polling the feed");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn connect(&self) -> Result<PgListener, sqlx::Error> {
        in_time(ACQUIRE_TIMEOUT, async {
            let mut listener = PgListener::connect_with(&self.pool).await?;
            // A connection that is lost must be seen, not silently made again.
            listener.eager_reconnect(false);
            listener.listen(CHANNEL).await?;
            self.prove(&mut listener).await?;
            Ok(listener)
        })
        .await
    }

    /// Waits for an echo: a pooler may take LISTEN and deliver nothing.
    async fn prove(&self, listener: &mut PgListener) -> Result<(), sqlx::Error> {
        let sign = format!("{} listens", self.instance);
        sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(&sign).execute(&mut *listener).await?;
        while let Some(hint) = listener.try_recv().await? {
            // What others have sent meanwhile is read by the first tick.
            if hint.payload() == sign {
                return Ok(());
            }
        }
        Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into()))
    }

    /// Passes on the hints of other replicas, and returns why the connection was lost.
    async fn follow(&self, mut listener: PgListener) -> sqlx::Error {
        let mut senders = Senders::default();
        loop {
            match tokio::time::timeout(SILENCE, listener.try_recv()).await {
                Ok(Ok(Some(hint))) => self.hear(hint.payload(), &mut senders),
                Ok(Ok(None)) => return sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into()),
                Ok(Err(error)) => return error,
                // A half-open connection is as silent as an idle one.
                Err(_) => {
                    let probe = sqlx::query("SELECT 1").execute(&mut listener);
                    if let Err(error) = in_time(ACQUIRE_TIMEOUT, async { probe.await.map(|_| ()) }).await {
                        return error;
                    }
                }
            }
        }
    }

    fn hear(&self, text: &str, senders: &mut Senders) {
        // A newer replica may tell of things that this binary does not know.
        let Ok(Packet { from, seq, look, news }) = serde_json::from_str::<Packet<News>>(text) else {
            return self.local.raise();
        };
        if from == self.instance {
            return;
        }
        self.meters.received.increment(1);
        let lost = senders.lost_before(from, seq);
        self.meters.lost.increment(lost);
        for news in news {
            self.local.tell(news);
        }
        if look || lost > 0 {
            self.local.raise();
        }
    }
}

/// What the listener counts, and whether there is one.
struct Meters {
    listening: Gauge,
    received: Counter,
    lost: Counter,
}

impl Meters {
    fn new() -> Self {
        let listening = metrics::gauge!("switchboard_feed_listening");
        listening.set(0.0);
        let received = metrics::counter!("switchboard_feed_hints_received_total");
        let lost = metrics::counter!("switchboard_feed_hints_lost_total");
        received.increment(0);
        lost.increment(0);
        Self { listening, received, lost }
    }
}
