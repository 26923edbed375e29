//! Once-keys of programs: claimed before something that must not happen twice, and what becomes of the claim.

use switchboard_model::ids::{Fence, TaskId};
use switchboard_model::json_text::JsonText;
use switchboard_model::once::{NewOnce, OnceEntry, OnceKey, OnceState};
use switchboard_model::span::Span;
use switchboard_store_api::{OnceClaimOutcome, OnceConsumed, OnceEnd, OnceTakeOver, Stores};

use crate::Backend;
use crate::fixtures::{HOUR, LONG, SHORT, json, now, once, replicas, spec, system, until, wait_past};

/// Names a key.
pub(crate) fn key(scope: &str, key: &str) -> OnceKey {
    OnceKey { scope: scope.parse().unwrap(), key: key.parse().unwrap() }
}

/// A claim on a key of the scope `mail`.
pub(crate) fn claim(name: &str, lease: Span) -> NewOnce {
    NewOnce { key: key("mail", name), request_hash: [1; 32], lease, ttl: HOUR, result: None }
}

/// Claims a key that must be free.
pub(crate) async fn claimed(stores: &Stores, claim: &NewOnce) -> OnceEntry {
    match stores.once.claim(claim).await.unwrap() {
        OnceClaimOutcome::New(entry) => entry,
        other => panic!("not claimed: {other:?}"),
    }
}

/// Claims a key that must be taken.
async fn found(stores: &Stores, claim: &NewOnce) -> OnceEntry {
    match stores.once.claim(claim).await.unwrap() {
        OnceClaimOutcome::Found(entry) => entry,
        other => panic!("not found: {other:?}"),
    }
}

