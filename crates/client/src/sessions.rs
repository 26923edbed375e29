//! Open sockets over REST.

use reqwest::Method;
use switchboard_model::connection::Connection;
use switchboard_model::identity::UserId;
use switchboard_model::ids::ConnectionId;
use switchboard_model::page::{Page, PageRequest};

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

impl Client {
    /// Returns a page of the open sockets, of one user or of all.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_sessions(
        &self,
        user: Option<&UserId>,
        page: PageRequest,
    ) -> Result<Page<Connection>, ClientError> {
        fetch(self.api_page(&["sessions"], &page).query(&[("user_id", user)])).await
    }

    /// Closes a socket for good, whichever replica serves it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn kick_session(&self, id: ConnectionId) -> Result<(), ClientError> {
        send(self.api(Method::DELETE, &["sessions", &id.to_string()])).await.map(drop)
    }
}
