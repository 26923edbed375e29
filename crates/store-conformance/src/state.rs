//! Shared state: values that are changed by compare-and-set.

use switchboard_model::feed::{Signal, SignalKind};
use switchboard_model::identity::Namespace;
use switchboard_model::span::Span;
use switchboard_model::state::{StateExpected, StateKey, StatePut, StateUsage};
use switchboard_model::wire::coordination::StateWritten;
use switchboard_store_api::{StateDeleteOutcome, StatePutOutcome, Stores};

use crate::Backend;
use crate::fixtures::{HOUR, Reader, SHORT, json, pages, replicas, system, until, wait_past};

/// More than any case stores.
pub(crate) const ROOMY: StateUsage = StateUsage { keys: 10_000, bytes: 100_000_000 };

/// Names a value of the namespace `box`.
pub(crate) fn key(text: &str) -> StateKey {
    format!("box/{text}").parse().unwrap()
}

/// A value for a key, whatever is there.
pub(crate) fn value(name: &str, value: &str) -> StatePut {
    StatePut { key: key(name), value: json(value), ttl: None, expected: StateExpected::Any }
}

/// Stores a value that must be accepted.
pub(crate) async fn put(stores: &Stores, put: &StatePut) -> StateWritten {
    match stores.state.put(&system(), put, ROOMY).await.unwrap() {
        StatePutOutcome::Written(written) => written,
        other => panic!("not written: {other:?}"),
    }
}

async fn text(stores: &Stores, name: &str) -> Option<String> {
    let entry = stores.state.get(&key(name)).await.unwrap();
    entry.map(|entry| entry.value.as_str().to_owned())
}

async fn names(stores: &Stores, prefix: &str, limit: u32) -> Vec<String> {
    let ns: Namespace = "box".parse().unwrap();
    let heads = pages(limit, async |page| stores.state.list(&ns, prefix, &page).await).await;
    heads.into_iter().map(|head| head.key.into_string()).collect()
}

pub(crate) async fn a_value_comes_back_byte_for_byte(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let long = format!("\"{}\"", "x".repeat(1024 * 1024 - 2));
    for given in [r#"{"a" : 1.0e5, "b":"\ud800", "c":"\u0000"}"#, "null", "[ ]", "\"é😀\"", long.as_str()] {
        let written = put(&stores[0], &value("k", given)).await;
        let entry = stores[1].state.get(&key("k")).await.unwrap().expect("it is there");
        assert_eq!((entry.value.as_str(), entry.version), (given, written.version));
        assert_eq!((entry.updated_at, entry.expires_at), (written.updated_at, None));
        assert_eq!(entry.key, key("k").key);
    }
    let other: StateKey = "other/k".parse().unwrap();
    assert_eq!(stores[0].state.get(&other).await.unwrap(), None, "namespaces do not share");
}

pub(crate) async fn a_change_needs_what_it_expects(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let try_put = async |expected, text: &str| {
        let put = StatePut { expected, ..value("k", text) };
        stores.state.put(&system(), &put, ROOMY).await.unwrap()
    };
    assert_eq!(try_put(StateExpected::Version(1), "1").await, StatePutOutcome::VersionMismatch(None));
    let StatePutOutcome::Written(first) = try_put(StateExpected::Absent, "1").await else { panic!("nothing is there") };
    let there = StatePutOutcome::VersionMismatch(Some(first.version));
    assert_eq!(try_put(StateExpected::Absent, "2").await, there);
    assert_eq!(try_put(StateExpected::Version(first.version + 1), "2").await, there);
    assert_eq!(text(&stores, "k").await.as_deref(), Some("1"));
    let StatePutOutcome::Written(second) = try_put(StateExpected::Version(first.version), "2").await else {
        panic!("it has this version")
    };
    let StatePutOutcome::Written(third) = try_put(StateExpected::Any, "3").await else { panic!("anything will do") };
    assert!(first.version < second.version && second.version < third.version);
    let delete = async |version| stores.state.delete(&system(), &key("k"), version).await.unwrap();
    assert_eq!(delete(Some(second.version)).await, StateDeleteOutcome::VersionMismatch(third.version));
    assert!(
        matches!(delete(Some(third.version)).await, StateDeleteOutcome::Deleted(version) if version > third.version)
    );
    assert_eq!(delete(None).await, StateDeleteOutcome::NotFound);
    assert_eq!(text(&stores, "k").await, None);
}

