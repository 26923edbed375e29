//! Settings of the whole fleet, kept in the database and obeyed by every replica within a second.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::PoolName;

/// Settings that steer the schedulers and workers of every replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FleetSettings {
    /// Whether due tasks become runs at all.
    pub scheduler_enabled: bool,
    /// Whether workers stop leasing runs; the upkeep of the server, in the pool `system`, goes on.
    pub pause_all: bool,
    /// What holds for single pools; those that are not named have no maximum.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<PoolName, PoolSettings>,
}

/// What holds for one pool on all replicas together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PoolSettings {
    /// The most runs at the same time; 0 pauses the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = Self::MOST_RUNNING))]
    pub max_running: Option<u32>,
}

impl FleetSettings {
    /// The most pools that settings can name.
    pub const MOST_POOLS: usize = 1_000;
}

impl PoolSettings {
    /// The highest maximum of a pool.
    pub const MOST_RUNNING: u32 = 1_000_000;
}

impl Default for FleetSettings {
    fn default() -> Self {
        Self { scheduler_enabled: true, pause_all: false, pools: BTreeMap::new() }
    }
}

/// A stored value and the number of times it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Versioned{T}")]
pub struct Versioned<T> {
    /// Zero for a value that was never written.
    pub version: i64,
    /// The value.
    pub value: T,
}
