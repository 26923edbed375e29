//! Settings of the whole fleet, kept in the database and obeyed by every replica within a second.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings that steer the schedulers and workers of every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FleetSettings {
    /// Whether due tasks become runs at all.
    pub scheduler_enabled: bool,
    /// Whether workers stop leasing runs.
    pub pause_all: bool,
}

impl Default for FleetSettings {
    fn default() -> Self {
        Self { scheduler_enabled: true, pause_all: false }
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