pub(crate) async fn a_key_that_one_replica_claims_is_completed_on_another(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let mine = claimed(&stores[0], &claim("k", LONG)).await;
    assert_eq!((mine.state, &mine.result), (OnceState::InFlight, &None));
    assert!(mine.expires_at > mine.lease_until);
    assert_eq!(found(&stores[1], &claim("k", LONG)).await, mine, "somebody works");
    let result = json(r#"{"id": 7, "x":"\u0000\ud800"}"#);
    assert_eq!(stores[1].once.complete(&key("mail", "k"), mine.fence, &result).await.unwrap(), OnceEnd::Ended);
    let done = OnceEntry { state: OnceState::Done, result: Some(result.clone()), ..mine.clone() };
    for stores in &stores {
        assert_eq!(found(stores, &claim("k", LONG)).await, done);
        assert_eq!(stores.once.find(&key("mail", "k")).await.unwrap(), Some(done.clone()));
    }
    assert_eq!(stores[0].once.complete(&key("mail", "k"), mine.fence, &result).await.unwrap(), OnceEnd::Ended, "again");
    let other = stores[0].once.complete(&key("mail", "k"), mine.fence, &JsonText::null()).await.unwrap();
    assert_eq!(other, OnceEnd::Fenced, "a result is final");
    let late = stores[0].once.abandon(&system(), &key("mail", "k"), mine.fence).await.unwrap();
    assert_eq!(late, OnceEnd::Fenced);
    assert_eq!(stores[0].once.find(&key("mail", "other")).await.unwrap(), None);
}

pub(crate) async fn a_key_stands_for_one_request_in_its_scope(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mine = claimed(&stores, &claim("k", LONG)).await;
    let other = NewOnce { request_hash: [2; 32], ..claim("k", LONG) };
    assert_eq!(stores.once.claim(&other).await.unwrap(), OnceClaimOutcome::Mismatch);
    let elsewhere = NewOnce { key: key("tests", "k"), ..claim("k", LONG) };
    assert!(claimed(&stores, &elsewhere).await.fence > mine.fence);
    // The keys of requests are other keys, whatever their scope is called.
    let context = once("k", 1, HOUR);
    assert_eq!(context.once.as_ref().map(|claim| claim.scope.as_str()), Some("tests"));
    now(stores.tasks.create(&context, TaskId::new(), &spec("task", |_| {})).await.unwrap());
    assert_eq!(stores.once.complete(&key("mail", "k"), mine.fence, &json("1")).await.unwrap(), OnceEnd::Ended);
    assert_eq!(stores.once.claim(&other).await.unwrap(), OnceClaimOutcome::Mismatch, "also when it is done");
}

pub(crate) async fn what_became_of_a_lost_claim_is_unknown_until_somebody_says(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let lost = claimed(&stores[0], &claim("k", SHORT)).await;
    let alive = claimed(&stores[0], &claim("alive", LONG)).await;
    let early = stores[1].once.take_over(&system(), &key("mail", "alive"), alive.fence, LONG).await.unwrap();
    assert_eq!(early, OnceTakeOver::Refused(alive), "its claimant has time");
    wait_past(&stores[0], lost.lease_until).await;
    for _ in 0..3 {
        let unknown = found(&stores[1], &claim("k", LONG)).await;
        assert_eq!((unknown.state, unknown.fence), (OnceState::Unknown, lost.fence), "claiming repeats nothing");
    }
    let stale = stores[1].once.take_over(&system(), &key("mail", "k"), Fence(lost.fence.0 - 1), LONG).await.unwrap();
    assert!(matches!(stale, OnceTakeOver::Refused(_)), "{stale:?}");
    let taken = stores[1].once.take_over(&system(), &key("mail", "k"), lost.fence, LONG).await.unwrap();
    let OnceTakeOver::Taken(taken) = taken else { panic!("not taken over: {taken:?}") };
    assert!(taken.fence > lost.fence && taken.state == OnceState::InFlight);
    let late = stores[0].once.complete(&key("mail", "k"), lost.fence, &json("1")).await.unwrap();
    assert_eq!(late, OnceEnd::Fenced, "whoever was lost completes nothing any more");
    assert_eq!(stores[1].once.complete(&key("mail", "k"), taken.fence, &json("2")).await.unwrap(), OnceEnd::Ended);
    let done = stores[1].once.take_over(&system(), &key("mail", "k"), taken.fence, LONG).await.unwrap();
    assert!(matches!(done, OnceTakeOver::Refused(entry) if entry.state == OnceState::Done));
    let missing = stores[1].once.take_over(&system(), &key("mail", "no"), taken.fence, LONG).await.unwrap();
    assert_eq!(missing, OnceTakeOver::NotFound);
}

pub(crate) async fn a_late_completion_counts_unless_somebody_took_over(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let late = claimed(&stores, &claim("k", SHORT)).await;
    wait_past(&stores, late.lease_until).await;
    assert_eq!(stores.once.complete(&key("mail", "k"), late.fence, &json("1")).await.unwrap(), OnceEnd::Ended);
    assert_eq!(found(&stores, &claim("k", LONG)).await.state, OnceState::Done);
}

pub(crate) async fn an_abandoned_key_can_be_claimed_again(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let first = claimed(&stores, &claim("k", LONG)).await;
    let wrong = stores.once.abandon(&system(), &key("mail", "k"), Fence(first.fence.0 + 1_000)).await.unwrap();
    assert_eq!(wrong, OnceEnd::Fenced);
    assert_eq!(stores.once.abandon(&system(), &key("mail", "k"), first.fence).await.unwrap(), OnceEnd::Ended);
    assert_eq!(stores.once.abandon(&system(), &key("mail", "k"), first.fence).await.unwrap(), OnceEnd::NotFound);
    let second = claimed(&stores, &NewOnce { request_hash: [2; 32], ..claim("k", LONG) }).await;
    assert!(second.fence > first.fence);
    assert_eq!(stores.once.complete(&key("mail", "k"), first.fence, &json("1")).await.unwrap(), OnceEnd::Fenced);
}

pub(crate) async fn a_completed_key_is_consumed_once(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let verifier = json(r#"{"verifier":"x"}"#);
    let put = NewOnce { result: Some(verifier.clone()), ..claim("state", LONG) };
    let stored = claimed(&stores[0], &put).await;
    assert_eq!((stored.state, &stored.result), (OnceState::Done, &Some(verifier)));
    assert_eq!(stores[1].once.consume(&key("mail", "state")).await.unwrap(), OnceConsumed::Consumed(stored));
    assert_eq!(stores[0].once.consume(&key("mail", "state")).await.unwrap(), OnceConsumed::NotFound);
    let open = claimed(&stores[0], &claim("open", LONG)).await;
    assert_eq!(stores[1].once.consume(&key("mail", "open")).await.unwrap(), OnceConsumed::NotDone(open));
}

pub(crate) async fn a_key_is_forgotten_after_its_time(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let short = NewOnce { ttl: SHORT, ..claim("k", SHORT) };
    let first = claimed(&stores, &short).await;
    wait_past(&stores, first.expires_at).await;
    assert_eq!(stores.once.find(&key("mail", "k")).await.unwrap(), None);
    assert_eq!(stores.once.complete(&key("mail", "k"), first.fence, &json("1")).await.unwrap(), OnceEnd::NotFound);
    assert_eq!(stores.once.consume(&key("mail", "k")).await.unwrap(), OnceConsumed::NotFound);
    let other = NewOnce { request_hash: [2; 32], ..claim("k", LONG) };
    assert!(claimed(&stores, &other).await.fence > first.fence);
    claimed(&stores, &NewOnce { key: key("mail", "swept"), ..short }).await;
    until(async || stores.once.sweep(10).await.unwrap(), |swept| *swept == 1).await;
    assert_eq!(stores.once.sweep(10).await.unwrap(), 0);
}
