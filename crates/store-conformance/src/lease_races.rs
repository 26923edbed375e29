//! Races for leases, and work under them.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use rand::Rng as _;
use switchboard_model::lease::Lease;
use switchboard_model::span::Span;
use switchboard_store_api::{AcquireOutcome, LeaseError, LeaseRenewal, Stores, WithLease};
use tokio_util::task::TaskTracker;

use crate::Backend;
use crate::fixtures::{HOUR, SHORT, contend, random, replicas, system, until, wait_past};
use crate::leases::{acquired, key, wanted};

pub(crate) async fn of_many_that_acquire_one_wins(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    for round in 0..10 {
        let name = format!("k{}", round % 2);
        let outcomes = contend(&stores, 20, |stores, number| {
            let lease = wanted(&name, &format!("h{round}.{number}"), HOUR);
            async move { stores.leases.acquire(&lease).await.unwrap() }
        })
        .await;
        let won: Vec<&Lease> = outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                AcquireOutcome::Acquired(lease) => Some(lease),
                AcquireOutcome::Held(_) => None,
            })
            .collect();
        assert_eq!(won.len(), 1);
        assert!(outcomes.iter().all(|outcome| {
            let (AcquireOutcome::Acquired(lease) | AcquireOutcome::Held(lease)) = outcome;
            lease == won[0]
        }));
        assert!(stores[round % 3].leases.release(&won[0].hold()).await.unwrap());
    }
}

pub(crate) async fn of_many_that_take_an_expired_lease_one_wins(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    let mut last = acquired(&stores[0], &wanted("k", "h", SHORT)).await;
    for round in 0..5 {
        wait_past(&stores[0], last.expires_at).await;
        let before = last.clone();
        let outcomes = contend(&stores, 12, |stores, number| {
            let (lease, before) = (wanted("k", &format!("h{round}.{number}"), SHORT), before.hold());
            async move {
                // The holder before tries to come back at the same time.
                if number % 4 == 0 {
                    let renewal = stores.leases.renew(&before, HOUR).await.unwrap();
                    assert!(matches!(renewal, LeaseRenewal::Lost(_)), "expired is final: {renewal:?}");
                }
                stores.leases.acquire(&lease).await.unwrap()
            }
        })
        .await;
        let won = outcomes.iter().filter_map(|outcome| match outcome {
            AcquireOutcome::Acquired(lease) => Some(lease.clone()),
            AcquireOutcome::Held(_) => None,
        });
        // On a slow machine the short lease may be over before the last of them comes.
        let mut won: Vec<Lease> = won.collect();
        won.sort_by_key(|lease| lease.fence);
        assert!(!won.is_empty() && won[0].fence > last.fence);
        for pair in won.windows(2) {
            assert!(
                pair[0].expires_at <= pair[1].expires_at - SHORT.to_delta(),
                "nobody acquires what holds: {pair:?}"
            );
        }
        last = won.pop().unwrap();
    }
}

pub(crate) async fn holders_exclude_each_other(backend: &dyn Backend) {
    const HOLDS: usize = 40;
    let stores = replicas(backend, 3).await;
    let inside = Arc::new(AtomicI64::new(0));
    let fences = Arc::new(Mutex::new(Vec::new()));
    contend(&stores, 6, |stores, number| {
        let (inside, fences) = (Arc::clone(&inside), Arc::clone(&fences));
        let mut random = random();
        async move {
            let mut held = 0;
            while held < HOLDS {
                let lease = wanted("k", &format!("h{number}.{}", random.random::<u64>()), HOUR);
                let AcquireOutcome::Acquired(lease) = stores.leases.acquire(&lease).await.unwrap() else {
                    tokio::task::yield_now().await;
                    continue;
                };
                assert_eq!(inside.swap(lease.fence.0, Ordering::SeqCst), 0, "somebody else is inside");
                fences.lock().unwrap().push(lease.fence);
                if random.random_bool(0.3) {
                    assert!(matches!(stores.leases.renew(&lease.hold(), HOUR).await, Ok(LeaseRenewal::Renewed(_))));
                }
                if random.random_bool(0.2) {
                    stores.leases.sweep(10).await.unwrap();
                }
                assert_eq!(inside.swap(0, Ordering::SeqCst), lease.fence.0, "somebody else came in");
                assert!(stores.leases.release(&lease.hold()).await.unwrap());
                held += 1;
            }
        }
    })
    .await;
    let fences = fences.lock().unwrap();
    assert_eq!(fences.len(), 6 * HOLDS);
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "each holder has a newer fence than all before");
}

