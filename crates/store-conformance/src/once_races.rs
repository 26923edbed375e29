//! Races for once-keys: whoever comes at the same time, one has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use switchboard_model::once::{NewOnce, OnceState};
use switchboard_store_api::{OnceClaimOutcome, OnceConsumed, OnceEnd, OnceTakeOver};

use crate::Backend;
use crate::fixtures::{LONG, SHORT, contend, json, replicas, system, wait_past};
use crate::once_keys::{claim, claimed, key};

/// How many come at the same time.
const MANY: usize = 20;

pub(crate) async fn of_parallel_claims_one_is_new(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    for round in 0..10 {
        let name = format!("k{round}");
        let outcomes = contend(&stores, MANY, |stores, _| {
            let claim = claim(&name, LONG);
            async move { stores.once.claim(&claim).await.unwrap() }
        })
        .await;
        let new = outcomes.iter().filter(|outcome| matches!(outcome, OnceClaimOutcome::New(_))).count();
        let in_flight = outcomes
            .iter()
            .filter(|outcome| matches!(outcome, OnceClaimOutcome::Found(entry) if entry.state == OnceState::InFlight));
        assert_eq!((new, in_flight.count()), (1, MANY - 1), "{outcomes:?}");
    }
}

pub(crate) async fn of_parallel_consumers_one_gets_it(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    for round in 0..10 {
        let name = format!("k{round}");
        claimed(&stores[0], &NewOnce { result: Some(json("1")), ..claim(&name, LONG) }).await;
        let outcomes = contend(&stores, MANY, |stores, _| {
            let key = key("mail", &name);
            async move { stores.once.consume(&key).await.unwrap() }
        })
        .await;
        let consumed = outcomes.iter().filter(|outcome| matches!(outcome, OnceConsumed::Consumed(_))).count();
        assert_eq!(consumed, 1, "{outcomes:?}");
    }
}

pub(crate) async fn of_parallel_takers_one_has_a_lost_claim(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    let lost = claimed(&stores[0], &claim("k", SHORT)).await;
    wait_past(&stores[0], lost.lease_until).await;
    let outcomes = contend(&stores, MANY, |stores, number| async move {
        if number % 5 == 0 {
            // The lost one comes back: it completes the key, or somebody has taken it over.
            let end = stores.once.complete(&key("mail", "k"), lost.fence, &json("1")).await.unwrap();
            return u32::from(end == OnceEnd::Ended) * 100;
        }
        match stores.once.take_over(&system(), &key("mail", "k"), lost.fence, LONG).await.unwrap() {
            OnceTakeOver::Taken(_) => 1,
            OnceTakeOver::Refused(_) => 0,
            OnceTakeOver::NotFound => panic!("it is there"),
        }
    })
    .await;
    let (taken, completed) =
        outcomes.iter().fold((0, 0), |(taken, completed), outcome| (taken + outcome % 100, completed + outcome / 100));
    assert!(taken == 1 && completed == 0 || taken == 0 && completed > 0, "{outcomes:?}");
}

pub(crate) async fn effects_under_keys_happen_once(backend: &dyn Backend) {
    const KEYS: usize = 20;
    let stores = replicas(backend, 3).await;
    let effects: Arc<Vec<AtomicU32>> = Arc::new((0..KEYS).map(|_| AtomicU32::new(0)).collect());
    contend(&stores, 12, |stores, _| {
        let effects = Arc::clone(&effects);
        async move {
            for (number, effect) in effects.iter().enumerate() {
                let claim = claim(&format!("k{number}"), LONG);
                if let OnceClaimOutcome::New(entry) = stores.once.claim(&claim).await.unwrap() {
                    effect.fetch_add(1, Ordering::SeqCst);
                    let end = stores.once.complete(&claim.key, entry.fence, &json("1")).await.unwrap();
                    assert_eq!(end, OnceEnd::Ended);
                }
            }
        }
    })
    .await;
    assert!(effects.iter().all(|effect| effect.load(Ordering::SeqCst) == 1), "{effects:?}");
}
