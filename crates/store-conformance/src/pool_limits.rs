//! Pools: their maxima on all replicas together, which workers they serve, and how long leases of either kind hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use switchboard_model::feed::TickRequest;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::RunId;
use switchboard_model::run::{Ending, LeasedRun, RunState};
use switchboard_model::setting::{FleetSettings, PoolSettings};
use switchboard_model::span::Span;
use switchboard_model::task::{Action, Concurrency, PullAction, RateLimit, TaskSpec};
use switchboard_store_api::{LeaseBatch, LeaseRequest, PutOutcome, Stores, WorkerKind};
use uuid::Uuid;

use crate::Backend;
use crate::fixtures::{
    LONG, contend, finish, in_state, lease, lease_one, replicas, request, run, spec, states, system, triggered, until,
};

/// How long an attempt may take: less than the longest lease that a case asks for.
const TIME: Span = Span::from_secs(30);

/// Replaces the maxima of all pools.
async fn limit(stores: &Stores, maxima: &[(&str, u32)]) {
    let version = stores.settings.fleet().await.unwrap().version;
    let pools = maxima.iter().map(|(pool, max)| (pool.parse().unwrap(), PoolSettings { max_running: Some(*max) }));
    let value = FleetSettings { pools: pools.collect(), ..FleetSettings::default() };
    let outcome = stores.settings.put_fleet(&system(), version, &value).await.unwrap();
    assert_eq!(outcome, PutOutcome::Written(version + 1));
}

fn in_pool(name: &str, pool: &str) -> TaskSpec {
    spec(name, |spec| spec.pool = pool.parse().unwrap())
}

fn pull(name: &str) -> TaskSpec {
    spec(name, |spec| spec.action = Action::Pull(PullAction {}))
}

fn pools(names: &[&str]) -> Vec<PoolName> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn ids(batch: &LeaseBatch) -> Vec<RunId> {
    batch.runs.iter().map(|run| run.id).collect()
}

pub(crate) async fn a_pool_leases_no_more_than_its_maximum(backend: &dyn Backend) {
    let stores = backend.stores().await;
    limit(&stores, &[("default", 2)]).await;
    let all = triggered(&stores, &spec("limited", |_| {}), 6).await;
    let batch = stores.runs.lease(&request(10, LONG)).await.unwrap();
    assert_eq!((ids(&batch), batch.is_full, batch.again), (all[..2].to_vec(), true, false));
    let none = LeaseBatch { is_full: true, ..LeaseBatch::default() };
    assert_eq!(stores.runs.lease(&request(10, LONG)).await.unwrap(), none);
    finish(&stores, &batch.runs[0], Ending::Succeeded(None)).await;
    assert_eq!(lease_one(&stores, LONG).await.id, all[2]);
    limit(&stores, &[("default", 6)]).await;
    let batch = stores.runs.lease(&request(10, LONG)).await.unwrap();
    assert_eq!((ids(&batch), batch.is_full), (all[3..].to_vec(), false), "there is more room than runs");
}

pub(crate) async fn a_maximum_of_zero_pauses_a_pool(backend: &dyn Backend) {
    let stores = backend.stores().await;
    limit(&stores, &[("default", 0)]).await;
    let all = triggered(&stores, &spec("paused", |_| {}), 2).await;
    assert_eq!(stores.runs.lease(&request(10, LONG)).await.unwrap(), LeaseBatch::default());
    assert_eq!(states(&stores, &all).await, [RunState::Queued; 2]);
    limit(&stores, &[]).await;
    assert_eq!(ids(&stores.runs.lease(&request(10, LONG)).await.unwrap()), all);
}

pub(crate) async fn a_limited_pool_stands_in_nobodys_way(backend: &dyn Backend) {
    let stores = backend.stores().await;
    limit(&stores, &[("red", 1), ("grey", 0)]).await;
    let first = TaskSpec { priority: -1, ..in_pool("red", "red") };
    let red = triggered(&stores, &first, 3).await;
    let grey = triggered(&stores, &TaskSpec { priority: -2, ..in_pool("grey", "grey") }, 2).await;
    let green = triggered(&stores, &in_pool("green", "green"), 3).await;
    let asked = LeaseRequest { pools: pools(&["green", "red", "grey"]), ..request(3, LONG) };
    let batch = stores.runs.lease(&asked).await.unwrap();
    assert_eq!(ids(&batch), [red[0], green[0], green[1]], "by priority over all pools");
    assert_eq!(ids(&stores.runs.lease(&asked).await.unwrap()), green[2..]);
    assert_eq!(states(&stores, &grey).await, [RunState::Queued; 2]);
}

pub(crate) async fn only_external_workers_are_given_runs_to_pull(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let pulled = triggered(&stores, &pull("pulled"), 2).await;
    let asked = TickRequest { pools: vec![PoolName::default_pool()] };
    assert!(!stores.feed.tick(None, &asked).await.unwrap().next.has_queued, "no replica needs to wake up");
    let executed = triggered(&stores, &spec("executed", |_| {}), 2).await;
    assert!(stores.feed.tick(None, &asked).await.unwrap().next.has_queued);
    assert_eq!(ids(&stores.runs.lease(&request(10, LONG)).await.unwrap()), executed);
    let external = LeaseRequest { kind: WorkerKind::External, ..request(10, LONG) };
    let elsewhere = LeaseRequest { pools: pools(&["elsewhere"]), ..external.clone() };
    assert_eq!(stores.runs.lease(&elsewhere).await.unwrap(), LeaseBatch::default());
    assert_eq!(ids(&stores.runs.lease(&external).await.unwrap()), pulled);
}

