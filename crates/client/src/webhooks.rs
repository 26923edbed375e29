//! Webhooks over REST: their secrets, and deliveries as a sender makes them.

use std::time::{SystemTime, UNIX_EPOCH};

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::{TaskId, WebhookSecretId};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::Page;
use switchboard_model::secret_text::SecretText;
use switchboard_model::webhook::WebhookSecret;
use switchboard_model::webhook_signature::{SignedDelivery, WebhookKey, WebhookKeyError};
use switchboard_model::wire::rest::{WebhookResponse, WebhookSecretRequest, WebhookSecretResponse};

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

/// Signs a delivery as Standard Webhooks says: the value of the header `webhook-signature`. The timestamp is in
/// seconds since 1970.
///
/// # Errors
/// Fails for a secret that is not `whsec_` and base64 of 24 to 64 bytes.
pub fn webhook_signature(
    secret: &SecretText,
    id: &str,
    timestamp: i64,
    body: &[u8],
) -> Result<String, WebhookKeyError> {
    Ok(secret.expose().parse::<WebhookKey>()?.sign(&SignedDelivery { id, timestamp, body }))
}

/// One delivery of a message to a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookDelivery {
    /// The identity of the message: every delivery of the same message has it.
    pub id: String,
    /// When it is sent, in seconds since 1970.
    pub timestamp: i64,
    /// What the body is.
    pub content_type: String,
    /// The body.
    pub body: Vec<u8>,
}

impl WebhookDelivery {
    /// Makes a delivery of a JSON message that is sent now, by the clock of this machine.
    #[must_use]
    pub fn of_json(id: impl Into<String>, body: &JsonText) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a sender signs by its own clock")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            id: id.into(),
            timestamp: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            content_type: "application/json".to_owned(),
            body: body.as_str().as_bytes().to_vec(),
        }
    }
}

impl Client {
    /// Delivers a message to the webhook of a task, signed by one of its secrets. No API key is sent.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Url`] for a secret that is none.
    pub async fn send_webhook(
        &self,
        task: &TaskName,
        secret: &SecretText,
        delivery: &WebhookDelivery,
    ) -> Result<WebhookResponse, ClientError> {
        let WebhookDelivery { id, timestamp, content_type, body } = delivery;
        let signature = webhook_signature(secret, id, *timestamp, body)
            .map_err(|error| ClientError::Url(format!("the webhook secret {error}")))?;
        let request = self
            .with_credential(None)
            .request(Method::POST, &["hooks", task.as_str()])
            .header("webhook-id", id)
            .header("webhook-timestamp", *timestamp)
            .header("webhook-signature", signature)
            .header(CONTENT_TYPE, content_type);
        fetch(request.body(body.clone())).await
    }

    /// Returns where the deliveries for a task are sent to.
    #[must_use]
    pub fn webhook_url(&self, task: &TaskName) -> String {
        self.url(&["hooks", task.as_str()]).into()
    }

    /// Makes a secret of a task, for webhooks that it receives or requests that it sends, or takes over one that the
    /// other side has.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_webhook_secret(
        &self,
        task: TaskId,
        request: &WebhookSecretRequest,
    ) -> Result<WebhookSecretResponse, ClientError> {
        fetch(self.api(Method::POST, &["tasks", &task.to_string(), "webhook-secrets"]).json(request)).await
    }

    /// Returns the secrets of a task, without what is secret about them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_webhook_secrets(&self, task: TaskId) -> Result<Vec<WebhookSecret>, ClientError> {
        let page: Page<_> = fetch(self.api(Method::GET, &["tasks", &task.to_string(), "webhook-secrets"])).await?;
        Ok(page.items)
    }

    /// Deletes a secret of a task.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_webhook_secret(&self, task: TaskId, id: WebhookSecretId) -> Result<(), ClientError> {
        let path = ["tasks", &task.to_string(), "webhook-secrets", &id.to_string()];
        send(self.api(Method::DELETE, &path)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_what_the_reference_library_makes() {
        let secret = SecretText::from_presented(format!("whsec_{}", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
        let reference = standardwebhooks::Webhook::new(secret.expose()).unwrap();
        let theirs = reference.sign("msg_1", 1_700_000_000, br#"{"a":1}"#).unwrap();
        assert_eq!(webhook_signature(&secret, "msg_1", 1_700_000_000, br#"{"a":1}"#).unwrap(), theirs);
        let none = SecretText::from_presented("hunter2".to_owned());
        assert_eq!(webhook_signature(&none, "msg_1", 1, b""), Err(WebhookKeyError));
    }
}
