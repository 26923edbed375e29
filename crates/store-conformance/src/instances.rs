//! Live replicas and their leases.

use switchboard_model::ids::InstanceId;
use switchboard_model::instance::{NewInstance, Role};
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;

use crate::Backend;
use crate::fixtures::{LONG, SHORT, database_time, new_instance, spec, triggered, until};

pub(crate) async fn a_registered_replica_is_listed_as_it_announced_itself(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let new = NewInstance {
        pools: vec!["default".parse().unwrap(), "heavy".parse().unwrap()],
        schema_version: 1 << 40,
        ..new_instance("one", &[Role::Api, Role::Worker])
    };
    let before = database_time(&stores).await;
    stores.instances.register(&new, LONG).await.unwrap();
    let listed = stores.instances.list().await.unwrap();
    let [found] = listed.as_slice() else { panic!("one replica expected, found {listed:?}") };
    assert_eq!((&found.id, &found.name, &found.version), (&new.id, &new.name, &new.version));
    assert_eq!((found.schema_version, found.pool_size), (new.schema_version, new.pool_size));
    assert_eq!(found.key_check, new.key_check);
    assert_eq!((&found.roles, &found.pools), (&new.roles, &new.pools));
    let after = database_time(&stores).await;
    assert!(before <= found.started_at && found.started_at <= after);
    assert!(found.started_at + LONG.to_delta() <= found.expires_at && found.expires_at <= after + LONG.to_delta());
}

pub(crate) async fn replicas_are_listed_oldest_first_until_they_leave(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut ids = Vec::new();
    for name in ["c", "a", "b"] {
        let new = new_instance(name, &Role::ALL);
        stores.instances.register(&new, LONG).await.unwrap();
        ids.push(new.id);
    }
    let listed = async || {
        let listed = stores.instances.list().await.unwrap();
        listed.into_iter().map(|instance| instance.id).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, ids);
    stores.instances.deregister(&ids.remove(1)).await.unwrap();
    assert_eq!(listed().await, ids);
    stores.instances.deregister(&InstanceId::boot("unknown")).await.unwrap();
    assert_eq!(listed().await, ids);
}

pub(crate) async fn a_live_lease_can_be_prolonged(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let new = new_instance("one", &Role::ALL);
    stores.instances.register(&new, Span::from_secs(60)).await.unwrap();
    let before = stores.instances.list().await.unwrap().remove(0);
    assert!(stores.instances.renew(&new.id, LONG).await.unwrap());
    let after = stores.instances.list().await.unwrap().remove(0);
    assert!(after.expires_at > before.expires_at);
    assert_eq!(after.started_at, before.started_at);
    assert!(!stores.instances.renew(&InstanceId::boot("unknown"), LONG).await.unwrap());
}

pub(crate) async fn an_expired_replica_is_gone_for_good(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let lost = new_instance("lost", &Role::ALL);
    let live = new_instance("live", &Role::ALL);
    stores.instances.register(&lost, SHORT).await.unwrap();
    stores.instances.register(&live, LONG).await.unwrap();
    let listed = until(async || stores.instances.list().await.unwrap(), |listed| listed.len() == 1).await;
    assert_eq!(listed[0].id, live.id);
    assert!(!stores.instances.renew(&lost.id, LONG).await.unwrap(), "expired is final");
    assert_eq!(stores.instances.sweep().await.unwrap(), std::slice::from_ref(&lost.id));
    assert_eq!(stores.instances.sweep().await.unwrap(), []);
    assert!(!stores.instances.renew(&lost.id, LONG).await.unwrap());
    assert!(stores.instances.renew(&live.id, LONG).await.unwrap());
}

pub(crate) async fn a_pool_with_queued_runs_and_no_live_worker_is_uncovered(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let uncovered = async || {
        let found = stores.instances.uncovered_pools().await.unwrap();
        found.into_iter().map(|found| (found.pool.to_string(), found.queued)).collect::<Vec<_>>()
    };
    assert_eq!(uncovered().await, []);
    let of = |name: &str, pool: &str| spec(name, |spec| spec.pool = pool.parse().unwrap());
    triggered(&stores, &of("one", "heavy"), 2).await;
    triggered(&stores, &of("two", "light"), 1).await;
    triggered(&stores, &of("three", "system"), 1).await;
    let pull = |spec: &mut TaskSpec| {
        spec.pool = "outside".parse().unwrap();
        spec.action = serde_json::from_str(r#"{"pull":{}}"#).unwrap();
    };
    triggered(&stores, &spec("four", pull), 1).await;
    let (heavy, light, system) = (("heavy".to_owned(), 2), ("light".to_owned(), 1), ("system".to_owned(), 1));
    assert_eq!(uncovered().await, [heavy.clone(), light.clone(), system.clone()]);

    let serving = |name: &str, roles: &[Role]| NewInstance {
        pools: vec!["heavy".parse().unwrap(), "heav".parse().unwrap()],
        ..new_instance(name, roles)
    };
    stores.instances.register(&serving("api", &[Role::Api, Role::Scheduler]), LONG).await.unwrap();
    assert_eq!(uncovered().await, [heavy.clone(), light.clone(), system.clone()], "nobody of them executes");
    let worker = serving("worker", &[Role::Worker]);
    stores.instances.register(&worker, LONG).await.unwrap();
    assert_eq!(uncovered().await, std::slice::from_ref(&light), "each worker serves the pool of upkeep");
    stores.instances.deregister(&worker.id).await.unwrap();
    let dying = serving("dying", &Role::ALL);
    stores.instances.register(&dying, SHORT).await.unwrap();
    let seen = until(uncovered, |seen| seen.len() == 3).await;
    assert_eq!(seen, [heavy, light, system], "an expired replica serves nothing");
}
