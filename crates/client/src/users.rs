//! Events targeted at users, over REST.

use reqwest::Method;
use switchboard_model::identity::UserId;
use switchboard_model::wire::frame::Published;
use switchboard_model::wire::rest::PublishRequest;

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Publishes an event to all sockets of a user, on whatever replica they are.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn publish_to_user(&self, user: &UserId, event: &PublishRequest) -> Result<Published, ClientError> {
        fetch(self.api(Method::POST, &["users", user.as_str(), "events"]).json(event)).await
    }
}
