//! Sign-in over REST, and what users do with their own account.

use reqwest::Method;
use switchboard_model::auth_session::AuthSession;
use switchboard_model::ids::SessionId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::wire::auth::{LoginRequest, LogoutRequest, Me, PasswordRequest, RefreshRequest, TokenResponse};

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

impl Client {
    /// Makes an account, where that is on, and signs its owner in. What this client presents is not sent.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn register(&self, request: &LoginRequest) -> Result<TokenResponse, ClientError> {
        fetch(self.with_credential(None).api(Method::POST, &["auth", "register"]).json(request)).await
    }

    /// Signs a user in. What this client presents is not sent; [`Client::with_credential`] takes the access token.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn login(&self, request: &LoginRequest) -> Result<TokenResponse, ClientError> {
        fetch(self.with_credential(None).api(Method::POST, &["auth", "login"]).json(request)).await
    }

    /// Exchanges the latest refresh token for new tokens. What this client presents is not sent.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn refresh(&self, request: &RefreshRequest) -> Result<TokenResponse, ClientError> {
        fetch(self.with_credential(None).api(Method::POST, &["auth", "refresh"]).json(request)).await
    }

    /// Signs the user out, here or everywhere.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn logout(&self, request: &LogoutRequest) -> Result<(), ClientError> {
        send(self.api(Method::POST, &["auth", "logout"]).json(request)).await.map(drop)
    }

    /// Returns who this client is to the server, and what it may do.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn me(&self) -> Result<Me, ClientError> {
        fetch(self.api(Method::GET, &["auth", "me"])).await
    }

    /// Returns a page of the user's own sign-in sessions.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_own_sessions(&self, page: PageRequest) -> Result<Page<AuthSession>, ClientError> {
        fetch(self.api_page(&["auth", "sessions"], &page)).await
    }

    /// Ends one of the user's own sign-in sessions.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn end_own_session(&self, id: SessionId) -> Result<(), ClientError> {
        send(self.api(Method::DELETE, &["auth", "sessions", &id.to_string()])).await.map(drop)
    }

    /// Changes the user's own password and ends their other sessions.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn change_password(&self, request: &PasswordRequest) -> Result<(), ClientError> {
        send(self.api(Method::POST, &["auth", "password"]).json(request)).await.map(drop)
    }
}
