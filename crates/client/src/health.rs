//! Probes and metrics, which lie outside the versioned surface.

use reqwest::Method;

use crate::client::{Client, send};
use crate::error::ClientError;

impl Client {
    /// Succeeds while the process lives.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn live(&self) -> Result<(), ClientError> {
        send(self.request(Method::GET, &["healthz", "live"])).await.map(drop)
    }

    /// Succeeds while the replica takes traffic; otherwise the error carries the checks that failed.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ready(&self) -> Result<(), ClientError> {
        send(self.request(Method::GET, &["healthz", "ready"])).await.map(drop)
    }

    /// Returns the metrics in the text form of Prometheus.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let text = send(self.request(Method::GET, &["metrics"])).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
