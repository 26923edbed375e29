//! Connections: options, pools, sessions and transactions. Knows no table.

use std::fmt::{self, Display};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use switchboard_model::Timestamp;
use switchboard_model::feed::{Signal, SignalKind};
use switchboard_model::ids::InstanceId;
use switchboard_model::span::Span;
use switchboard_store_api::{News, ScheduleClock, StoreResult, Stores};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::fault;
use crate::hints::{self, Hints};
use crate::link::{Link, Statements};
use crate::{feed, migrate};

/// Connections that a replica opens beside its pool: one for renewals and pings, one that reads the feed, one that
/// listens.
pub const CONNECTIONS_BESIDE_POOL: u32 = 3;

/// How long a caller waits for a connection.
pub(crate) const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// An idle connection older than this is tried before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);

/// What every session keeps to. A replica that stands still in a transaction loses it, and its locks, soon.
const SETTINGS: &str = "
    SET statement_timeout = '10s';
    SET lock_timeout = '3s';
    SET idle_in_transaction_session_timeout = '5s';
    SET default_transaction_isolation = 'read committed';
    SET jit = off";
/// For sessions of few statements, whose plans do not depend on parameters: to plan one of them each time costs as much
/// as to run it. A plan that was made while a table was empty must serve until the table is analysed, so it uses indexes.
const PLAN_ONCE: &str = "
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off";
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
/// The same for a transaction.
const BEGIN_PLANNED: &str = "
    BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
    SET LOCAL plan_cache_mode = force_generic_plan;
    SET LOCAL enable_seqscan = off";
/// Behind a transaction pooler a session setting would reach somebody else's transactions.
const BEGIN_POOLED: &str = "
    BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
    SET LOCAL statement_timeout = '10s';
    SET LOCAL lock_timeout = '3s';
    SET LOCAL idle_in_transaction_session_timeout = '5s';
    SET LOCAL jit = off";

/// How replicas wake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintTransport {
    /// By LISTEN and NOTIFY.
    Notify,
    /// Not at all: the feed is polled.
    Off,
}

/// How to reach and use the database.
#[derive(Clone)]
pub struct PgOptions {
    /// The connection URL of the pool.
    pub url: String,
    /// A URL that leads past any pooler, for migrations and LISTEN; `url` when absent.
    pub direct_url: Option<String>,
    /// The most connections of the pool; [`CONNECTIONS_BESIDE_POOL`] come on top.
    pub pool_size: u32,
    /// Whether `url` leads to a transaction pooler.
    pub pooled: bool,
    /// How replicas wake each other.
    pub notify: HintTransport,
    /// Who sends the hints.
    pub instance: InstanceId,
    /// The clock by which tasks become due; only a database without other replicas may have one that a test moves.
    pub schedule_clock: ScheduleClock,
}

impl fmt::Debug for PgOptions {
    /// Leaves the URLs out, which carry passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, direct_url: _, pool_size, pooled, notify, instance, schedule_clock: _ } = self;
        let mut out = f.debug_struct("PgOptions");
        out.field("pool_size", pool_size).field("pooled", pooled).field("notify", notify).field("instance", instance);
        out.finish_non_exhaustive()
    }
}

impl PgOptions {
    /// Reads the URL of the pool.
    pub(crate) fn pool_target(&self) -> Result<PgConnectOptions, OpenError> {
        let options = target(&self.url)?;
        if !self.pooled {
            return Ok(options);
        }
        // A pooler hands each transaction another server: no prepared statement survives one, and
        // poolers refuse startup parameters that they do not know.
        Ok(options.statement_cache_capacity(0).extra_float_digits(None))
    }

    /// Reads the URL of a session that no pooler shares; `None` when only a pooler is known.
    pub(crate) fn direct_target(&self) -> Result<Option<PgConnectOptions>, OpenError> {
        match &self.direct_url {
            Some(url) => target(url).map(Some),
            None if self.pooled => Ok(None),
            None => target(&self.url).map(Some),
        }
    }
}

fn target(url: &str) -> Result<PgConnectOptions, OpenError> {
    let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| OpenError::Url(error.into()))?;
    Ok(match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("switchboard"),
    })
}

/// Why the database could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A URL cannot be read.
    #[error("database.url or database.direct_url is not a PostgreSQL URL")]
    Url(#[source] Source),
    /// The database cannot be reached or refuses the connection.
    #[error("the database cannot be reached")]
    Connect(#[source] Source),
    /// The schema is older than the binary, and only a transaction pooler is known.
    #[error(
        "the schema is at version {found} and must be migrated to {known}, which a transaction pooler cannot do: \
         set database.direct_url to a URL that leads past the pooler"
    )]
    MigrationBehindPooler {
        /// The version of the schema.
        found: i64,
        /// The version that the binary needs.
        known: i64,
    },
    /// Somebody else holds the migration lock.
    #[error("another process has been migrating the database for more than {0:?}")]
    MigrationBusy(Duration),
    /// A migration failed.
    #[error("the database cannot be migrated")]
    Migrate(#[source] Source),
}

