//! Leases, once-keys and shared state as applications use them: the same cases on one SQLite process and on two
//! PostgreSQL replicas.

use std::fmt::Debug;

use futures_util::future::join_all;
use switchboard_client::{Client, ClientError};
use switchboard_model::identity::ClientKey;
use switchboard_model::once::OnceKey;
use switchboard_model::page::PageRequest;
use switchboard_model::state::{StateEntry, StateKey};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::coordination::{
    LeaseAcquireRequest, OnceClaimRequest, OnceOutcome, StateChanged, StatePutRequest,
};
use switchboard_model::wire::op::Since;
use switchboard_testkit::{Cluster, wait_until};

use crate::fixtures::{cluster, json, next_event, on_both_databases, room};

on_both_databases! {
    one_of_many_acquires_a_lease_and_hands_it_on,
    a_key_that_is_claimed_on_one_replica_is_completed_on_another,
    of_many_that_claim_or_consume_a_key_one_succeeds,
    no_change_of_a_value_is_lost,
    whoever_watches_a_value_sees_its_last_change,
    sockets_are_told_what_changes_in_a_namespace,
}

/// How many ask at the same time.
const MANY: usize = 20;

/// Makes the same request many times at once, over all replicas.
async fn all<T>(cluster: &Cluster, ask: impl AsyncFn(Client) -> Result<T, ClientError>) -> Vec<Result<T, ClientError>> {
    join_all((0..MANY).map(|index| ask(cluster.client(index % cluster.size()).clone()))).await
}

fn last(cluster: &Cluster) -> &Client {
    cluster.client(cluster.size() - 1)
}

fn once_key(key: &str) -> OnceKey {
    OnceKey { scope: "mail".parse().unwrap(), key: key.parse().unwrap() }
}

fn state_key(text: &str) -> StateKey {
    text.parse().unwrap()
}

fn value(value: serde_json::Value, version: Option<i64>) -> StatePutRequest {
    StatePutRequest { value: json(value), version, ttl: None }
}