pub(crate) async fn no_version_comes_again(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let first = put(&stores, &value("k", "1")).await;
    stores.state.delete(&system(), &key("k"), None).await.unwrap();
    stores.state.sweep(10).await.unwrap();
    let second = put(&stores, &StatePut { expected: StateExpected::Absent, ..value("k", "2") }).await;
    assert!(second.version > first.version);
    let stale = StatePut { expected: StateExpected::Version(first.version), ..value("k", "3") };
    let outcome = stores.state.put(&system(), &stale, ROOMY).await.unwrap();
    assert_eq!(outcome, StatePutOutcome::VersionMismatch(Some(second.version)));
}

pub(crate) async fn a_value_whose_time_is_over_is_gone(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let short = StatePut { ttl: Some(SHORT), ..value("k", "1") };
    let written = put(&stores, &short).await;
    let kept = put(&stores, &StatePut { ttl: Some(HOUR), ..value("kept", "1") }).await;
    assert!(kept.expires_at.is_some_and(|at| at >= kept.updated_at + HOUR.to_delta()));
    wait_past(&stores, written.expires_at.expect("it has a time")).await;
    assert_eq!((text(&stores, "k").await, names(&stores, "", 10).await), (None, vec!["kept".to_owned()]));
    let delete = stores.state.delete(&system(), &key("k"), None).await.unwrap();
    assert_eq!(delete, StateDeleteOutcome::NotFound);
    let update = StatePut { expected: StateExpected::Version(written.version), ..value("k", "2") };
    let outcome = stores.state.put(&system(), &update, ROOMY).await.unwrap();
    assert_eq!(outcome, StatePutOutcome::VersionMismatch(None));
    put(&stores, &StatePut { expected: StateExpected::Absent, ..value("k", "2") }).await;
    assert_eq!(text(&stores, "k").await.as_deref(), Some("2"));
    // A write without a time makes a value stay.
    put(&stores, &value("kept", "2")).await;
    assert_eq!(stores.state.get(&key("kept")).await.unwrap().unwrap().expires_at, None);
}

pub(crate) async fn keys_are_listed_by_their_start(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let all = ["a", "a!", "a/1", "a/10", "a/2", "a~", "B", "b", "~~"];
    for name in all {
        put(&stores, &value(name, "1")).await;
    }
    let mut sorted = all;
    sorted.sort_unstable();
    for limit in [1, 2, 100] {
        assert_eq!(names(&stores, "", limit).await, sorted, "in the order of their bytes");
        assert_eq!(names(&stores, "a/", limit).await, ["a/1", "a/10", "a/2"]);
        assert_eq!(names(&stores, "~", limit).await, ["~~"]);
        assert!(names(&stores, "c", limit).await.is_empty());
    }
    let ns: Namespace = "box".parse().unwrap();
    let page = stores.state.list(&ns, "a/10", &crate::fixtures::ALL).await.unwrap();
    assert_eq!(page.items[0].bytes, 5, "the bytes of key and value");
}

