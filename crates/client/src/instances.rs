//! Live replicas over REST.

use switchboard_model::instance::InstancePage;
use switchboard_model::page::PageRequest;

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Returns a page of the replicas that are alive, with the pools that have queued runs and no live worker.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_instances(&self, page: PageRequest) -> Result<InstancePage, ClientError> {
        fetch(self.api_page(&["instances"], &page)).await
    }
}
