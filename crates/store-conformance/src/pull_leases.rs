//! Leases of external workers: they end with the time of the attempt, which nobody but the database ends.

use switchboard_model::run::{Ending, LeasedRun};
use switchboard_model::span::Span;
use switchboard_model::task::{Action, Concurrency, PullAction, RateLimit, TaskSpec};
use switchboard_store_api::{LeaseRequest, Stores, WorkerKind};
use uuid::Uuid;

use crate::Backend;
use crate::fixtures::{LONG, finish, lease_one, request, run, spec, triggered, until};

/// How long an attempt may take: less than the longest lease that a case asks for.
const TIME: Span = Span::from_secs(30);

fn pull(name: &str, timeout: Option<Span>) -> TaskSpec {
    spec(name, |spec| (spec.action, spec.timeout) = (Action::Pull(PullAction {}), timeout))
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
    let plain = pull("plain", Some(TIME));
    let keyed = TaskSpec { concurrency: keyed, ..pull("keyed", Some(TIME)) };
    let paced = TaskSpec { rate_limit: paced, ..pull("paced", Some(TIME)) };
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
        triggered(&stores, &pull(name, timeout), 1).await;
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
