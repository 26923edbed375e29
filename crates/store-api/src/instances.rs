//! Live replicas and their leases.

use async_trait::async_trait;
use switchboard_model::ids::InstanceId;
use switchboard_model::instance::{Instance, NewInstance, UncoveredPool};
use switchboard_model::span::Span;

use crate::StoreResult;

/// The replicas that are alive. A replica renews its row well before the lease ends.
#[async_trait]
pub trait InstanceStore: Send + Sync {
    /// Announces a replica for the length of the lease and signals the change.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn register(&self, instance: &NewInstance, lease: Span) -> StoreResult<()>;

    /// Prolongs the lease of a live replica. `false` means that it had expired or was swept: the
    /// replica must register under a new identity.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn renew(&self, id: &InstanceId, lease: Span) -> StoreResult<bool>;

    /// Takes a replica off the list at its graceful stop and signals the change.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn deregister(&self, id: &InstanceId) -> StoreResult<()>;

    /// Deletes expired replicas, each re-checked under its lock, signals them and returns them.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self) -> StoreResult<Vec<InstanceId>>;

    /// Lists the replicas that are not expired, oldest first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self) -> StoreResult<Vec<Instance>>;

    /// Lists the pools, by name, that have queued runs and that no live replica with the role `worker` serves. Runs for
    /// external workers do not count, and every worker serves [`PoolName::SYSTEM`](switchboard_model::identity::PoolName::SYSTEM).
    ///
    /// # Errors
    /// Fails when the database does.
    async fn uncovered_pools(&self) -> StoreResult<Vec<UncoveredPool>>;
}
