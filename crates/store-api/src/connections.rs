//! The sockets of all replicas.

use async_trait::async_trait;
use switchboard_model::connection::{Connection, NewConnection};
use switchboard_model::identity::UserId;
use switchboard_model::ids::{ConnectionId, InstanceId};
use switchboard_model::page::{Page, PageRequest};

use crate::StoreResult;
use crate::context::WriteContext;

/// What entering a socket gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectOutcome {
    /// The socket counts.
    Connected,
    /// The user has as many sockets as allowed; nothing was changed.
    TooMany,
}

/// Sockets. A row counts while the lease of its replica lasts: [`crate::InstanceStore::sweep`] and
/// [`crate::InstanceStore::deregister`] delete the rest, with the presence that hangs on it.
#[async_trait]
pub trait ConnectionStore: Send + Sync {
    /// Enters a batch of sockets in one commit and returns one outcome for each, in order. A user has at most `most`
    /// sockets of live replicas, also when several are entered at once on different replicas. Signals
    /// `ConnectionsChanged` for each user.
    ///
    /// # Errors
    /// [`crate::StoreError::Fenced`] when one of the replicas is not on the list any more; fails when the database does.
    async fn connect(&self, connections: &[NewConnection], most: u32) -> StoreResult<Vec<ConnectOutcome>>;

    /// Takes sockets off the list in one commit; unknown ones are passed over. Their presence ends after
    /// [`switchboard_model::presence::PRESENCE_GRACE`]. Signals `ConnectionsChanged` for each user.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn disconnect(&self, connections: &[ConnectionId]) -> StoreResult<()>;

    /// Lists the sockets of live replicas, of one user or of all, in the order of their ids, which is that of their
    /// opening.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, user: Option<&UserId>, page: &PageRequest) -> StoreResult<Page<Connection>>;

    /// Takes a socket off the list as [`ConnectionStore::disconnect`] does and tells its replica to close it for good:
    /// signals `Kicked`, with an audit entry. `false` means that there is no such socket.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn kick(&self, context: &WriteContext, connection: ConnectionId) -> StoreResult<bool>;

    /// Returns which of these sockets of a replica are not on the list, though the replica is: those that were kicked,
    /// for a replica that may have missed the signal. A replica that is gone itself has lost its sockets otherwise, and
    /// none is returned.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn kicked(&self, instance: &InstanceId, connections: &[ConnectionId]) -> StoreResult<Vec<ConnectionId>>;
}
