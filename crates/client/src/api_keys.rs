//! API keys over REST.

use reqwest::Method;
use switchboard_model::api_key::ApiKey;
use switchboard_model::ids::ApiKeyId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::wire::rest::{ApiKeyRequest, ApiKeyResponse};

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

impl Client {
    /// Makes an API key; its secret is shown this once.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_api_key(&self, request: &ApiKeyRequest) -> Result<ApiKeyResponse, ClientError> {
        fetch(self.api(Method::POST, &["api-keys"]).json(request)).await
    }

    /// Returns a page of all API keys.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_api_keys(&self, page: PageRequest) -> Result<Page<ApiKey>, ClientError> {
        fetch(self.api_page(&["api-keys"], &page)).await
    }

    /// Takes an API key out of use.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn revoke_api_key(&self, id: ApiKeyId) -> Result<(), ClientError> {
        send(self.api(Method::DELETE, &["api-keys", &id.to_string()])).await.map(drop)
    }
}
