//! Repeated requests for work, and reports that come more than once or too late.

use std::collections::BTreeSet;

use switchboard_model::run::{Ending, Finish, LeasedRun, RunState};
use switchboard_model::span::Span;
use switchboard_model::task::{Concurrency, RateLimit, TaskSpec};
use switchboard_store_api::{CancelOutcome, FinishOutcome, LeaseRequest, RetryOutcome};
use uuid::Uuid;

use crate::Backend;
use crate::fixtures::{
    LONG, SHORT, contend, database_time, expire, finish, in_state, lease, lease_one, replicas, request, run, spec,
    states, system, triggered,
};

fn named(limit: u32, lease: Span) -> LeaseRequest {
    LeaseRequest { request: Some(Uuid::now_v7()), ..request(limit, lease) }
}

/// What does not change when a request is repeated.
fn leases(runs: &[LeasedRun]) -> Vec<LeasedRun> {
    let fixed = |run: &LeasedRun| LeasedRun { lease_until: run.leased_at, ..run.clone() };
    runs.iter().map(fixed).collect()
}

pub(crate) async fn a_repeated_request_is_given_the_same_runs(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let limited = spec("limited", |spec| {
        spec.concurrency = Some(Concurrency { key: "narrow".parse().unwrap(), max: 1 });
        spec.rate_limit = Some(RateLimit { key: None, rate: "1/1h burst 1".parse().unwrap() });
    });
    let mut all = triggered(&stores, &limited, 1).await;
    all.extend(triggered(&stores, &spec("plain", |_| {}), 4).await);
    let asked = named(3, LONG);
    let first = stores.runs.lease(&asked).await.unwrap().runs;
    assert_eq!(first.iter().map(|run| run.id).collect::<Vec<_>>(), all[..3]);
    let before = database_time(&stores).await;
    for limit in [1, 3, 100] {
        let again = stores.runs.lease(&LeaseRequest { limit, ..asked.clone() }).await.unwrap();
        assert_eq!((leases(&again.runs), again.again), (leases(&first), false));
        assert!(again.runs.iter().all(|run| run.lease_until >= before + LONG.to_delta()), "the leases are prolonged");
        assert_eq!(run(&stores, all[0]).await.lease_until, Some(again.runs[0].lease_until));
    }
    assert_eq!(in_state(&stores, RunState::Running).await.len(), 3);
    let other = stores.runs.lease(&named(10, LONG)).await.unwrap().runs;
    assert_eq!(other.iter().map(|run| run.id).collect::<Vec<_>>(), all[3..]);
}

pub(crate) async fn a_repetition_gives_what_still_holds(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let all = triggered(&stores, &spec("plain", |_| {}), 4).await;
    let asked = named(2, LONG);
    let first = stores.runs.lease(&asked).await.unwrap().runs;
    finish(&stores, &first[0], Ending::Succeeded(None)).await;
    assert_eq!(leases(&stores.runs.lease(&asked).await.unwrap().runs), leases(&first[1..]));
    finish(&stores, &first[1], Ending::Succeeded(None)).await;
    let next = stores.runs.lease(&asked).await.unwrap().runs;
    assert_eq!(next.iter().map(|run| run.id).collect::<Vec<_>>(), all[2..], "nothing holds any more");
}

pub(crate) async fn an_expired_lease_is_not_given_again(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let all = triggered(&stores, &spec("plain", |_| {}), 2).await;
    let asked = named(1, SHORT);
    let first = stores.runs.lease(&asked).await.unwrap().runs;
    expire(&stores, first[0].id).await;
    let next = stores.runs.lease(&LeaseRequest { lease: LONG, ..asked }).await.unwrap().runs;
    assert_eq!(next.iter().map(|run| run.id).collect::<Vec<_>>(), all[1..]);
    assert_eq!(stores.runs.recover(10).await.unwrap().requeued, 1);
}

