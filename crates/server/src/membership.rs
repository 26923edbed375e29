//! Membership of this replica in the fleet: its row in the database, renewed while it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use switchboard_events::{FeedObserver, Hub};
use switchboard_model::feed::Tick;
use switchboard_model::ids::InstanceId;
use switchboard_model::instance::NewInstance;
use switchboard_model::span::Span;
use switchboard_store_api::{StoreResult, Stores};
use tokio_util::sync::CancellationToken;

/// How long a replica counts as alive without a renewal.
const LEASE: Span = Span::from_secs(10);

/// How often the row is renewed; also the bound on the writes of an idle replica.
const RENEW_PERIOD: Duration = Duration::from_secs(3);

/// The row of this replica.
pub(crate) struct Membership {
    stores: Stores,
    hub: Arc<Hub>,
    instance: Mutex<NewInstance>,
    /// Whether the lease of some replica has ended, as of the latest tick of the feed.
    has_expired: AtomicBool,
}

impl FeedObserver for Membership {
    fn observe(&self, tick: &Tick) {
        if tick.next.instance.is_some_and(|expires_at| expires_at <= tick.now) {
            self.has_expired.store(true, Ordering::Relaxed);
        }
    }
}

impl Membership {
    /// Announces this replica.
    pub(crate) async fn register(stores: Stores, hub: Arc<Hub>, instance: NewInstance) -> StoreResult<Self> {
        let lease = if stores.capabilities.needs_instance_lease {
            LEASE
        } else {
            // The only process of its database: whoever is listed is from before its boot.
            for gone in stores.instances.list().await? {
                stores.instances.deregister(&gone.id).await?;
            }
            Span::MAX
        };
        stores.instances.register(&instance, lease).await?;
        Ok(Self { stores, hub, instance: Mutex::new(instance), has_expired: AtomicBool::new(true) })
    }

    fn id(&self) -> InstanceId {
        self.instance.lock().id.clone()
    }

    /// Renews the row and sweeps those of dead replicas, until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        if !self.stores.capabilities.needs_instance_lease {
            return;
        }
        let mut is_failing = false;
        while stop.run_until_cancelled(tokio::time::sleep(RENEW_PERIOD)).await.is_some() {
            match self.renew().await {
                Ok(()) => is_failing = false,
                Err(error) if !is_failing => {
                    is_failing = true;
                    tracing::warn!(%error, "the row of this replica cannot be renewed");
                }
                Err(_) => {}
            }
        }
    }

    async fn renew(&self) -> StoreResult<()> {
        if !self.stores.instances.renew(&self.id(), LEASE).await? {
            self.rejoin().await?;
        }
        if self.has_expired.swap(false, Ordering::Relaxed) {
            for gone in self.stores.instances.sweep().await? {
                tracing::warn!(instance = %gone, "a replica is gone");
            }
        }
        Ok(())
    }

    /// Comes back under a new identity after the others have given this replica up.
    async fn rejoin(&self) -> StoreResult<()> {
        tracing::warn!(instance = %self.id(), "this replica was given up by the others and joins anew");
        let instance = {
            let mut instance = self.instance.lock();
            instance.id = InstanceId::boot(&instance.name);
            instance.clone()
        };
        self.hub.rejoin(instance.id.clone());
        self.stores.instances.register(&instance, LEASE).await
    }

    /// Takes this replica off the list.
    pub(crate) async fn leave(&self) {
        if let Err(error) = self.stores.instances.deregister(&self.id()).await {
            tracing::warn!(%error, "this replica could not take itself off the list");
        }
    }
}
