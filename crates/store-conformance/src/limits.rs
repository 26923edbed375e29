//! Rate limits: exact under contention, all or nothing over several keys, and truthful about what is left.

use switchboard_model::limit::{Decision, Rate};
use switchboard_model::span::Span;
use switchboard_store_api::{LimitTake, Stores};

use crate::Backend;
use crate::fixtures::{HOUR, LONG, contend, database_time, replicas, wait_past};

/// Parses a rate.
fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

/// Asks for units of a key at a rate.
fn units(key: &str, at: &str, cost: u32) -> LimitTake {
    LimitTake { key: key.to_owned(), rate: rate(at), cost }
}

/// Takes units of one key.
async fn take(stores: &Stores, key: &str, at: &str, cost: u32) -> Decision {
    let mut decisions = stores.limits.take(&[units(key, at, cost)]).await.unwrap();
    assert_eq!(decisions.len(), 1);
    decisions.remove(0)
}

/// Tells whether each of several takes was allowed.
fn allowed(decisions: &[Decision]) -> Vec<bool> {
    decisions.iter().map(|decision| decision.allowed).collect()
}

/// Three at once, and then one an hour: no case sees a unit come back.
const SLOW: &str = "1/1h burst 3";

/// Checks that a span is `hours` less the time that a case takes at most.
fn assert_hours(span: Span, hours: u64) {
    let most = HOUR.as_millis() * hours;
    assert!((most - LONG.as_millis()..=most).contains(&span.as_millis()), "{span} instead of {hours} h");
}

pub(crate) async fn the_burst_comes_at_once_and_says_what_is_left(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for n in 1..=3 {
        let given = take(&stores, "k", SLOW, 1).await;
        assert_eq!((given.allowed, given.remaining, given.retry_after), (true, 3 - n, Span::default()));
        assert_hours(given.reset_after, u64::from(n));
    }
    let denied = take(&stores, "k", SLOW, 1).await;
    assert_eq!((denied.allowed, denied.remaining), (false, 0));
    assert_hours(denied.retry_after, 1);
    assert_hours(denied.reset_after, 3);
    let denied = take(&stores, "k", SLOW, 2).await;
    assert!(!denied.allowed);
    assert_hours(denied.retry_after, 2);
    assert_eq!(take(&stores, "other", SLOW, 2).await.remaining, 1, "keys do not share");
}

pub(crate) async fn all_replicas_share_a_key(backend: &dyn Backend) {
    let stores = replicas(backend, 3).await;
    for (n, stores) in stores.iter().enumerate() {
        let given = take(stores, "k", SLOW, 1).await;
        assert_eq!((given.allowed, given.remaining as usize), (true, 2 - n));
    }
    assert!(!take(&stores[1], "k", SLOW, 1).await.allowed);
}

pub(crate) async fn waiting_as_long_as_told_is_enough(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let at = "4/1s burst 3";
    for cost in [1, 2, 3, 1, 2] {
        let denied = loop {
            let decision = take(&stores, "k", at, cost).await;
            if !decision.allowed {
                break decision;
            }
        };
        assert!(Span::default() < denied.retry_after && denied.retry_after <= Span::from_millis(250 * u64::from(cost)));
        assert!(denied.retry_after <= denied.reset_after, "nothing is missing when all is there");
        wait_past(&stores, database_time(&stores).await + denied.retry_after.to_delta()).await;
        let given = take(&stores, "k", at, cost).await;
        assert_eq!((given.allowed, given.retry_after), (true, Span::default()));
    }
    let reset = take(&stores, "k", at, 1).await.reset_after;
    wait_past(&stores, database_time(&stores).await + reset.to_delta()).await;
    let given = take(&stores, "k", at, 3).await;
    assert!(given.allowed, "everything is there again");
}

pub(crate) async fn a_denial_changes_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    assert!(take(&stores, "k", SLOW, 2).await.allowed);
    let mut last = take(&stores, "k", SLOW, 2).await;
    for _ in 0..20 {
        let denied = take(&stores, "k", SLOW, 2).await;
        assert_eq!((denied.allowed, denied.remaining), (false, 1));
        assert!(denied.retry_after <= last.retry_after && denied.reset_after <= last.reset_after);
        last = denied;
    }
    assert_hours(last.retry_after, 1);
    let given = take(&stores, "k", SLOW, 1).await;
    assert_eq!((given.allowed, given.remaining), (true, 0), "a smaller one still fits");
}

pub(crate) async fn more_than_the_burst_is_never_there(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for cost in [4, 1_000_000, u32::MAX] {
        let denied = take(&stores, "k", SLOW, cost).await;
        assert_eq!((denied.allowed, denied.remaining, denied.reset_after), (false, 3, Span::default()));
        assert!(denied.retry_after > Span::default());
    }
    assert!(take(&stores, "k", SLOW, 3).await.allowed);
}