pub(crate) async fn of_many_that_seize_the_newest_has_it(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    let mut seized = contend(&stores, 20, |stores, number| async move {
        stores.leases.seize(&system(), &wanted("k", &format!("h{number}"), HOUR)).await.unwrap()
    })
    .await;
    seized.sort_by_key(|lease| lease.fence);
    assert!(seized.windows(2).all(|pair| pair[0].fence < pair[1].fence));
    assert_eq!(stores[0].leases.holder(&key("k")).await.unwrap(), seized.pop());
    for lost in seized {
        assert!(!stores[1].leases.release(&lost.hold()).await.unwrap());
    }
}

fn with_lease(stores: &Stores, ttl: Span) -> (WithLease, TaskTracker) {
    let tracker = TaskTracker::new();
    let mut with = WithLease::new(stores.leases.clone(), tracker.clone());
    (with.ttl, with.grace) = (ttl, Duration::from_secs(60));
    (with, tracker)
}

pub(crate) async fn work_outlives_the_length_of_its_lease(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let (with, _) = with_lease(&stores, Span::from_secs(3));
    let given = with
        .with_lease(&key("k"), |holding| {
            let stores = stores.clone();
            async move {
                let first = stores.leases.holder(&key("k")).await.unwrap().expect("it is held");
                assert_eq!(first.fence, holding.fence);
                let other = stores.leases.acquire(&wanted("k", "other", HOUR)).await.unwrap();
                assert_eq!(other, AcquireOutcome::Held(first.clone()));
                wait_past(&stores, first.expires_at).await;
                holding.fence
            }
        })
        .await
        .unwrap();
    assert_eq!(stores.leases.holder(&key("k")).await.unwrap(), None, "it was given back");
    let again = with.with_lease(&key("k"), async |holding| holding.fence).await.unwrap();
    assert!(again > given);
    let held = acquired(&stores, &wanted("k", "other", HOUR)).await;
    let refused = with.with_lease::<(), _>(&key("k"), |_| async { panic!("it is held") }).await;
    assert!(matches!(refused, Err(LeaseError::Held(lease)) if lease == held));
}

pub(crate) async fn work_is_stopped_when_its_lease_is_taken_away(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let (with, _) = with_lease(&stores, Span::from_secs(3));
    let outcome = with
        .with_lease(&key("k"), |holding| {
            let stores = stores.clone();
            async move {
                let seized = stores.leases.seize(&system(), &wanted("k", "other", HOUR)).await.unwrap();
                assert!(seized.fence > holding.fence);
                holding.stop.cancelled().await;
            }
        })
        .await;
    assert!(matches!(outcome, Err(LeaseError::LeaseLost)), "{outcome:?}");
    // Work that ends before it is told has lost its lease all the same.
    let free = key("free");
    let outcome = with
        .with_lease(&free, async |_| {
            stores.leases.seize(&system(), &wanted("free", "other", HOUR)).await.unwrap();
        })
        .await;
    assert!(matches!(outcome, Err(LeaseError::LeaseLost)), "{outcome:?}");
}

pub(crate) async fn a_lease_is_given_back_however_its_work_ends(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let (with, tracker) = with_lease(&stores, HOUR);
    let key = key("k");
    let free = async || until(async || stores.leases.holder(&key).await.unwrap(), Option::is_none).await;
    let panicking = with.with_lease::<(), _>(&key, |_| async { panic!("on purpose") });
    let panicked = AssertUnwindSafe(panicking).catch_unwind().await;
    assert!(panicked.is_err(), "{panicked:?}");
    assert_eq!(free().await, None);
    // Work that is dropped, as that of a client that goes away.
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let pending = with.with_lease::<(), _>(&key, |_| async {
        begun.send(()).unwrap();
        std::future::pending().await
    });
    tokio::select! {
        _ = pending => panic!("it never ends"),
        begun = has_begun => begun.unwrap(),
    }
    tracker.close();
    tracker.wait().await;
    assert_eq!(free().await, None);
}
