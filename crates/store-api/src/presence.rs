//! Who shows themselves in which room.

use async_trait::async_trait;
use switchboard_model::connection::NewConnection;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::ConnectionId;
use switchboard_model::presence::Presence;

use crate::StoreResult;

/// A socket that comes to or leaves a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresenceChange {
    /// The user of the socket shows themselves in the room.
    Enter {
        /// The room.
        room: RoomName,
        /// The socket.
        connection: NewConnection,
    },
    /// The socket left the room on purpose; no grace applies.
    Leave {
        /// The room.
        room: RoomName,
        /// The socket.
        connection: ConnectionId,
    },
}

/// Presence. Somebody is present in a room while a socket of theirs on a live replica is entered there, and for
/// [`switchboard_model::presence::PRESENCE_GRACE`] after such a socket was disconnected.
#[async_trait]
pub trait PresenceStore: Send + Sync {
    /// Applies a batch of changes in order, in one commit; a socket that is not entered in
    /// [`crate::ConnectionStore`] any more cannot enter a room. Signals `PresenceChanged` once for each room that has
    /// changed; what changes nothing writes nothing.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn change(&self, changes: &[PresenceChange]) -> StoreResult<()>;

    /// Reads who is in each of these rooms, in their order.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn read(&self, rooms: &[RoomName]) -> StoreResult<Vec<Presence>>;

    /// Deletes up to `limit` rows whose grace has ended and signals their rooms; returns how many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;
}
