//! Settings of the whole fleet.

use async_trait::async_trait;
use switchboard_model::setting::{FleetSettings, Versioned};

use crate::StoreResult;
use crate::context::WriteContext;

/// What writing a setting gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It was written; this is its new version.
    Written(i64),
    /// Somebody wrote it in between; this is its version now.
    VersionMismatch(i64),
}

/// Settings that steer every replica.
#[async_trait]
pub trait SettingStore: Send + Sync {
    /// Reads the fleet settings, or their defaults with version 0.
    ///
    /// # Errors
    /// Fails when the database does or the stored value cannot be read.
    async fn fleet(&self) -> StoreResult<Versioned<FleetSettings>>;

    /// Writes the fleet settings if they still have version `expected`, and signals the change
    /// under the key `fleet`.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn put_fleet(&self, context: &WriteContext, expected: i64, value: &FleetSettings) -> StoreResult<PutOutcome>;
}
