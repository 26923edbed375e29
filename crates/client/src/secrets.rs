//! Named secrets, the keys that encrypt them, and tokens of providers over REST.

use reqwest::Method;
use switchboard_model::identity::{SecretName, TokenName};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::wire::secret::{
    RewrapReport, RewrapRequest, SealingReport, Secret, SecretRequest, Token, TokenAccess, TokenAccessRequest,
    TokenSetRequest,
};

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

impl Client {
    /// Sets a secret.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put_secret(&self, name: &SecretName, request: &SecretRequest) -> Result<Secret, ClientError> {
        fetch(self.api(Method::PUT, &["secrets", name.as_str()]).json(request)).await
    }

    /// Returns a secret without its value.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_secret(&self, name: &SecretName) -> Result<Secret, ClientError> {
        fetch(self.api(Method::GET, &["secrets", name.as_str()])).await
    }

    /// Returns a page of all secrets, without their values.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_secrets(&self, page: PageRequest) -> Result<Page<Secret>, ClientError> {
        fetch(self.api_page(&["secrets"], &page)).await
    }

    /// Deletes a secret.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_secret(&self, name: &SecretName) -> Result<(), ClientError> {
        send(self.api(Method::DELETE, &["secrets", name.as_str()])).await.map(drop)
    }

    /// Tells which key encrypts how many stored values.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn sealing(&self) -> Result<SealingReport, ClientError> {
        fetch(self.api(Method::GET, &["sealing"])).await
    }

    /// Encrypts a stretch of stored values anew; to be called until nothing is left.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn rewrap(&self, request: &RewrapRequest) -> Result<RewrapReport, ClientError> {
        fetch(self.api(Method::POST, &["sealing", "rewrap"]).json(request)).await
    }

    /// Sets a token of a provider.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put_token(&self, name: &TokenName, request: &TokenSetRequest) -> Result<Token, ClientError> {
        fetch(self.api(Method::PUT, &["tokens", name.as_str()]).json(request)).await
    }

    /// Returns a token without what is secret about it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_token(&self, name: &TokenName) -> Result<Token, ClientError> {
        fetch(self.api(Method::GET, &["tokens", name.as_str()])).await
    }

    /// Returns a page of all tokens, without what is secret about them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_tokens(&self, page: PageRequest) -> Result<Page<Token>, ClientError> {
        fetch(self.api_page(&["tokens"], &page)).await
    }

    /// Deletes a token.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_token(&self, name: &TokenName) -> Result<(), ClientError> {
        send(self.api(Method::DELETE, &["tokens", name.as_str()])).await.map(drop)
    }

    /// Returns an access token, which is renewed when it is too old.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn token_access(
        &self,
        name: &TokenName,
        request: &TokenAccessRequest,
    ) -> Result<TokenAccess, ClientError> {
        fetch(self.api(Method::POST, &["tokens", name.as_str(), "access"]).json(request)).await
    }
}