pub(crate) async fn an_empty_answer_is_no_answer_for_ever(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let asked = named(5, LONG);
    assert_eq!(stores.runs.lease(&asked).await.unwrap().runs, []);
    let all = triggered(&stores, &spec("plain", |_| {}), 1).await;
    assert_eq!(stores.runs.lease(&asked).await.unwrap().runs[0].id, all[0]);
}

pub(crate) async fn equal_requests_at_once_are_given_one_batch(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let keyed = |spec: &mut TaskSpec| {
        spec.concurrency = Some(Concurrency { key: "wide".parse().unwrap(), max: 100 });
    };
    triggered(&stores[0], &spec("plain", |_| {}), 60).await;
    triggered(&stores[0], &spec("keyed", keyed), 60).await;
    let mut leased = 0;
    for _ in 0..15 {
        let asked = named(4, LONG);
        let batches = contend(&stores, 8, |stores, _| {
            let asked = asked.clone();
            async move { stores.runs.lease(&asked).await.unwrap() }
        })
        .await;
        // A key that somebody else held may have kept runs back, but never made two batches.
        let distinct: BTreeSet<Vec<_>> =
            batches.iter().map(|batch| batch.runs.iter().map(|run| (run.id, run.fence)).collect()).collect();
        assert_eq!(distinct.len(), 1, "{distinct:?}");
        leased += distinct.first().map_or(0, Vec::len);
        assert_eq!(in_state(&stores[0], RunState::Running).await.len(), leased);
    }
    assert!(leased >= 15, "work was found");
}

pub(crate) async fn an_end_that_is_reported_again_is_known(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("twice", |_| {}), 3).await;
    let leased = lease(&stores, 3, LONG).await;
    let end = |run: &LeasedRun, ending| Finish { id: run.id, fence: run.fence, ending };
    let retry = || Ending::Retry { error: "no".to_owned(), delay: LONG };
    let ends = [end(&leased[0], Ending::Succeeded(None)), end(&leased[1], retry()), end(&leased[2], Ending::Released)];
    let after = [RunState::Succeeded, RunState::Scheduled, RunState::Queued];
    assert_eq!(stores.runs.finish(&ends).await.unwrap(), after.map(FinishOutcome::Accepted));
    let before = futures_util::future::join_all(leased.iter().map(|leased| run(&stores, leased.id))).await;
    assert_eq!(stores.runs.finish(&ends).await.unwrap(), after.map(FinishOutcome::Repeated));
    let again = futures_util::future::join_all(leased.iter().map(|leased| run(&stores, leased.id))).await;
    assert_eq!(before, again, "nothing changes");

    assert_eq!(stores.runs.cancel(&system(), leased[1].id).await.unwrap(), CancelOutcome::Cancelled);
    let cancelled = FinishOutcome::Repeated(RunState::Cancelled);
    assert_eq!(finish(&stores, &leased[1], retry()).await, cancelled, "the state is the one it is in now");
    assert_eq!(stores.runs.retry(&system(), leased[0].id).await.unwrap(), RetryOutcome::Queued);
    let queued = FinishOutcome::Repeated(RunState::Queued);
    assert_eq!(finish(&stores, &leased[0], Ending::Succeeded(None)).await, queued);
    let next = lease(&stores, 3, LONG).await;
    assert_eq!(finish(&stores, &leased[0], Ending::Succeeded(None)).await, FinishOutcome::Fenced);
    assert_eq!(next.len(), 2);
}

pub(crate) async fn one_batch_may_report_a_lease_twice(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("twice", |_| {}), 1).await;
    let leased = lease_one(&stores, LONG).await;
    let end = |ending| Finish { id: leased.id, fence: leased.fence, ending };
    let ends = [end(Ending::Failed("first".to_owned())), end(Ending::Succeeded(None))];
    let outcomes = stores.runs.finish(&ends).await.unwrap();
    assert_eq!(outcomes, [FinishOutcome::Accepted(RunState::Failed), FinishOutcome::Repeated(RunState::Failed)]);
    assert_eq!(run(&stores, leased.id).await.error.as_deref(), Some("first"));
}