pub(crate) async fn a_changed_rate_holds_at_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    assert_eq!(take(&stores, "k", "1/1h burst 10", 5).await.remaining, 5);
    assert_eq!(take(&stores, "k", "1/1h burst 20", 1).await.remaining, 14);
    let denied = take(&stores, "k", "1/1h burst 2", 1).await;
    assert_eq!((denied.allowed, denied.remaining), (false, 0), "six hours are used up whatever the burst is");
    let denied = take(&stores, "k", "1/1s burst 3600", 1).await;
    assert!(!denied.allowed, "nor however fast they come back");
}

pub(crate) async fn the_greatest_rates_and_costs_are_decided(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let most = "1000000/1ms burst 1000000";
    assert!(take(&stores, "fast", most, 1_000_000).await.allowed);
    let most = "1/366days burst 1000000";
    let given = take(&stores, "slow", most, 1_000).await;
    assert_eq!((given.allowed, given.retry_after), (true, Span::default()));
    assert!(!take(&stores, "slow", most, u32::MAX).await.allowed);
    assert!(take(&stores, "slow", most, 1_000).await.allowed);
}

pub(crate) async fn several_keys_are_taken_all_or_none(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let both = [units("z", "1/1h burst 5", 1), units("a", "1/1h burst 1", 1)];
    let given = stores.limits.take(&both).await.unwrap();
    assert_eq!(allowed(&given), [true, true]);
    assert_eq!([given[0].remaining, given[1].remaining], [4, 0], "in the order in which they were asked for");

    for _ in 0..3 {
        let denied = stores.limits.take(&both).await.unwrap();
        assert_eq!(allowed(&denied), [true, false]);
        assert_eq!(denied[0].retry_after, Span::default());
        assert_hours(denied[1].retry_after, 1);
    }
    assert_eq!(take(&stores, "z", "1/1h burst 5", 1).await.remaining, 3, "a denied neighbour used nothing up");

    let fresh = [units("a", "1/1h burst 1", 1), units("new", SLOW, 2), units("newer", SLOW, 4)];
    let denied = stores.limits.take(&fresh).await.unwrap();
    assert_eq!(allowed(&denied), [false, true, false]);
    assert_eq!(take(&stores, "new", SLOW, 3).await.remaining, 0, "nor did a key that was never used before");
    assert_eq!(stores.limits.take(&[]).await.unwrap(), []);
}

pub(crate) async fn sweep_forgets_unused_keys_only(backend: &dyn Backend) {
    let stores = backend.stores().await;
    take(&stores, "slow", SLOW, 3).await;
    for key in ["a", "b", "c"] {
        take(&stores, key, "1000/1s", 1).await;
    }
    let moment = Span::from_millis(1).to_delta();
    wait_past(&stores, database_time(&stores).await + moment).await;
    for expected in [2, 1, 0] {
        assert_eq!(stores.limits.sweep(2).await.unwrap(), expected);
    }
    assert!(!take(&stores, "slow", SLOW, 1).await.allowed, "its debt is remembered");
    let given = take(&stores, "a", "1/1h burst 3", 1).await;
    assert_eq!((given.allowed, given.remaining), (true, 2));
}

pub(crate) async fn replicas_together_allow_no_more_than_the_rate(backend: &dyn Backend) {
    const PER_SECOND: i64 = 20;
    const BURST: i64 = 10;
    let stores = replicas(backend, 4).await;
    let at = format!("{PER_SECOND}/1s burst {BURST}");
    let start = database_time(&stores[0]).await;
    // So many attempts that the rate denies most of them, however slow the machine is.
    let given = contend(&stores, 8, |stores, n| {
        let at = at.clone();
        async move {
            let mut units = [0, 0];
            for attempt in 0..100 {
                let cost = 1 + u32::try_from((attempt + n) % 3).unwrap();
                let decision = take(&stores, "shared", &at, cost).await;
                units[usize::from(decision.allowed)] += i64::from(cost);
            }
            units
        }
    })
    .await;
    let time = (database_time(&stores[0]).await - start).num_microseconds().unwrap();
    let [denied, given] = [0, 1].map(|index| given.iter().map(|units| units[index]).sum::<i64>());
    let most = BURST + PER_SECOND * time / 1_000_000 + 1;
    assert!((BURST..=most).contains(&given), "{given} units given and {denied} denied in {time} µs");
    assert!(denied > 0);
}

pub(crate) async fn replicas_take_several_keys_all_or_none(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let outcomes = contend(&stores, 60, |stores, n| async move {
        let (wide, narrow) = (units("m", "1/1h burst 30", 1), ["a", "z"][n % 2]);
        let mut takes = [wide, units(narrow, "1/1h burst 10", 1)];
        if n % 4 >= 2 {
            takes.reverse();
        }
        (n % 2, allowed(&stores.limits.take(&takes).await.unwrap()) == [true, true])
    })
    .await;
    for narrow in 0..2 {
        let given = outcomes.iter().filter(|(which, given)| *which == narrow && *given).count();
        assert_eq!(given, 10, "each narrow key gives what it has");
    }
    for (key, at, left) in [("m", "1/1h burst 30", 10), ("a", "1/1h burst 10", 0), ("z", "1/1h burst 10", 0)] {
        let left_over = take(&stores[0], key, at, 11).await;
        assert_eq!((left_over.allowed, left_over.remaining), (false, left), "{key}: denials used nothing up");
    }
}
