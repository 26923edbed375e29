//! Room in pools with a maximum: whoever waits for it on any replica is told when a run leaves some.

use switchboard_model::feed::SignalKind;
use switchboard_model::run::{Ending, LeasedRun};
use switchboard_model::span::Span;
use switchboard_store_api::{LeaseRequest, Stores, WorkerKind};

use crate::Backend;
use crate::fixtures::{LONG, Reader, SHORT, expire, finish, request, spec, triggered};
use crate::pool_limits::{limit, pull};

/// Leases up to `limit` runs for an external worker.
async fn pulled(stores: &Stores, limit: u32, lease: Span) -> Vec<LeasedRun> {
    let external = LeaseRequest { kind: WorkerKind::External, ..request(limit, lease) };
    stores.runs.lease(&external).await.unwrap().runs
}

fn told() -> Vec<(SignalKind, String)> {
    vec![(SignalKind::PoolQueued, "default".to_owned())]
}

pub(crate) async fn room_that_an_external_worker_leaves_is_signalled_to_those_who_wait(backend: &dyn Backend) {
    let stores = backend.stores().await;
    limit(&stores, &[("default", 2)]).await;
    triggered(&stores, &pull("pulled"), 5).await;
    let leased = pulled(&stores, 10, LONG).await;
    assert_eq!(leased.len(), 2);
    let mut reader = Reader::start(&stores).await;
    finish(&stores, &leased[0], Ending::Succeeded(None)).await;
    assert_eq!(reader.changes().await, told());
    finish(&stores, &leased[0], Ending::Succeeded(None)).await;
    assert_eq!(reader.changes().await, [], "a repetition leaves no more room");
    finish(&stores, &leased[1], Ending::Succeeded(None)).await;
    assert_eq!(reader.changes().await, [], "a pool that was not full kept nobody waiting");

    let leased = pulled(&stores, 10, LONG).await;
    finish(&stores, &leased[0], Ending::Retry { error: "no".to_owned(), delay: LONG }).await;
    assert_eq!(reader.changes().await, told(), "a back-off leaves room too");
    pulled(&stores, 10, LONG).await;
    finish(&stores, &leased[1], Ending::Succeeded(None)).await;
    assert_eq!(reader.changes().await, [], "nobody waits");
}

pub(crate) async fn a_pool_without_a_maximum_is_not_signalled(backend: &dyn Backend) {
    let stores = backend.stores().await;
    limit(&stores, &[("other", 1)]).await;
    triggered(&stores, &pull("pulled"), 3).await;
    let leased = pulled(&stores, 1, LONG).await;
    let mut reader = Reader::start(&stores).await;
    finish(&stores, &leased[0], Ending::Succeeded(None)).await;
    assert_eq!(reader.changes().await, []);
}

pub(crate) async fn a_replica_tells_only_external_workers_of_the_room_it_leaves(backend: &dyn Backend) {
    let stores = backend.stores().await;
    limit(&stores, &[("default", 1)]).await;
    triggered(&stores, &spec("executed", |_| {}), 3).await;
    let first = stores.runs.lease(&request(1, LONG)).await.unwrap().runs;
    let mut reader = Reader::start(&stores).await;
    finish(&stores, &first[0], Ending::Failed("no".to_owned())).await;
    assert_eq!(reader.changes().await, [], "it looks for the next one by itself");

    let second = stores.runs.lease(&request(1, LONG)).await.unwrap().runs;
    triggered(&stores, &pull("pulled"), 1).await;
    reader.changes().await;
    finish(&stores, &second[0], Ending::Succeeded(None)).await;
    assert_eq!(reader.changes().await, told());
}

pub(crate) async fn room_that_a_lost_run_leaves_is_signalled(backend: &dyn Backend) {
    let stores = backend.stores().await;
    limit(&stores, &[("default", 1)]).await;
    triggered(&stores, &spec("executed", |spec| spec.max_attempts = 1), 2).await;
    let lost = stores.runs.lease(&request(1, SHORT)).await.unwrap().runs;
    expire(&stores, lost[0].id).await;
    let mut reader = Reader::start(&stores).await;
    assert_eq!(stores.runs.recover(10).await.unwrap().dead, 1);
    assert_eq!(reader.changes().await, told());
}