pub(crate) async fn a_mixed_batch_of_endings_leads_each_run_to_its_state(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let shared = |max| Some(Concurrency { key: "shared".parse().unwrap(), max });
    let keyed = triggered(&stores, &spec("keyed", |spec| spec.concurrency = shared(2)), 3).await;
    let plain = triggered(&stores, &spec("plain", |_| {}), 3).await;
    let leased = lease(&stores, 10, LONG).await;
    assert_eq!(leased.len(), 5);
    let retry = |error: &str| Ending::Retry { error: error.to_owned(), delay: LONG };
    let endings = [Ending::Succeeded(None), retry("keyed"), Ending::Succeeded(None), retry("plain"), Ending::Released];
    let ends: Vec<_> =
        leased.iter().zip(endings).map(|(run, ending)| Finish { id: run.id, fence: run.fence, ending }).collect();
    let [succeeded, scheduled, queued] = [RunState::Succeeded, RunState::Scheduled, RunState::Queued];
    let expected = [succeeded, scheduled, succeeded, scheduled, queued];
    assert_eq!(stores.runs.finish(&ends).await.unwrap(), expected.map(FinishOutcome::Accepted));
    assert_eq!(states(&stores, &keyed).await, [succeeded, scheduled, queued], "the permits went on");
    assert_eq!(states(&stores, &plain).await, [succeeded, scheduled, queued]);
}

pub(crate) async fn recovery_raises_the_fence(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &spec("lost", |spec| spec.max_attempts = 2), 2).await;
    let leased = lease(&stores, 2, SHORT).await;
    stores.runs.cancel(&system(), leased[1].id).await.unwrap();
    expire(&stores, leased[1].id).await;
    let report = stores.runs.recover(10).await.unwrap();
    assert_eq!((report.requeued, report.cancelled), (1, 1));
    for lost in &leased {
        assert!(run(&stores, lost.id).await.fence > lost.fence);
        assert_eq!(finish(&stores, lost, Ending::Succeeded(None)).await, FinishOutcome::Fenced);
    }
    let again = lease_one(&stores, LONG).await;
    assert!(again.fence > leased[0].fence);
}

pub(crate) async fn late_repeated_and_recovered_ends_agree(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    triggered(&stores[0], &spec("late", |_| {}), 20).await;
    let leased = lease(&stores[0], 20, SHORT).await;
    expire(&stores[0], leased[19].id).await;
    let finishing = contend(&stores, 60, |stores, n| {
        let leased = leased[n % 20].clone();
        async move { (leased.id, finish(&stores, &leased, Ending::Succeeded(None)).await) }
    });
    let recovering = contend(&stores, 4, |stores, _| async move { stores.runs.recover(7).await.unwrap().requeued });
    let (finished, recovered) = futures_util::future::join(finishing, recovering).await;
    let mut accepted = 0;
    for leased in &leased {
        let of_run: Vec<_> = finished.iter().filter(|(id, _)| *id == leased.id).map(|(_, outcome)| *outcome).collect();
        match run(&stores[0], leased.id).await.state {
            RunState::Succeeded => {
                let count = |wanted| of_run.iter().filter(|outcome| **outcome == wanted).count();
                assert_eq!(count(FinishOutcome::Accepted(RunState::Succeeded)), 1);
                assert_eq!(count(FinishOutcome::Repeated(RunState::Succeeded)), 2);
                accepted += 1;
            }
            state => {
                assert_eq!(state, RunState::Queued);
                assert_eq!(of_run, [FinishOutcome::Fenced; 3], "the holder was told that it is too late");
            }
        }
    }
    assert_eq!(accepted + recovered.iter().sum::<u64>(), 20);
}
