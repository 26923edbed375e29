//! The coverage loop: finds pools with queued runs that no live worker serves, so that somebody hears of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::identity::PoolName;
use switchboard_store_api::{InstanceStore, StoreResult};

use crate::activation::Activity;
use crate::meters;

pub(crate) struct Coverage {
    pub(crate) instances: Arc<dyn InstanceStore>,
    /// The pools of the previous pass, which were told of.
    pub(crate) uncovered: BTreeSet<PoolName>,
}

#[async_trait]
impl Activity for Coverage {
    async fn run_once(&mut self) -> StoreResult<String> {
        let found = self.instances.uncovered_pools().await?;
        meters::uncovered_pools(found.len());
        for uncovered in found.iter().filter(|found| !self.uncovered.contains(&found.pool)) {
            let (pool, queued) = (&uncovered.pool, uncovered.queued);
            tracing::warn!(%pool, queued, "no live worker serves a pool that has queued runs");
        }
        let uncovered: BTreeSet<_> = found.into_iter().map(|found| found.pool).collect();
        for pool in self.uncovered.difference(&uncovered) {
            tracing::info!(%pool, "a pool that no worker served has no queued runs or a worker again");
        }
        self.uncovered = uncovered;
        Ok(format!("{} pools without a worker", self.uncovered.len()))
    }
}
