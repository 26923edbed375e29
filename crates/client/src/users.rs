//! Users over REST, as administrators see them, and events targeted at users.

use reqwest::Method;
use switchboard_model::auth_session::AuthSession;
use switchboard_model::identity::{UserId, UserName};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::user::User;
use switchboard_model::wire::auth::{PasswordRequest, UserRequest, UserUpdate};
use switchboard_model::wire::frame::Published;
use switchboard_model::wire::rest::PublishRequest;

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

impl Client {
    /// Makes a user.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_user(&self, request: &UserRequest) -> Result<User, ClientError> {
        fetch(self.api(Method::POST, &["users"]).json(request)).await
    }

    /// Returns a page of all users.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_users(&self, page: PageRequest) -> Result<Page<User>, ClientError> {
        fetch(self.api_page(&["users"], &page)).await
    }

    /// Returns a user.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_user(&self, id: &UserId) -> Result<User, ClientError> {
        fetch(self.api(Method::GET, &["users", id.as_str()])).await
    }

    /// Returns the user who signs in as `name`, if there is one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn find_user(&self, name: &UserName) -> Result<Option<User>, ClientError> {
        let page: Page<User> = fetch(self.api(Method::GET, &["users"]).query(&[("name", name.as_str())])).await?;
        Ok(page.items.into_iter().next())
    }

    /// Edits a user, unless somebody did in between.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn update_user(&self, id: &UserId, update: &UserUpdate) -> Result<User, ClientError> {
        fetch(self.api(Method::PUT, &["users", id.as_str()]).json(update)).await
    }

    /// Sets the password of a user and ends all their sessions.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn set_user_password(&self, id: &UserId, request: &PasswordRequest) -> Result<(), ClientError> {
        send(self.api(Method::PUT, &["users", id.as_str(), "password"]).json(request)).await.map(drop)
    }

    /// Deletes a user with all their sessions.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_user(&self, id: &UserId) -> Result<(), ClientError> {
        send(self.api(Method::DELETE, &["users", id.as_str()])).await.map(drop)
    }

    /// Returns a page of the sign-in sessions of a user.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_user_sessions(&self, id: &UserId, page: PageRequest) -> Result<Page<AuthSession>, ClientError> {
        fetch(self.api_page(&["users", id.as_str(), "sessions"], &page)).await
    }

    /// Ends all sign-in sessions of a user.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn end_user_sessions(&self, id: &UserId) -> Result<(), ClientError> {
        send(self.api(Method::DELETE, &["users", id.as_str(), "sessions"])).await.map(drop)
    }

    /// Publishes an event to all sockets of a user, on whatever replica they are.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn publish_to_user(&self, user: &UserId, event: &PublishRequest) -> Result<Published, ClientError> {
        fetch(self.api(Method::POST, &["users", user.as_str(), "events"]).json(event)).await
    }
}
