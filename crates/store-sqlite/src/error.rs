//! What goes wrong in the driver, as the store seam and the caller of `open` see it.

use std::path::PathBuf;
use std::sync::Arc;

use switchboard_store_api::StoreError;

/// Why the database could not be opened or migrated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the file open.
    #[error("another process has the database {} open", path.display())]
    InUse {
        /// The database.
        path: PathBuf,
    },
    /// The side file of the lock cannot be used.
    #[error("the lock file {} cannot be used", path.display())]
    LockFile {
        /// The side file.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        source: std::io::Error,
    },
    /// The database does not open.
    #[error("the database does not open")]
    Connect(#[from] sqlx::Error),
    /// A migration failed, or differs from the one that was applied.
    #[error("the database cannot be migrated")]
    Migrate(#[from] sqlx::migrate::MigrateError),
}

/// What the functions below the traits return, so that `?` takes errors of the driver as they are.
pub(crate) type DbResult<T> = Result<T, DbError>;

/// An error on its way to the seam.
#[derive(Debug)]
pub(crate) struct DbError(StoreError);

impl From<StoreError> for DbError {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> Self {
        Self(classify(error))
    }
}

impl From<serde_json::Error> for DbError {
    fn from(error: serde_json::Error) -> Self {
        Self(StoreError::Backend(Box::new(error)))
    }
}

impl From<DbError> for StoreError {
    fn from(DbError(error): DbError) -> Self {
        error
    }
}

/// The writer has stopped, or lost its connection before it came to the command.
#[derive(Debug, thiserror::Error)]
#[error("the writer gave no answer")]
struct NoAnswer;

/// Reports a command that the writer did not answer.
pub(crate) fn no_answer() -> StoreError {
    StoreError::Unavailable(Box::new(NoAnswer))
}

/// Reports to one of its commands that a transaction did not commit.
pub(crate) fn not_committed(error: &Arc<sqlx::Error>) -> StoreError {
    StoreError::Unavailable(Box::new(error.clone()))
}

/// Primary result codes of SQLite, <https://www.sqlite.org/rescode.html>.
mod code {
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const READONLY: i32 = 8;
    pub(super) const INTERRUPT: i32 = 9;
    pub(super) const IOERR: i32 = 10;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
}

fn classify(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => StoreError::corrupt("row", &error),
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
            StoreError::Unavailable(Box::new(error))
        }
        sqlx::Error::Database(refusal) => {
            // The low byte of an extended code is its primary code.
            let extended = refusal.code().and_then(|code| code.parse::<i32>().ok());
            match extended.map(|code| code & 0xff) {
                Some(code::BUSY | code::LOCKED) => StoreError::Conflict(Box::new(error)),
                Some(code::READONLY | code::INTERRUPT | code::IOERR | code::FULL | code::CANTOPEN) => {
                    StoreError::Unavailable(Box::new(error))
                }
                _ => StoreError::Backend(Box::new(error)),
            }
        }
        _ => StoreError::Backend(Box::new(error)),
    }
}
