//! Single-use tickets.

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::ticket::{NewTicket, Ticket};

use crate::StoreResult;
use crate::context::{WriteContext, Written};

/// What burning a ticket gave. However it ends, the ticket is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BurnOutcome {
    /// The ticket was valid.
    Burned(Ticket),
    /// The ticket had expired.
    Expired,
    /// There is no such ticket, or it was burned before.
    Unknown,
}

/// Tickets, stored by their hash. They always use real database time.
#[async_trait]
pub trait TicketStore: Send + Sync {
    /// Stores a ticket and returns when it expires. A once-key remembers that a ticket was made, under a
    /// random identity: the secret itself cannot be shown again.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn issue(&self, context: &WriteContext, ticket: &NewTicket) -> StoreResult<Written<Timestamp>>;

    /// Deletes a ticket and returns what it was; of any number of parallel callers one gets it.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn burn(&self, hash: SecretHash) -> StoreResult<BurnOutcome>;

    /// Deletes up to `limit` expired tickets and returns how many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;
}
