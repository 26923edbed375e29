//! Tickets over REST.

use reqwest::Method;
use switchboard_model::secret_text::SecretText;
use switchboard_model::wire::rest::{TicketRequest, TicketResponse};

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Mints a ticket, which opens one socket within 30 s.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn mint_ticket(&self, request: &TicketRequest) -> Result<SecretText, ClientError> {
        let response: TicketResponse = fetch(self.api(Method::POST, &["ws", "ticket"]).json(request)).await?;
        Ok(SecretText::from_presented(response.ticket))
    }
}