pub(crate) async fn workers_of_both_kinds_share_the_maximum(backend: &dyn Backend) {
    let stores = backend.stores().await;
    limit(&stores, &[("default", 3)]).await;
    triggered(&stores, &pull("pulled"), 3).await;
    triggered(&stores, &spec("executed", |_| {}), 3).await;
    assert_eq!(stores.runs.lease(&request(2, LONG)).await.unwrap().runs.len(), 2);
    let external = LeaseRequest { kind: WorkerKind::External, ..request(10, LONG) };
    let batch = stores.runs.lease(&external).await.unwrap();
    assert_eq!((batch.runs.len(), batch.is_full), (1, true));
}

pub(crate) async fn leasers_never_exceed_the_maximum_of_a_pool(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    limit(&stores[0], &[("default", 3)]).await;
    let all = triggered(&stores[0], &spec("limited", |_| {}), 60).await;
    let (working, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let done = Arc::new(AtomicBool::new(false));
    let counted = ended.clone();
    let leasing = contend(&stores, 8, |stores, n| {
        let (working, ended, done) = (working.clone(), counted.clone(), done.clone());
        async move {
            while !done.load(Ordering::SeqCst) {
                let asked = request(1 + u32::try_from(n).unwrap() % 3, LONG);
                let batch = until(
                    async || stores.runs.lease(&asked).await.unwrap().runs,
                    |runs| !runs.is_empty() || done.load(Ordering::SeqCst),
                )
                .await;
                let now = working.fetch_add(batch.len(), Ordering::SeqCst) + batch.len();
                assert!(now <= 3, "{now} runs at once");
                for leased in batch {
                    working.fetch_sub(1, Ordering::SeqCst);
                    finish(&stores, &leased, Ending::Succeeded(None)).await;
                    if ended.fetch_add(1, Ordering::SeqCst) + 1 == 60 {
                        done.store(true, Ordering::SeqCst);
                    }
                }
            }
        }
    });
    let watching = until(
        async || (in_state(&stores[3], RunState::Running).await.len(), ended.load(Ordering::SeqCst)),
        |(running, ended)| {
            assert!(*running <= 3, "{running} runs at once");
            *ended == 60
        },
    );
    futures_util::future::join(leasing, watching).await;
    assert_eq!(states(&stores[0], &all).await, [RunState::Succeeded; 60]);
    triggered(&stores[0], &spec("fresh", |_| {}), 5).await;
    assert_eq!(lease(&stores[0], 10, LONG).await.len(), 3, "all room is free again");
}

/// A task of external workers whose attempts may take so long.
fn timed(name: &str, timeout: Option<Span>) -> TaskSpec {
    TaskSpec { timeout, ..pull(name) }
}

/// Leases the one run that there is for external workers.
async fn pulled(stores: &Stores, request: &LeaseRequest) -> LeasedRun {
    let batch = until(async || stores.runs.lease(request).await.unwrap(), |batch| !batch.runs.is_empty()).await;
    let [run] = <[LeasedRun; 1]>::try_from(batch.runs).expect("one run to lease");
    run
}

fn external(lease: Span) -> LeaseRequest {
    LeaseRequest { kind: WorkerKind::External, request: Some(Uuid::new_v4()), ..request(10, lease) }
}

pub(crate) async fn a_lease_of_an_external_worker_ends_with_the_time_of_the_attempt(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let keyed = Some(Concurrency { key: "narrow".parse().unwrap(), max: 1 });
    let paced = Some(RateLimit { key: None, rate: "1000/1s".parse().unwrap() });
    let plain = timed("plain", Some(TIME));
    let keyed = TaskSpec { concurrency: keyed, ..timed("keyed", Some(TIME)) };
    let paced = TaskSpec { rate_limit: paced, ..timed("paced", Some(TIME)) };
    for wanted in [plain, keyed, paced] {
        let ids = triggered(&stores, &wanted, 1).await;
        let asked = external(LONG);
        let leased = pulled(&stores, &asked).await;
        let deadline = leased.leased_at + TIME.to_delta();
        assert_eq!((leased.id, leased.lease_until), (ids[0], deadline), "{}", wanted.name);
        let stored = run(&stores, leased.id).await;
        assert_eq!((stored.lease_until, stored.deadline_at), (Some(deadline), Some(deadline)), "{}", wanted.name);

        // Whoever repeats a request gets the lease anew, but no more time.
        let again = pulled(&stores, &asked).await;
        assert_eq!((again.id, again.fence, again.lease_until), (leased.id, leased.fence, deadline), "{}", wanted.name);
        assert_eq!(run(&stores, leased.id).await.lease_until, Some(deadline), "{}", wanted.name);
        finish(&stores, &leased, Ending::Succeeded(None)).await;
    }
}

pub(crate) async fn other_leases_hold_as_long_as_they_were_asked_for(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let brief = Span::from_secs(10);
    for (name, timeout, lease) in [("shorter", Some(TIME), brief), ("endless", None, LONG)] {
        triggered(&stores, &timed(name, timeout), 1).await;
        let leased = pulled(&stores, &external(lease)).await;
        assert_eq!(leased.lease_until, leased.leased_at + lease.to_delta(), "{name}");
        assert_eq!(run(&stores, leased.id).await.lease_until, Some(leased.lease_until), "{name}");
    }
    // A replica ends an attempt that takes too long, and needs its lease to say so.
    triggered(&stores, &spec("executed", |spec| spec.timeout = Some(TIME)), 1).await;
    let leased = lease_one(&stores, LONG).await;
    assert_eq!(leased.lease_until, leased.leased_at + LONG.to_delta());
    assert_eq!(run(&stores, leased.id).await.lease_until, Some(leased.lease_until));
}