/// The cause below the seam.
type Source = Box<dyn std::error::Error + Send + Sync>;

/// Opens one connection outside any pool.
pub(crate) async fn connect_once(options: &PgConnectOptions) -> Result<PgConnection, OpenError> {
    match tokio::time::timeout(ACQUIRE_TIMEOUT, PgConnection::connect_with(options)).await {
        Ok(connected) => connected.map_err(|error| OpenError::Connect(error.into())),
        Err(elapsed) => Err(OpenError::Connect(elapsed.into())),
    }
}

/// Connects, migrates, and starts the listener and the flusher of hints on `tracker`; they end with `stop`.
///
/// # Errors
/// [`OpenError`] says what is in the way.
pub async fn open(options: &PgOptions, tracker: &TaskTracker, stop: CancellationToken) -> Result<Stores, OpenError> {
    migrate::prepare(options).await?;
    let database = Arc::new(Database::connect(options, tracker.clone()).await?);
    hints::start(options, &database, tracker, &stop)?;
    Ok(crate::stores(&database))
}

/// The pools of one replica.
pub(crate) struct Database {
    work: PgPool,
    vital: PgPool,
    feed: PgPool,
    begin: &'static str,
    begin_planned: &'static str,
    is_pooled: bool,
    pub(crate) hints: Hints,
    /// Where connections go back to their pool.
    tracker: TaskTracker,
    pub(crate) schedule_clock: ScheduleClock,
}

impl Database {
    async fn connect(options: &PgOptions, tracker: TaskTracker) -> Result<Self, OpenError> {
        let target = options.pool_target()?;
        let settings: &[&str] = if options.pooled { &[] } else { &[SETTINGS] };
        let settings_of_few: &[&str] = if options.pooled { &[] } else { &[SETTINGS, PLAN_ONCE] };
        let work = pool(options.pool_size.max(1), settings).connect_lazy_with(target.clone());
        let vital = pool(1, settings_of_few).connect_lazy_with(target.clone());
        let feed = pool(1, settings_of_few).connect_lazy_with(target);
        work.acquire().await.map_err(|error| OpenError::Connect(error.into()))?;
        let (begin, begin_planned) = if options.pooled { (BEGIN_POOLED, BEGIN_POOLED) } else { (BEGIN, BEGIN_PLANNED) };
        let (hints, schedule_clock) = (Hints::new(options), options.schedule_clock.clone());
        Ok(Self { work, vital, feed, begin, begin_planned, is_pooled: options.pooled, hints, tracker, schedule_clock })
    }

    /// Takes a connection for a single statement.
    pub(crate) async fn session(&self) -> StoreResult<Session> {
        self.session_of(&self.work).await
    }

    /// Takes the connection that work cannot exhaust, for a single statement.
    pub(crate) async fn vital_session(&self) -> StoreResult<Session> {
        self.session_of(&self.vital).await
    }

    /// Takes the connection of the change feed, for a single statement.
    pub(crate) async fn feed_session(&self) -> StoreResult<Session> {
        self.session_of(&self.feed).await
    }

    /// Deletes by a statement that takes an age in milliseconds and how many rows at most; returns how many it deleted.
    pub(crate) async fn delete_old(&self, statement: &'static str, age: Span, limit: u32) -> StoreResult<u64> {
        let mut session = self.session().await?;
        let deleting = sqlx::query(statement).bind(age.as_millis_i64()).bind(i64::from(limit));
        let deleted = deleting.execute(&mut *session).await.map_err(fault)?.rows_affected();
        session.commit().await?;
        Ok(deleted)
    }

    async fn session_of(&self, pool: &PgPool) -> StoreResult<Session> {
        let mut link = self.link(pool).await?;
        if self.is_pooled {
            link.begin(self.begin).await.map_err(fault)?;
        }
        Ok(Session(link))
    }

    async fn link(&self, pool: &PgPool) -> StoreResult<Link> {
        let connection = pool.acquire().await.map_err(fault)?;
        let statements = if self.is_pooled { Statements::Unnamed } else { Statements::Kept };
        Ok(Link::new(connection, statements, self.tracker.clone()))
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&self) -> StoreResult<Tx> {
        self.begin_on(&self.work, self.begin).await
    }

