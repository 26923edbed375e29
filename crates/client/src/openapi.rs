//! The description of the REST surface, as the server gives it.

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
}
