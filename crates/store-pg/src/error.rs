//! Translates errors of the driver into the one error of the stores, so that nobody above sees a driver type.

use sqlx::Error;
use switchboard_store_api::StoreError;

/// Says what a failed statement means to the caller.
pub(crate) fn fault(error: Error) -> StoreError {
    match &error {
        Error::Database(refusal) => match refusal.code().as_deref() {
            Some(code) if is_conflict(code) => StoreError::Conflict(error.into()),
            Some(code) if is_outage(code) => StoreError::Unavailable(error.into()),
            _ => StoreError::Backend(error.into()),
        },
        Error::Io(_)
        | Error::Tls(_)
        | Error::Protocol(_)
        | Error::PoolTimedOut
        | Error::PoolClosed
        | Error::WorkerCrashed
        | Error::BeginFailed => StoreError::Unavailable(error.into()),
        Error::ColumnDecode { .. } | Error::Decode(_) => StoreError::corrupt("row", &error),
        _ => StoreError::Backend(error.into()),
    }
}

/// Serialization failure, deadlock, lock timeout, and a unique key that somebody took in between.
fn is_conflict(code: &str) -> bool {
    matches!(code, "40001" | "40P01" | "55P03" | "23505")
}

/// Connection failures, exhausted resources, operator intervention (statement timeouts included), an
/// idle transaction that was ended, and a server that became read-only in a failover.
fn is_outage(code: &str) -> bool {
    ["08", "53", "57"].iter().any(|class| code.starts_with(class)) || matches!(code, "25P03" | "25006")
}
