//! The SQLite backend: one file, one process, one writer.
//!
//! Every change goes through the writer, every read over a small pool of read-only connections. Signals
//! stay in the process. Nothing outside this crate learns what is in the file.

mod api_keys;
mod audit;
mod auth_sessions;
mod calls;
mod connect;
mod connections;
mod context;
mod error;
mod feed;
mod instances;
mod leases;
mod limits;
mod migrate;
mod once;
mod outbox;
mod presence;
mod rooms;
mod rows;
mod runs;
mod sealed;
mod secrets;
mod settings;
mod state;
mod streams;
mod tasks;
mod tickets;
mod tokens;
mod users;
mod webhooks;
mod writer;

use std::sync::Arc;

use sqlx::SqlitePool;
use switchboard_model::Timestamp;
use switchboard_store_api::{Capabilities, ScheduleClock, Stores};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use connect::SqliteOptions;
pub use error::OpenError;
pub use migrate::{migrate, schema_version};

use feed::Feed;
use writer::Writer;

/// The open database; every store trait is implemented on it.
struct Database {
    readers: SqlitePool,
    writer: Writer,
    feed: Arc<Feed>,
    schedule_clock: ScheduleClock,
}

impl Database {
    /// Returns the time by which tasks become due, in microseconds.
    fn schedule_now(&self) -> i64 {
        self.schedule_clock.set_time().map_or_else(connect::now, rows::micros)
    }

    /// Returns the time, in microseconds, and as an instant that by which tasks become due.
    fn times(&self) -> error::DbResult<(i64, Timestamp)> {
        let now = connect::now();
        Ok((now, self.schedule_clock.set_time().map_or_else(|| rows::instant(now), Ok)?))
    }
}

/// Opens the database for this process alone, migrates it and starts its writer on `tracker`.
///
/// The `stop` token ends the writer after it has drained what was queued; then the file is free
/// again, and calls return [`switchboard_store_api::StoreError::Unavailable`].
///
/// # Errors
/// [`OpenError`] says what stands in the way, such as another process on the same file.
pub async fn open(
    options: &SqliteOptions,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> Result<Stores, OpenError> {
    let lock = connect::lock(&options.path)?;
    let mut connection = connect::writer(options).await?;
    migrate::run(&mut connection).await?;
    let readers = connect::readers(options).await?;
    let feed = Arc::new(Feed::new());
    let (writer, actor) = writer::writer(connection, feed.clone(), options.schedule_clock.clone(), stop);
    tracker.spawn({
        let readers = readers.clone();
        async move {
            actor.run().await;
            readers.close().await;
            drop(lock);
        }
    });
    Ok(stores(Arc::new(Database { readers, writer, feed, schedule_clock: options.schedule_clock.clone() })))
}

/// Checks that no process has the database open, by taking its lock for a moment.
///
/// # Errors
/// [`OpenError`] says who stands in the way.
pub fn probe(options: &SqliteOptions) -> Result<(), OpenError> {
    connect::lock(&options.path).map(drop)
}

fn stores(database: Arc<Database>) -> Stores {
    Stores {
        tasks: database.clone(),
        runs: database.clone(),
        rooms: database.clone(),
        tickets: database.clone(),
        instances: database.clone(),
        connections: database.clone(),
        presence: database.clone(),
        api_keys: database.clone(),
        users: database.clone(),
        auth_sessions: database.clone(),
        limits: database.clone(),
        webhooks: database.clone(),
        secrets: database.clone(),
        tokens: database.clone(),
        sealed: database.clone(),
        audit: database.clone(),
        settings: database.clone(),
        once: database.clone(),
        leases: database.clone(),
        state: database.clone(),
        outbox: database.clone(),
        streams: database.clone(),
        calls: database.clone(),
        schedule_clock: database.schedule_clock.clone(),
        feed: database,
        capabilities: Capabilities { allows_replicas: false, needs_instance_lease: false },
    }
}
