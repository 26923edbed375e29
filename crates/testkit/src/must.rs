//! Turns errors of the test bed into panics that say what was being done.

/// What must have succeeded for a test to make sense.
pub(crate) trait Must<T> {
    /// Returns the value.
    ///
    /// # Panics
    /// Panics with `what` and the chain of causes.
    fn must(self, what: &str) -> T;
}

impl<T, E: Into<anyhow::Error>> Must<T> for Result<T, E> {
    #[track_caller]
    fn must(self, what: &str) -> T {
        match self {
            Ok(value) => value,
            Err(error) => panic!("{what}: {:#}", error.into()),
        }
    }
}
