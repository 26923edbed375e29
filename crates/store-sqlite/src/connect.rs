//! Connections: how the file is opened, by whom, and what time it is there.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, SqliteConnection, SqlitePool};
use switchboard_store_api::ScheduleClock;

use crate::error::OpenError;

/// How the database is opened.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The file; it is created when missing, its folder is not.
    pub path: PathBuf,
    /// The most connections that read at the same time, at least 1.
    pub readers: u32,
    /// The clock by which tasks become due.
    pub schedule_clock: ScheduleClock,
}

impl SqliteOptions {
    /// Makes the usual options for a file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), readers: 4, schedule_clock: ScheduleClock::default() }
    }
}

/// How long a connection waits for a lock; only a backup from outside can hold one.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The most prepared statements of a connection: more than this crate has.
const STATEMENTS: usize = 200;

/// Takes the lock that keeps a second process away; the operating system frees it with the process.
///
/// The side file lies beside the database itself, so that every path that leads there meets the same lock.
pub(crate) fn lock(path: &Path) -> Result<Flock<File>, OpenError> {
    let canonical = canonical(path).map_err(|source| OpenError::LockFile { path: side_file(path), source })?;
    let side = side_file(&canonical);
    let fault = |source| OpenError::LockFile { path: side.clone(), source };
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&side).map_err(fault)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => OpenError::InUse { path: path.to_owned() },
        errno => fault(errno.into()),
    })
}

/// Names the side file of the lock.
fn side_file(path: &Path) -> PathBuf {
    let mut side = OsString::from(path);
    side.push("-lock");
    side.into()
}

/// Resolves all links of a path, also of one whose file is still to be made.
fn canonical(path: &Path) -> io::Result<PathBuf> {
    let error = match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => error,
        resolved => return resolved,
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (path.read_link(), path.file_name()) {
        // The file will be made where the link points. Links in a circle have another error.
        (Ok(target), _) => canonical(&folder.join(target)),
        (Err(_), Some(name)) => Ok(folder.canonicalize()?.join(name)),
        (Err(_), None) => Err(error),
    }
}

/// Opens the only connection that writes.
pub(crate) async fn writer(options: &SqliteOptions) -> Result<SqliteConnection, sqlx::Error> {
    // What a test replays need not outlive a loss of power, and a year of it would wait for the disk all the time.
    let is_replayed = options.schedule_clock.set_time().is_some();
    let synchronous = if is_replayed { SqliteSynchronous::Normal } else { SqliteSynchronous::Full };
    SqliteConnectOptions::new()
        .filename(&options.path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous)
        .busy_timeout(BUSY_TIMEOUT)
        .statement_cache_capacity(STATEMENTS)
        .connect()
        .await
}

/// Opens the pool of connections that only read.
pub(crate) async fn readers(options: &SqliteOptions) -> Result<SqlitePool, sqlx::Error> {
    let connect = SqliteConnectOptions::new()
        .filename(&options.path)
        .read_only(true)
        .busy_timeout(BUSY_TIMEOUT)
        .statement_cache_capacity(STATEMENTS);
    SqlitePoolOptions::new().max_connections(options.readers.max(1)).connect_with(connect).await
}

/// Returns database time in microseconds; it never goes backwards within the process.
pub(crate) fn now() -> i64 {
    static HIGH_WATER: AtomicI64 = AtomicI64::new(0);
    #[expect(clippy::disallowed_methods, reason = "SQLite has no clock of its own; this process is the database")]
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX);
    HIGH_WATER.fetch_max(now, Ordering::Relaxed).max(now)
}
