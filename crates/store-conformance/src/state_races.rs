//! Races in shared state: compare-and-set, the quota and the order of versions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::Rng as _;
use switchboard_model::feed::SignalKind;
use switchboard_model::span::Span;
use switchboard_model::state::{StateExpected, StatePut, StateUsage};
use switchboard_store_api::{StateDeleteOutcome, StatePutOutcome, Stores};

use crate::Backend;
use crate::fixtures::{ALL, Reader, contend, json, random, replicas, system};
use crate::state::{ROOMY, key, put, value};

pub(crate) async fn one_of_many_changes_of_a_version_wins(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    let mut last = put(&stores[0], &value("k", "0")).await.version;
    for round in 0..10 {
        let expected = if round == 5 {
            stores[0].state.delete(&system(), &key("k"), None).await.unwrap();
            StateExpected::Absent
        } else {
            StateExpected::Version(last)
        };
        let outcomes = contend(&stores, 20, |stores, number| async move {
            let put = StatePut { expected, ..value("k", &number.to_string()) };
            (number, stores.state.put(&system(), &put, ROOMY).await.unwrap())
        })
        .await;
        let won: Vec<_> = outcomes
            .iter()
            .filter_map(|(number, outcome)| match outcome {
                StatePutOutcome::Written(written) => Some((number, written.version)),
                _ => None,
            })
            .collect();
        assert_eq!(won.len(), 1, "{outcomes:?}");
        let (number, version) = won[0];
        let entry = stores[1].state.get(&key("k")).await.unwrap().unwrap();
        assert_eq!((entry.value.as_str(), entry.version), (number.to_string().as_str(), version));
        assert!(version > last);
        last = version;
    }
}

/// Adds one to a number by compare-and-set.
async fn increment(stores: &Stores, name: &str) {
    loop {
        let found = stores.state.get(&key(name)).await.unwrap();
        let (number, expected) = match &found {
            None => (0, StateExpected::Absent),
            Some(entry) => (entry.value.decode::<u64>().unwrap(), StateExpected::Version(entry.version)),
        };
        let next = StatePut { expected, ..value(name, &(number + 1).to_string()) };
        if matches!(stores.state.put(&system(), &next, ROOMY).await.unwrap(), StatePutOutcome::Written(_)) {
            return;
        }
    }
}

pub(crate) async fn no_change_by_compare_and_set_is_lost(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    contend(&stores, 8, |stores, _| async move {
        for _ in 0..15 {
            increment(&stores, "n").await;
        }
    })
    .await;
    assert_eq!(stores[0].state.get(&key("n")).await.unwrap().unwrap().value, json("120"));
}

pub(crate) async fn writers_together_keep_to_the_quota(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    let quota = StateUsage { keys: 30, bytes: 1_000 };
    let made = Arc::new(AtomicU64::new(0));
    contend(&stores, 9, |stores, number| {
        let made = Arc::clone(&made);
        let mut random = random();
        async move {
            for _ in 0..40 {
                let name = format!("k{}", random.random_range(0..60));
                let text = format!("\"{}\"", "x".repeat(random.random_range(0..60)));
                let ttl = random.random_bool(0.2).then(|| Span::from_millis(5));
                match random.random_range(0..10) {
                    0 => drop(stores.state.delete(&system(), &key(&name), None).await.unwrap()),
                    1 if number == 0 => drop(stores.state.sweep(3).await.unwrap()),
                    _ => {
                        let put = StatePut { ttl, ..value(&name, &text) };
                        if let StatePutOutcome::Written(_) = stores.state.put(&system(), &put, quota).await.unwrap() {
                            made.fetch_add(1, Ordering::SeqCst);
                        }
                        let held = stores.state.list(&key("k").ns, "", &ALL).await.unwrap().items;
                        assert!(held.len() <= 30, "{}", held.len());
                        assert!(held.iter().map(|head| head.bytes).sum::<i64>() <= 1_000);
                    }
                }
            }
        }
    })
    .await;
    assert!(made.load(Ordering::SeqCst) > 0);
    // What was counted is what is there: after all is deleted, the whole quota is free again.
    for head in stores[0].state.list(&key("k").ns, "", &ALL).await.unwrap().items {
        let all = switchboard_model::state::StateKey { ns: key("k").ns, key: head.key };
        let deleted = stores[0].state.delete(&system(), &all, None).await.unwrap();
        assert!(matches!(deleted, StateDeleteOutcome::Deleted(_) | StateDeleteOutcome::NotFound));
    }
    let whole = value("k", &format!("\"{}\"", "x".repeat(997)));
    let outcome = stores[0].state.put(&system(), &whole, quota).await.unwrap();
    assert!(matches!(outcome, StatePutOutcome::Written(_)), "{outcome:?}");
    let more = stores[0].state.put(&system(), &value("l", "1"), quota).await.unwrap();
    assert_eq!(more, StatePutOutcome::Full(StateUsage { keys: 1, bytes: 1_000 }));
}

pub(crate) async fn versions_follow_the_order_in_which_changes_are_seen(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    let mut reader = Reader::start(&stores[0]).await;
    let written = contend(&stores, 12, |stores, number| async move {
        let mut written = Vec::new();
        for round in 0..10 {
            written.push(put(&stores, &value(&format!("k{number}.{round}"), "1")).await.version);
        }
        written
    });
    let (written, ()) = tokio::join!(written, async {
        let mut newest = 0;
        let mut seen = 0;
        while seen < 120 {
            let tick = reader.tick().await;
            let mut versions: Vec<i64> = tick
                .signals
                .iter()
                .filter(|signal| signal.kind == SignalKind::StateChanged)
                .map(|signal| signal.pos)
                .collect();
            versions.sort_unstable();
            seen += versions.len();
            if let (Some(first), Some(last)) = (versions.first(), versions.last()) {
                assert!(*first > newest, "a version that is older than one that was seen before");
                newest = *last;
            }
        }
    });
    let mut written: Vec<i64> = written.into_iter().flatten().collect();
    let count = written.len();
    written.sort_unstable();
    written.dedup();
    assert_eq!((count, written.len()), (120, 120), "none is doubled");
}