    /// Begins a transaction of statements whose plans do not depend on their parameters: each connection plans them once.
    pub(crate) async fn begin_planned(&self) -> StoreResult<Tx> {
        self.begin_on(&self.work, self.begin_planned).await
    }

    /// Begins a transaction on the connection that work cannot exhaust.
    pub(crate) async fn begin_vital(&self) -> StoreResult<Tx> {
        self.begin_on(&self.vital, self.begin).await
    }

    async fn begin_on(&self, pool: &PgPool, begin: &'static str) -> StoreResult<Tx> {
        let mut inner = self.link(pool).await?;
        inner.begin(begin).await.map_err(fault)?;
        let (hints, schedule_clock) = (self.hints.clone(), self.schedule_clock.clone());
        Ok(Tx { inner, hints, schedule_clock, signals: Vec::new(), has_signalled: false, news: Vec::new() })
    }
}

fn pool(size: u32, settings: &'static [&'static str]) -> PgPoolOptions {
    let options = PgPoolOptions::new().max_connections(size).acquire_timeout(ACQUIRE_TIMEOUT);
    // Trying every connection before its use would cost each operation a round trip.
    let options = options.test_before_acquire(false).before_acquire(|connection, meta| {
        Box::pin(async move {
            if meta.idle_for > TRUSTED_IDLE {
                connection.ping().await?;
            }
            Ok(true)
        })
    });
    options.after_connect(move |connection, _| {
        Box::pin(async move {
            for statement in settings {
                sqlx::raw_sql(*statement).execute(&mut *connection).await?;
            }
            Ok(())
        })
    })
}

async fn now(link: &mut Link) -> StoreResult<Timestamp> {
    sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(link).await.map_err(fault)
}

/// A connection for a single statement; behind a pooler it lies in a transaction of its own, which rolls back when it
/// is dropped: that is all the same to a statement that only reads.
pub(crate) struct Session(Link);

impl Session {
    /// Reads database time.
    pub(crate) async fn now(&mut self) -> StoreResult<Timestamp> {
        now(&mut self.0).await
    }

    /// Makes a write durable.
    pub(crate) async fn commit(mut self) -> StoreResult<()> {
        self.0.commit().await.map_err(fault)
    }
}

impl Deref for Session {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.0
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Link {
        &mut self.0
    }
}

/// A transaction that keeps its signals until the end, so that they cost one statement, and wakes the
/// readers after the commit.
///
/// It rolls back when it is dropped, but only some time after, in the background: its locks would still be
/// seen by the next operation. Whoever changes nothing ends it with [`Tx::undo`].
pub(crate) struct Tx {
    inner: Link,
    hints: Hints,
    schedule_clock: ScheduleClock,
    signals: Vec<Signal>,
    has_signalled: bool,
    news: Vec<News>,
}

impl Tx {
    /// Says that something changed; the same change is said once.
    pub(crate) fn signal(&mut self, kind: SignalKind, key: &impl Display) {
        let signal = Signal { kind, key: key.to_string(), pos: 0, body: None };
        if !self.signals.contains(&signal) {
            self.signals.push(signal);
        }
    }

    /// Notes that a statement of this transaction has written signals itself.
    pub(crate) fn has_signalled(&mut self) {
        self.has_signalled = true;
    }

    /// Notes an event that this transaction appends, with its signal: other replicas are told of it by a hint. Whoever
    /// appends tells its own replica.
    pub(crate) fn tell(&mut self, news: News) {
        self.news.push(news);
    }

    /// Reads database time, after any lock that this transaction had to wait for.
    pub(crate) async fn now(&mut self) -> StoreResult<Timestamp> {
        now(&mut self.inner).await
    }

    /// Returns the time by which tasks become due if a test has set it; it is database time otherwise.
    pub(crate) fn set_time(&self) -> Option<Timestamp> {
        self.schedule_clock.set_time()
    }

    /// Rolls back, which frees the locks and gives a claimed once-key back, and returns the outcome.
    pub(crate) async fn undo<T>(mut self, outcome: T) -> StoreResult<T> {
        self.inner.rollback().await.map_err(fault)?;
        Ok(outcome)
    }

    /// Writes the signals, commits, and wakes the readers.
    pub(crate) async fn commit(mut self) -> StoreResult<()> {
        if !self.signals.is_empty() {
            feed::insert(&mut self.inner, &self.signals).await?;
            self.has_signalled = true;
        }
        self.inner.commit().await.map_err(fault)?;
        self.hints.tell_here(self.signals);
        self.hints.tell(&self.news);
        if self.has_signalled {
            self.hints.raise();
        }
        Ok(())
    }
}

impl Deref for Tx {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.inner
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut Link {
        &mut self.inner
    }
}
