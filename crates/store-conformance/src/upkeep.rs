//! The pool of upkeep, which a pause of the fleet leaves alone.

use switchboard_model::identity::PoolName;
use switchboard_model::ids::RunId;
use switchboard_model::run::RunState;
use switchboard_model::setting::FleetSettings;
use switchboard_store_api::{LeaseRequest, Stores};

use crate::Backend;
use crate::fixtures::{LONG, request, spec, states, system, triggered};
use crate::pool_limits::limit;

async fn leased(stores: &Stores) -> Vec<RunId> {
    let pools = vec![PoolName::default_pool(), PoolName::system_pool()];
    let batch = stores.runs.lease(&LeaseRequest { pools, ..request(10, LONG) }).await.unwrap();
    batch.runs.iter().map(|run| run.id).collect()
}

pub(crate) async fn upkeep_goes_on_while_the_fleet_is_paused(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let paused = FleetSettings { pause_all: true, ..FleetSettings::default() };
    stores.settings.put_fleet(&system(), 0, &paused).await.unwrap();
    let held_back = triggered(&stores, &spec("work", |_| {}), 2).await;
    let upkeep = triggered(&stores, &spec("upkeep", |spec| spec.pool = PoolName::system_pool()), 2).await;
    assert_eq!(leased(&stores).await, upkeep);
    assert_eq!(states(&stores, &held_back).await, [RunState::Queued; 2]);
    assert_eq!(leased(&stores).await, []);

    // Whoever wants it can pause the pool itself.
    limit(&stores, &[("system", 0)]).await;
    let upkeep = triggered(&stores, &spec("more", |spec| spec.pool = PoolName::system_pool()), 1).await;
    assert_eq!(leased(&stores).await, held_back);
    assert_eq!(states(&stores, &upkeep).await, [RunState::Queued]);
}
