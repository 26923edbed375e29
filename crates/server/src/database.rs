//! Which database a configuration names, and how to open it. The only place that tells backends apart.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use switchboard_model::Timestamp;
use switchboard_model::ids::InstanceId;
use switchboard_store_api::{ScheduleClock, Stores};
use switchboard_store_pg::{HintTransport, PgOptions};
use switchboard_store_sqlite::SqliteOptions;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Hints, Replicas, TestClock};

/// A database as configured.
pub(crate) enum Database {
    /// One file, one process.
    Sqlite(SqliteOptions),
    /// A server, any number of replicas.
    Postgres(PgOptions),
}

impl Database {
    /// Reads the configuration.
    pub(crate) fn of(config: &Config, instance: InstanceId) -> anyhow::Result<Self> {
        let url = &config.database.url;
        if let Some(path) = url.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if config.replicas == Replicas::Multi {
                bail!("replicas = \"multi\" needs PostgreSQL: set database.url to postgres://… (it is {url})");
            }
            let schedule_clock = schedule_clock(config);
            return Ok(Self::Sqlite(SqliteOptions { schedule_clock, ..SqliteOptions::new(PathBuf::from(path)) }));
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Self::Postgres(PgOptions {
                url: url.clone(),
                direct_url: config.database.direct_url.clone(),
                pool_size: config.database.pool_size,
                pooled: config.database.pooled,
                notify: match config.realtime.hints {
                    Hints::Notify => HintTransport::Notify,
                    Hints::Off => HintTransport::Off,
                },
                instance,
                schedule_clock: schedule_clock(config),
            }));
        }
        // The URL itself may hold a password, so it is not repeated.
        bail!("database.url must start with sqlite: or postgres://");
    }

    /// Opens the database and brings its schema up to date.
    pub(crate) async fn open(&self, tracker: &TaskTracker, stop: CancellationToken) -> anyhow::Result<Stores> {
        match self {
            Self::Sqlite(options) => switchboard_store_sqlite::open(options, tracker, stop).await.context("SQLite"),
            Self::Postgres(options) => switchboard_store_pg::open(options, tracker, stop).await.context("PostgreSQL"),
        }
    }

    /// Returns the newest migration that this binary knows.
    pub(crate) fn schema_version(&self) -> i64 {
        match self {
            Self::Sqlite(_) => switchboard_store_sqlite::schema_version(),
            Self::Postgres(_) => switchboard_store_pg::schema_version(),
        }
    }
}

/// Makes the clock of schedules. One that starts at database time is moved there once the database can be asked.
fn schedule_clock(config: &Config) -> ScheduleClock {
    match config.scheduler.test_clock {
        None => ScheduleClock::default(),
        Some(TestClock::Now) => ScheduleClock::standing_at(Timestamp::UNIX_EPOCH),
        Some(TestClock::At(start)) => ScheduleClock::standing_at(start),
    }
}
