//! Where a socket that reconnects gets its tickets from.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use switchboard_model::secret_text::SecretText;

use crate::client::Client;
use crate::error::ClientError;

/// Gives a fresh ticket for each connection.
///
/// Async functions of the replica that is about to be connected to are sources:
/// `|replica: Client| async move { replica.mint_ticket(&request).await }`.
pub trait TicketSource: Send + Sync + 'static {
    /// Gives a ticket that `replica` will accept.
    fn ticket(&self, replica: Client) -> BoxFuture<'_, Result<SecretText, ClientError>>;
}

impl<F, R> TicketSource for F
where
    F: Fn(Client) -> R + Send + Sync + 'static,
    R: Future<Output = Result<SecretText, ClientError>> + Send + 'static,
{
    fn ticket(&self, replica: Client) -> BoxFuture<'_, Result<SecretText, ClientError>> {
        self(replica).boxed()
    }
}
