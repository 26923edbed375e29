//! Replicas as they announce themselves to each other.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::PoolName;
use crate::ids::InstanceId;

/// What a replica does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Serves HTTP and sockets.
    Api,
    /// Fires due tasks and recovers runs.
    Scheduler,
    /// Executes runs.
    Worker,
}

impl Role {
    /// Every role, which is also the default of a replica.
    pub const ALL: [Self; 3] = [Self::Api, Self::Scheduler, Self::Worker];

    /// Returns the text form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text is not a [`Role`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown role {0:?}; known are api, scheduler, worker")]
pub struct RoleError(String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| RoleError(text.to_owned()))
    }
}

/// A replica announcing itself.
#[derive(Clone, Debug)]
pub struct NewInstance {
    /// Its identity, new at every boot.
    pub id: InstanceId,
    /// Its configured name.
    pub name: String,
    /// The version of its binary.
    pub version: String,
    /// The newest migration that its binary knows.
    pub schema_version: i64,
    /// What it does.
    pub roles: Vec<Role>,
    /// The pools its worker serves.
    pub pools: Vec<PoolName>,
    /// The most database connections it opens.
    pub pool_size: u32,
    /// What tells whether another replica has the same secret keys, and nothing about the keys; empty where nobody
    /// compares.
    pub key_check: String,
}

/// A pool that has queued runs for replicas, and no live replica that serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UncoveredPool {
    /// The pool.
    pub pool: PoolName,
    /// How many runs are queued in it.
    pub queued: u64,
}

/// One page of the live replicas, and what they leave undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstancePage {
    /// The replicas, oldest first.
    pub items: Vec<Instance>,
    /// Asks for the next page; absent on the last.
    pub next_cursor: Option<String>,
    /// The pools that have queued runs and no live worker. Runs of `pull` tasks do not count, since programs outside
    /// take them.
    #[serde(default)]
    pub uncovered_pools: Vec<UncoveredPool>,
}

/// A replica as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Instance {
    /// Its identity, new at every boot.
    pub id: InstanceId,
    /// Its configured name.
    pub name: String,
    /// The version of its binary.
    pub version: String,
    /// The newest migration that its binary knows.
    pub schema_version: i64,
    /// What it does.
    pub roles: Vec<Role>,
    /// The pools its worker serves.
    pub pools: Vec<PoolName>,
    /// The most database connections it opens.
    pub pool_size: u32,
    /// When it announced itself.
    pub started_at: Timestamp,
    /// When it counts as gone unless it renews.
    pub expires_at: Timestamp,
    /// What tells whether another replica has the same secret keys; empty where its release wrote none.
    #[serde(skip)]
    pub key_check: String,
}
