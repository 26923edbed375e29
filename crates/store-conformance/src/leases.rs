//! Leases: named ownership that expires.

use switchboard_model::identity::ClientKey;
use switchboard_model::lease::{Lease, LeaseHold, NewLease};
use switchboard_model::span::Span;
use switchboard_store_api::{AcquireOutcome, LeaseRenewal, Stores};

use crate::Backend;
use crate::fixtures::{HOUR, LONG, SHORT, database_time, json, pages, replicas, system, wait_past};

/// Parses a key.
pub(crate) fn key(text: &str) -> ClientKey {
    text.parse().unwrap()
}

/// A lease on `on` that `holder` wants.
pub(crate) fn wanted(on: &str, holder: &str, ttl: Span) -> NewLease {
    NewLease { key: key(on), holder: key(holder), ttl, meta: None }
}

/// Acquires a lease that must be free.
pub(crate) async fn acquired(stores: &Stores, lease: &NewLease) -> Lease {
    match stores.leases.acquire(lease).await.unwrap() {
        AcquireOutcome::Acquired(lease) => lease,
        AcquireOutcome::Held(lease) => panic!("held: {lease:?}"),
    }
}

async fn renewed(stores: &Stores, hold: &LeaseHold, ttl: Span) -> Option<Lease> {
    match stores.leases.renew(hold, ttl).await.unwrap() {
        LeaseRenewal::Renewed(lease) => Some(lease),
        LeaseRenewal::Lost(_) => None,
    }
}

pub(crate) async fn a_lease_is_held_by_one(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let meta = json(r#"{"host": "a", "x":"\u0000\ud800"}"#);
    let before = database_time(&stores[0]).await;
    let lease = acquired(&stores[0], &NewLease { meta: Some(meta.clone()), ..wanted("k", "one", HOUR) }).await;
    assert_eq!((&lease.key, &lease.holder, &lease.meta), (&key("k"), &key("one"), &Some(meta)));
    assert!(lease.expires_at >= before + HOUR.to_delta());
    for holder in ["two", "one"] {
        let outcome = stores[1].leases.acquire(&wanted("k", holder, HOUR)).await.unwrap();
        assert_eq!(outcome, AcquireOutcome::Held(lease.clone()), "also by a repeated request, which knows its holder");
    }
    assert_eq!(stores[1].leases.holder(&key("k")).await.unwrap(), Some(lease.clone()));
    assert_eq!(stores[1].leases.holder(&key("other")).await.unwrap(), None);
    assert!(acquired(&stores[1], &wanted("other", "two", HOUR)).await.fence > lease.fence, "fences are of all leases");
}

pub(crate) async fn a_renewal_prolongs_from_now_on(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let lease = acquired(&stores, &wanted("k", "one", LONG)).await;
    let longer = renewed(&stores, &lease.hold(), HOUR).await.expect("it holds");
    assert_eq!((longer.fence, &longer.holder), (lease.fence, &lease.holder));
    assert!(longer.expires_at > lease.expires_at);
    let shorter = renewed(&stores, &lease.hold(), LONG).await.expect("it holds");
    assert!(shorter.expires_at < longer.expires_at, "its length is the one of the last renewal");
    for wrong in [
        LeaseHold { holder: key("two"), ..lease.hold() },
        LeaseHold { fence: switchboard_model::ids::Fence(lease.fence.0 - 1), ..lease.hold() },
    ] {
        assert_eq!(stores.leases.renew(&wrong, HOUR).await.unwrap(), LeaseRenewal::Lost(Some(shorter.clone())));
        assert!(!stores.leases.release(&wrong).await.unwrap());
    }
    let unknown = LeaseHold { key: key("other"), ..lease.hold() };
    assert_eq!(stores.leases.renew(&unknown, HOUR).await.unwrap(), LeaseRenewal::Lost(None));
    assert_eq!(stores.leases.holder(&key("k")).await.unwrap(), Some(shorter));
}

pub(crate) async fn an_expired_lease_is_nobodys(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let lease = acquired(&stores, &wanted("k", "one", SHORT)).await;
    wait_past(&stores, lease.expires_at).await;
    assert_eq!(stores.leases.holder(&key("k")).await.unwrap(), None);
    assert!(pages(10, async |page| stores.leases.list(&page).await).await.is_empty());
    assert_eq!(stores.leases.renew(&lease.hold(), HOUR).await.unwrap(), LeaseRenewal::Lost(None), "expired is final");
    assert!(!stores.leases.release(&lease.hold()).await.unwrap());
    let next = acquired(&stores, &wanted("k", "two", HOUR)).await;
    assert!(next.fence > lease.fence);
    assert_eq!(renewed(&stores, &lease.hold(), HOUR).await, None);
}

pub(crate) async fn a_released_lease_is_free_at_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let lease = acquired(&stores, &wanted("k", "one", HOUR)).await;
    assert!(stores.leases.release(&lease.hold()).await.unwrap());
    assert!(!stores.leases.release(&lease.hold()).await.unwrap(), "it is not its own any more");
    assert_eq!(renewed(&stores, &lease.hold(), HOUR).await, None);
    assert_eq!(stores.leases.holder(&key("k")).await.unwrap(), None);
    let next = acquired(&stores, &wanted("k", "one", HOUR)).await;
    assert!(next.fence > lease.fence, "also under the same holder");
    assert!(!stores.leases.release(&lease.hold()).await.unwrap(), "the fence tells the holds apart");
    assert_eq!(stores.leases.sweep(10).await.unwrap(), 0, "rows of leases that were over a moment ago stay");
}

pub(crate) async fn the_newest_seizes(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let first = acquired(&stores, &wanted("k", "one", HOUR)).await;
    let second = stores.leases.seize(&system(), &wanted("k", "two", HOUR)).await.unwrap();
    let third = stores.leases.seize(&system(), &wanted("k", "three", HOUR)).await.unwrap();
    assert!(first.fence < second.fence && second.fence < third.fence);
    for lost in [&first, &second] {
        assert_eq!(stores.leases.renew(&lost.hold(), HOUR).await.unwrap(), LeaseRenewal::Lost(Some(third.clone())));
        assert!(!stores.leases.release(&lost.hold()).await.unwrap());
    }
    assert!(stores.leases.release(&third.hold()).await.unwrap());
    let free = stores.leases.seize(&system(), &wanted("new", "one", HOUR)).await.unwrap();
    assert_eq!(stores.leases.holder(&key("new")).await.unwrap(), Some(free), "what nobody holds can be seized too");
}

pub(crate) async fn leases_are_listed_by_key(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let names = ["a", "B", "b:2", "b:10", "~", "!", "a/b"];
    for name in names {
        acquired(&stores, &wanted(name, "one", HOUR)).await;
    }
    let over = acquired(&stores, &wanted("a0", "one", HOUR)).await;
    stores.leases.release(&over.hold()).await.unwrap();
    let mut sorted = names;
    sorted.sort_unstable();
    for limit in [1, 3, 100] {
        let found = pages(limit, async |page| stores.leases.list(&page).await).await;
        let found: Vec<_> = found.iter().map(|lease| lease.key.as_str()).collect();
        assert_eq!(found, sorted, "in the order of their bytes, without what is over");
    }
    assert_eq!(stores.leases.holder(&over.key).await.unwrap(), None);
}