pub(crate) async fn a_namespace_holds_no_more_than_its_quota(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let quota = StateUsage { keys: 3, bytes: 100 };
    let try_put = async |name: &str, length: usize, ttl: Option<Span>| {
        let put = StatePut { ttl, ..value(name, &format!("\"{}\"", "x".repeat(length - 2))) };
        stores.state.put(&system(), &put, quota).await.unwrap()
    };
    let is_written = |outcome: &StatePutOutcome| matches!(outcome, StatePutOutcome::Written(_));
    for name in ["a", "b", "c"] {
        assert!(is_written(&try_put(name, 9, None).await));
    }
    assert_eq!(try_put("d", 9, None).await, StatePutOutcome::Full(StateUsage { keys: 3, bytes: 30 }));
    assert!(is_written(&try_put("c", 79, None).await), "up to the very byte");
    assert_eq!(try_put("c", 80, None).await, StatePutOutcome::Full(StateUsage { keys: 3, bytes: 100 }));
    assert!(is_written(&try_put("c", 9, None).await));
    stores.state.delete(&system(), &key("c"), None).await.unwrap();
    let StatePutOutcome::Written(short) = try_put("short", 70, Some(SHORT)).await else { panic!("there is room") };
    wait_past(&stores, short.expires_at.unwrap()).await;
    assert!(is_written(&try_put("d", 70, None).await), "what is over makes room");
    assert!(is_written(&try_put("d", 79, None).await));
    assert_eq!(try_put("d", 80, None).await, StatePutOutcome::Full(StateUsage { keys: 3, bytes: 100 }));
    // A quota that has become smaller refuses growth only.
    let smaller = StateUsage { keys: 1, bytes: 10 };
    let shrunk = stores.state.put(&system(), &value("d", "1"), smaller).await.unwrap();
    assert!(is_written(&shrunk));
    let other = StatePut { key: "other/d".parse().unwrap(), ..value("d", "1") };
    assert!(is_written(&stores.state.put(&system(), &other, quota).await.unwrap()), "each namespace has its own");
}

pub(crate) async fn each_change_is_signalled_and_no_refusal(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut reader = Reader::start(&stores).await;
    let signal =
        |name: &str, pos| Signal { kind: SignalKind::StateChanged, key: key(name).to_string(), pos, body: None };
    let a = put(&stores, &value("a/b", "1")).await;
    let b = put(&stores, &value("b", "1")).await;
    let again = put(&stores, &value("b", "2")).await;
    assert!(again.version > b.version);
    let mut signals = reader.signals().await;
    signals.sort_by_key(|signal| signal.pos);
    assert_eq!(signals, [signal("a/b", a.version), signal("b", again.version)]);
    let refused = StatePut { expected: StateExpected::Absent, ..value("b", "3") };
    stores.state.put(&system(), &refused, ROOMY).await.unwrap();
    stores.state.put(&system(), &value("c", "3"), StateUsage { keys: 0, bytes: 0 }).await.unwrap();
    stores.state.delete(&system(), &key("none"), None).await.unwrap();
    assert_eq!(reader.signals().await, []);
    let StateDeleteOutcome::Deleted(version) = stores.state.delete(&system(), &key("b"), None).await.unwrap() else {
        panic!("it is there")
    };
    assert!(version > again.version);
    assert_eq!(reader.signals().await, [signal("b", version)]);
}

pub(crate) async fn sweep_deletes_what_is_over_and_counts_it(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let quota = StateUsage { keys: 5, bytes: 1_000 };
    for name in ["a", "b", "c"] {
        put(&stores, &StatePut { ttl: Some(Span::from_millis(1)), ..value(name, "1") }).await;
    }
    put(&stores, &StatePut { ttl: Some(HOUR), ..value("long", "1") }).await;
    put(&stores, &value("kept", "1")).await;
    let mut swept = 0;
    while swept < 3 {
        let more = until(async || stores.state.sweep(2).await.unwrap(), |deleted| *deleted > 0).await;
        assert!(more <= 2);
        swept += more;
    }
    assert_eq!((swept, stores.state.sweep(10).await.unwrap()), (3, 0));
    assert_eq!(names(&stores, "", 10).await, ["kept", "long"]);
    for number in 0..4 {
        let outcome = stores.state.put(&system(), &value(&format!("n{number}"), "1"), quota).await.unwrap();
        assert_eq!(matches!(outcome, StatePutOutcome::Written(_)), number < 3, "two are left of what was counted");
    }
    let ns: Namespace = "box".parse().unwrap();
    for head in stores.state.list(&ns, "", &crate::fixtures::ALL).await.unwrap().items {
        let all = StateKey { ns: ns.clone(), key: head.key };
        stores.state.delete(&system(), &all, Some(head.version)).await.unwrap();
    }
    assert_eq!(stores.state.sweep(10).await.unwrap(), 1, "nothing is left of a namespace that is empty");
    let nothing = StateUsage { keys: 0, bytes: 0 };
    let outcome = stores.state.put(&system(), &value("a", "1"), nothing).await.unwrap();
    assert_eq!(outcome, StatePutOutcome::Full(nothing));
}
