//! Live replicas over REST.

use switchboard_model::instance::Instance;
use switchboard_model::page::{Page, PageRequest};

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Returns a page of the replicas that are alive.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_instances(&self, page: PageRequest) -> Result<Page<Instance>, ClientError> {
        fetch(self.api_page(&["instances"], &page)).await
    }
}
