//! The test clock and the outbox over REST.

use reqwest::Method;
use switchboard_model::outbox::FailedEntry;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::wire::test_clock::{TestClockMove, TestClockReport, TestClockState};

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Returns where the test clock stands and what is due next.
    ///
    /// # Errors
    /// See [`ClientError`]; a server without a test clock refuses.
    pub async fn test_clock(&self) -> Result<TestClockState, ClientError> {
        fetch(self.api(Method::GET, &["test-clock"])).await
    }

    /// Moves the test clock forward, as far as it comes within the time of a request.
    ///
    /// # Errors
    /// See [`ClientError`]; a server without a test clock refuses.
    pub async fn move_test_clock(&self, to: &TestClockMove) -> Result<TestClockReport, ClientError> {
        fetch(self.api(Method::POST, &["test-clock"]).json(to)).await
    }

    /// Returns a page of what applications have left in their transactions and could not take effect, newest first.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_failed_entries(&self, page: PageRequest) -> Result<Page<FailedEntry>, ClientError> {
        fetch(self.api_page(&["outbox", "failed"], &page)).await
    }
}
