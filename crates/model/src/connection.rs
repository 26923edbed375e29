//! Connections: the sockets of all replicas, as the database knows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::UserId;
use crate::ids::{ConnectionId, InstanceId};

/// A socket to be entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewConnection {
    /// The identity it will have.
    pub id: ConnectionId,
    /// The replica that serves it.
    pub instance: InstanceId,
    /// Whose it is.
    pub user_id: UserId,
}

/// A socket of a replica that is alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// The identity, as `hello` told it.
    pub id: ConnectionId,
    /// The replica that serves it.
    pub instance: InstanceId,
    /// Whose it is.
    pub user_id: UserId,
    /// When it was opened.
    pub since: Timestamp,
}
