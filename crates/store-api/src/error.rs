//! The one error of every store.

/// What every store method returns.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why a store operation did not happen. Losing an ordinary race is an outcome, never an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operation collided with another and was rolled back; trying again may succeed.
    #[error("conflicting concurrent change")]
    Conflict(#[source] Source),
    /// The caller's lease was lost; nothing was changed.
    #[error("the lease was lost")]
    Fenced,
    /// A stored row cannot be read by this binary.
    #[error("stored {what} cannot be read: {detail}")]
    Corrupt {
        /// Which kind of row.
        what: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// The database cannot be reached, or gave no answer in time.
    #[error("the database is unavailable")]
    Unavailable(#[source] Source),
    /// The database refused the operation.
    #[error("the database failed")]
    Backend(#[source] Source),
}

/// The cause below the seam.
type Source = Box<dyn std::error::Error + Send + Sync>;

impl StoreError {
    /// What [`StoreError::Corrupt`] names when a list is asked for with a cursor that was not made here.
    pub const PAGE_CURSOR: &'static str = "page cursor";

    /// Reports a stored row that cannot be read.
    pub fn corrupt(what: &'static str, detail: impl std::fmt::Display) -> Self {
        Self::Corrupt { what, detail: detail.to_string() }
    }

    /// Tells whether the same operation may succeed later without any change by the caller.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::Unavailable(_))
    }
}
