//! Hints between replicas: a flusher that notifies after commits and a listener that raises.
//!
//! A hint only says "tick now"; it carries no fact, so losing one costs a moment and nothing else.

use std::sync::Arc;
use std::time::Duration;

use metrics::Counter;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use switchboard_model::feed::ListenerMode;
use switchboard_model::ids::InstanceId;
use switchboard_store_api::{HintReceiver, HintSender, StoreResult, hint_channel};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connect::{ACQUIRE_TIMEOUT, Database, HintTransport, OpenError, PgOptions};
use crate::error::fault;
use crate::link::in_time;

const CHANNEL: &str = "switchboard";
/// The pauses between two attempts to listen, doubling from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// After this much silence the listener asks its server whether it is still there.
const SILENCE: Duration = Duration::from_secs(15);

/// The raising side: wakes this replica directly and asks the flusher to wake the others.
#[derive(Clone)]
pub(crate) struct Hints {
    local: HintSender,
    ask: Arc<Notify>,
}

impl Hints {
    pub(crate) fn new() -> Self {
        let (local, _) = hint_channel(ListenerMode::Polling);
        Self { local, ask: Arc::new(Notify::new()) }
    }

    /// Says, after a commit, that the transaction left signals behind.
    pub(crate) fn raise(&self) {
        self.local.raise();
        self.ask.notify_one();
    }

    pub(crate) fn subscribe(&self) -> HintReceiver {
        self.local.subscribe()
    }
}

/// Starts the flusher, and the listener where a session can listen.
pub(crate) fn start(
    options: &PgOptions,
    database: &Arc<Database>,
    tracker: &TaskTracker,
    stop: &CancellationToken,
) -> Result<(), OpenError> {
    if options.notify == HintTransport::Off {
        return Ok(());
    }
    tracker.spawn(flush(Arc::clone(database), options.instance.clone(), stop.clone()));
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

/// Sends one notification for all the hints that came while the previous one was on its way.
async fn flush(database: Arc<Database>, instance: InstanceId, stop: CancellationToken) {
    let sent = metrics::counter!("switchboard_feed_hints_sent_total");
    let mut seq = 0_u64;
    while stop.run_until_cancelled(database.hints.ask.notified()).await.is_some() {
        seq += 1;
        match notify(&database, &instance, seq).await {
            Ok(()) => sent.increment(1),
            // The readers tick by themselves within a second.
            Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "a hint was not sent"),
        }
    }
}

async fn notify(database: &Database, instance: &InstanceId, seq: u64) -> StoreResult<()> {
    let mut session = database.session().await?;
    sqlx::query(
        "-- feed.notify
         SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)",
    )
    .bind(CHANNEL)
    .bind(format!("{instance}:{seq}"))
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
}

impl Listener {
    /// Listens for ever; polling is announced while there is no connection.
    async fn run(self) {
        let listening = metrics::gauge!("switchboard_feed_listening");
        let received = metrics::counter!("switchboard_feed_hints_received_total");
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = match self.connect().await {
                Ok(listener) => {
                    // Whatever was notified while nobody listened is read by the tick that this causes.
                    self.local.set_mode(ListenerMode::Listening);
                    listening.set(1.0);
                    pause = FIRST_PAUSE;
                    let reason = self.follow(listener, &received).await;
                    self.local.set_mode(ListenerMode::Polling);
                    listening.set(0.0);
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
            Ok(listener)
        })
        .await
    }

    /// Raises at each hint of another replica, and returns why the connection was lost.
    async fn follow(&self, mut listener: PgListener, received: &Counter) -> sqlx::Error {
        loop {
            match tokio::time::timeout(SILENCE, listener.try_recv()).await {
                Ok(Ok(Some(hint))) => {
                    // Every foreign hint raises, so a gap in its sequence needs no treatment of its own.
                    if hint.payload().rsplit_once(':').is_none_or(|(sender, _)| sender != self.instance.as_str()) {
                        received.increment(1);
                        self.local.raise();
                    }
                }
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
}
