//! The descriptions of the REST surface and of the socket, as the server gives them.

use reqwest::Method;
use serde_json::Value;

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Returns the OpenAPI document of the server.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn openapi(&self) -> Result<Value, ClientError> {
        fetch(self.request(Method::GET, &["openapi.json"])).await
    }

    /// Returns the AsyncAPI document of the server.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn asyncapi(&self) -> Result<Value, ClientError> {
        fetch(self.request(Method::GET, &["asyncapi.json"])).await
    }
}