/// All but one were refused with this code.
fn one_of<T: Debug>(answers: Vec<Result<T, ClientError>>, refusal: ErrorCode) -> T {
    let (mut given, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((given.len(), refused.len()), (1, MANY - 1), "{given:?}");
    for answer in refused {
        assert_eq!(answer.unwrap_err().code(), Some(refusal));
    }
    given.remove(0).unwrap()
}

async fn one_of_many_acquires_a_lease_and_hands_it_on(cluster: Cluster) {
    let key: ClientKey = "nightly".parse().unwrap();
    let request = LeaseAcquireRequest { ttl: "1h".parse().unwrap(), ..LeaseAcquireRequest::default() };
    let mut before = 0;
    for _ in 0..3 {
        let answers = all(&cluster, async |client| client.acquire_lease(&key, &request).await).await;
        let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        let acquired: Vec<_> = answers.iter().filter(|answer| answer.acquired).collect();
        assert_eq!(acquired.len(), 1);
        let lease = &acquired[0].lease;
        assert!(answers.iter().all(|answer| answer.lease == *lease && answer.remaining_ms > 3_000_000));
        assert!(lease.fence.0 > before, "each holder has a newer fence");
        before = lease.fence.0;
        assert_eq!(last(&cluster).get_lease(&key).await.unwrap(), *lease);
        assert_eq!(
            last(&cluster).list_leases(PageRequest::default()).await.unwrap().items,
            std::slice::from_ref(lease)
        );
        last(&cluster).renew_lease(&lease.hold(), "2h".parse().unwrap()).await.unwrap();
        cluster.any().release_lease(&lease.hold()).await.unwrap();
        let again = last(&cluster).release_lease(&lease.hold()).await.unwrap_err();
        assert_eq!(again.code(), Some(ErrorCode::Fenced));
    }
}

async fn a_key_that_is_claimed_on_one_replica_is_completed_on_another(cluster: Cluster) {
    let (key, request) = (once_key("m-1"), OnceClaimRequest::default());
    let claimed = cluster.client(0).claim_once(&key, &request).await.unwrap();
    assert_eq!(claimed.outcome, OnceOutcome::New);
    let early = last(&cluster).claim_once(&key, &request).await.unwrap_err();
    assert_eq!((early.code(), early.is_retryable()), (Some(ErrorCode::InProgress), true));
    let sent = json(serde_json::json!({"sent": 1}));
    last(&cluster).complete_once(&key, claimed.fence, sent.clone()).await.unwrap();
    let done = cluster.client(0).claim_once(&key, &request).await.unwrap();
    assert_eq!((done.outcome, done.result), (OnceOutcome::Done, Some(sent)));
}

async fn of_many_that_claim_or_consume_a_key_one_succeeds(cluster: Cluster) {
    for round in 0..3 {
        let (key, request) = (once_key(&format!("m-{round}")), OnceClaimRequest::default());
        let answers = all(&cluster, async |client| client.claim_once(&key, &request).await).await;
        let claimed = one_of(answers, ErrorCode::InProgress);
        assert_eq!(claimed.outcome, OnceOutcome::New);
        let result = json(serde_json::json!({"verifier": round}));
        cluster.any().complete_once(&key, claimed.fence, result.clone()).await.unwrap();
        let answers = all(&cluster, async |client| client.consume_once(&key).await).await;
        assert_eq!(one_of(answers, ErrorCode::NotFound).result, Some(result));
    }
}

async fn no_change_of_a_value_is_lost(cluster: Cluster) {
    let key = state_key("counters/visits");
    let increment = async |client: Client| {
        loop {
            let found = client.get_state(&key).await?;
            let (number, version) = found.map_or((0, 0), |entry| (entry.value.decode::<u64>().unwrap(), entry.version));
            match client.put_state(&key, &value((number + 1).into(), Some(version))).await {
                Err(error) if error.code() == Some(ErrorCode::VersionMismatch) => {}
                answer => return answer,
            }
        }
    };
    for answer in all(&cluster, increment).await {
        answer.unwrap();
    }
    let found = last(&cluster).get_state(&key).await.unwrap().unwrap();
    assert_eq!(found.value.as_str(), MANY.to_string());
    let listed = last(&cluster).list_state(&key.ns, "vis", PageRequest::default()).await.unwrap().items;
    assert_eq!((listed.len(), listed[0].version), (1, found.version));
    last(&cluster).delete_state(&key, Some(found.version)).await.unwrap();
    assert_eq!(cluster.client(0).get_state(&key).await.unwrap(), None);
}

/// Changes a value on one replica and follows it on another.
async fn watch(cluster: &Cluster) {
    let key = state_key("approvals/run/7");
    let number = |entry: &Option<StateEntry>| entry.as_ref().map(|entry| entry.value.as_str().to_owned());
    let mut watch = last(cluster).watch_state(key.clone());
    assert_eq!(watch.next().await.unwrap(), None);
    let one = value(1.into(), None);
    let (seen, _) = tokio::join!(watch.next(), cluster.client(0).put_state(&key, &one));
    assert_eq!(number(&seen.unwrap()).as_deref(), Some("1"));
    for n in 2..=20 {
        cluster.client(0).put_state(&key, &value(n.into(), None)).await.unwrap();
    }
    while number(&watch.next().await.unwrap()).as_deref() != Some("20") {}
    let (gone, _) = tokio::join!(watch.next(), cluster.client(0).delete_state(&key, None));
    assert_eq!(gone.unwrap(), None);
    let short = StatePutRequest { ttl: Some("300ms".parse().unwrap()), ..value(1.into(), Some(0)) };
    cluster.client(0).put_state(&key, &short).await.unwrap();
    while watch.next().await.unwrap().is_some() {}
}

async fn whoever_watches_a_value_sees_its_last_change(cluster: Cluster) {
    watch(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_is_watched_while_every_hint_is_lost() {
    watch(&cluster(2).polling().await).await;
}

async fn sockets_are_told_what_changes_in_a_namespace(cluster: Cluster) {
    let mut socket = cluster.socket(cluster.size() - 1, "ann").await;
    socket.handle().join(&room("state:approvals"), Since::default()).await.unwrap();
    let key = state_key("approvals/run/7");
    let written = cluster.client(0).put_state(&key, &value(1.into(), None)).await.unwrap();
    let told = async |socket: &mut _| {
        let event = next_event(socket).await;
        assert_eq!((event.event.as_str(), event.offset), ("sb.state_changed", None));
        serde_json::from_str::<StateChanged>(event.payload.as_str()).unwrap()
    };
    assert_eq!(told(&mut socket).await, StateChanged { key: key.key.clone(), version: written.version });
    cluster.client(0).put_state(&state_key("other/k"), &value(1.into(), None)).await.unwrap();
    cluster.client(0).delete_state(&key, None).await.unwrap();
    let deleted = told(&mut socket).await;
    assert_eq!(deleted.key, key.key);
    assert!(
        deleted.version > written.version,
        "a deletion is a change too, and the other namespace is none of its own"
    );
    let faked = cluster.any().publish(&room("state:approvals"), &crate::fixtures::event("note", 1.into())).await;
    assert!(faked.is_err(), "nothing is stored in the room of a namespace");
    wait_until("the value to be gone", async || {
        let found = last(&cluster).get_state(&key).await.unwrap();
        if found.is_none() { Ok(()) } else { Err(found) }
    })
    .await;
}
