//! Rate limits of runs: one unit for each lease, exact on all replicas together, and nobody forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use chrono::TimeDelta;
use switchboard_model::Timestamp;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::RunId;
use switchboard_model::run::{Ending, LeasedRun, NewRun, RunState};
use switchboard_model::span::Span;
use switchboard_model::task::{Concurrency, Overlap, RateLimit, TaskSpec};
use switchboard_store_api::{CancelOutcome, LeaseRequest, LimitTake, PromoteReport, Stores};

use crate::Backend;
use crate::fixtures::{
    HOUR, LONG, Patience, contend, create, database_time, finish, in_state, lease, lease_one, new_run, plan, replicas,
    request, run, scheduled, spec, states, system, trigger, triggered, until, wait_past,
};

/// A task whose runs start at the given rate, shared by key if there is one.
fn paced(name: &str, rate: &str, key: Option<&str>) -> TaskSpec {
    let key = key.map(|key| key.parse().unwrap());
    spec(name, |spec| spec.rate_limit = Some(RateLimit { key, rate: rate.parse().unwrap() }))
}

fn ids(leased: &[LeasedRun]) -> Vec<RunId> {
    leased.iter().map(|run| run.id).collect()
}

/// Promotes, leases and ends until `count` runs have been leased; returns them in the order of their leases.
async fn work(stores: &Stores, count: usize) -> Vec<LeasedRun> {
    let mut done = Vec::new();
    while done.len() < count {
        let batch = until(
            async || {
                stores.runs.promote(100).await.unwrap();
                lease(stores, 100, LONG).await
            },
            |batch| !batch.is_empty(),
        )
        .await;
        for leased in batch {
            finish(stores, &leased, Ending::Succeeded(None)).await;
            done.push(leased);
        }
    }
    done
}

/// Checks that no stretch of time has more starts than the burst, what the rate gives in it, and one.
fn check_windows(starts: &mut [Timestamp], burst: i64, per_second: i64) {
    starts.sort();
    for (index, first) in starts.iter().enumerate() {
        for (last, count) in starts[index..].iter().zip(1_i64..) {
            let most = burst + per_second * (*last - *first).num_microseconds().unwrap() / 1_000_000 + 1;
            assert!(count <= most, "{count} starts between {first} and {last}");
        }
    }
}

pub(crate) async fn a_rate_limit_holds_runs_back(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &paced("slow", "1/1h burst 2", None), 4).await;
    let batch = stores.runs.lease(&request(10, LONG)).await.unwrap();
    assert_eq!(self::ids(&batch.runs), ids[..2]);
    let wait = batch.paced_for.unwrap();
    assert!(wait <= HOUR && wait > Span::from_secs(3_000), "the next unit comes in an hour, not in {wait}");
    let [running, waiting] = [RunState::Running, RunState::Waiting];
    assert_eq!(states(&stores, &ids).await, [running, running, waiting, waiting]);
    assert_eq!(stores.runs.lease(&request(10, LONG)).await.unwrap().runs, []);

    let report = stores.runs.promote(10).await.unwrap();
    assert!(report.paced_for.is_some_and(|wait| wait <= HOUR && wait > Span::from_secs(3_000)), "{report:?}");
    assert_eq!(PromoteReport { paced_for: None, ..report }, PromoteReport::default());
    let key = run(&stores, ids[0]).await.pace_key.unwrap();
    let take = LimitTake { key, rate: "1/1h burst 2".parse().unwrap(), cost: 1 };
    assert!(!stores.limits.take(&[take]).await.unwrap()[0].allowed, "the units are those of the limit");
}

pub(crate) async fn a_run_that_waits_for_nothing_waits_for_no_rate(backend: &dyn Backend) {
    let stores = backend.stores().await;
    triggered(&stores, &paced("quick", "10/1h burst 5", None), 2).await;
    let batch = stores.runs.lease(&request(10, LONG)).await.unwrap();
    assert_eq!((batch.runs.len(), batch.again, batch.paced_for), (2, false, None));
    assert_eq!(stores.runs.promote(10).await.unwrap(), PromoteReport::default());
}

pub(crate) async fn paced_runs_all_run_in_their_order(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let all = triggered(&stores, &paced("steady", "100/1s burst 3", None), 25).await;
    let done = work(&stores, 25).await;
    assert_eq!(ids(&done), all);
    check_windows(&mut done.iter().map(|run| run.leased_at).collect::<Vec<_>>(), 3, 100);
    assert_eq!(stores.runs.promote(10).await.unwrap(), PromoteReport::default(), "nobody waits any more");
}

pub(crate) async fn each_lease_takes_a_unit(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ids = triggered(&stores, &paced("flaky", "1/1h burst 2", None), 1).await;
    for _ in 0..2 {
        let leased = lease_one(&stores, LONG).await;
        finish(&stores, &leased, Ending::Released).await;
    }
    assert_eq!(lease(&stores, 10, LONG).await, []);
    assert_eq!(run(&stores, ids[0]).await.state, RunState::Waiting);
}

pub(crate) async fn a_key_is_shared_by_tasks_with_their_own_rates(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let slow = triggered(&stores, &paced("slow", "1/1h burst 1", Some("shared")), 2).await;
    let quick = triggered(&stores, &paced("quick", "1000/1h burst 1000", Some("shared")), 2).await;
    assert_eq!(run(&stores, quick[0]).await.pace_key.as_deref(), Some("runs:key:shared"));
    let leased = lease(&stores, 10, LONG).await;
    assert_eq!(ids(&leased), [slow[0]], "the unit of the slow one is as good as a thousand quick ones");
    assert_eq!(states(&stores, &quick).await, [RunState::Waiting; 2]);
}

pub(crate) async fn promotion_lets_no_more_go_than_the_limit_allows(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let all = triggered(&stores, &paced("steady", "50/1s burst 2", None), 12).await;
    let leased = lease(&stores, 12, LONG).await;
    assert!(leased.len() >= 2, "the burst comes at once");
    let full = database_time(&stores).await + TimeDelta::milliseconds(40);
    wait_past(&stores, full).await;
    let report = stores.runs.promote(10).await.unwrap();
    assert_eq!(report.paced, 2);
    assert!(report.paced_for.is_some());
    assert_eq!(stores.runs.promote(10).await.unwrap().paced, 0, "what is ready already is spoken for");
    assert_eq!(in_state(&stores, RunState::Queued).await.len(), 2);
    let next = lease(&stores, 1, LONG).await;
    assert_eq!(next[0].id, all[leased.len()], "the oldest goes first");
}

pub(crate) async fn nobody_overtakes_those_that_wait(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &paced("steady", "100/1s burst 1", None)).await;
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(trigger(&stores, new_run(task.id)).await);
    }
    let first = lease(&stores, 10, LONG).await;
    // The next unit comes, and with it a newcomer.
    let unit = database_time(&stores).await + TimeDelta::milliseconds(10);
    wait_past(&stores, unit).await;
    all.push(trigger(&stores, new_run(task.id)).await);
    let batch = stores.runs.lease(&request(10, LONG)).await.unwrap();
    assert_eq!((batch.runs, batch.paced_for), (vec![], Some(Span::default())), "the oldest may go, and go first");
    let rest = work(&stores, all.len() - first.len()).await;
    assert_eq!([ids(&first), ids(&rest)].concat(), all);
}

pub(crate) async fn a_pool_that_nobody_serves_keeps_no_other_waiting(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let away = TaskSpec { pool: "away".parse().unwrap(), ..paced("away", "100/1s burst 1", Some("shared")) };
    triggered(&stores, &away, 3).await;
    triggered(&stores, &paced("here", "100/1s burst 1", Some("shared")), 3).await;
    let both = LeaseRequest { pools: vec!["away".parse().unwrap(), PoolName::default_pool()], ..request(10, LONG) };
    let taken = stores.runs.lease(&both).await.unwrap().runs;
    let here = taken.iter().filter(|run| run.task_name.as_str() == "here").count();
    work(&stores, 3 - here).await;
}

pub(crate) async fn a_run_held_back_leaves_its_permit_to_the_next(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let concurrency = Some(Concurrency { key: "narrow".parse().unwrap(), max: 1 });
    let slow = TaskSpec { concurrency: concurrency.clone(), ..paced("slow", "1/1h burst 1", None) };
    let slow = triggered(&stores, &slow, 3).await;
    let quick = triggered(&stores, &spec("quick", |spec| spec.concurrency = concurrency), 2).await;
    let first = lease_one(&stores, LONG).await;
    assert_eq!(first.id, slow[0]);
    finish(&stores, &first, Ending::Succeeded(None)).await;
    for id in quick {
        let leased = lease_one(&stores, LONG).await;
        assert_eq!(leased.id, id, "no unit is left for the slow ones");
        finish(&stores, &leased, Ending::Succeeded(None)).await;
    }
    assert_eq!(lease(&stores, 10, LONG).await, []);
    assert_eq!(states(&stores, &slow[1..]).await, [RunState::Waiting; 2]);
}

pub(crate) async fn a_waiting_run_can_be_cancelled_whatever_it_waits_for(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let queueing = TaskSpec { overlap: Overlap::Queue, ..paced("one", "1/1h burst 2", None) };
    let all = triggered(&stores, &queueing, 3).await;
    for _ in 0..2 {
        let leased = lease_one(&stores, LONG).await;
        assert_eq!(leased.id, all[0]);
        let retry = Ending::Retry { error: "no".to_owned(), delay: Span::from_millis(1) };
        finish(&stores, &leased, retry).await;
        until(|| async { stores.runs.promote(10).await.unwrap().due }, |due| *due == 1).await;
    }
    // The first one has kept the permit of its task and waits for the rate limit, the others for the permit.
    assert_eq!(lease(&stores, 10, LONG).await, []);
    assert_eq!(states(&stores, &all).await, [RunState::Waiting; 3]);
    assert_eq!(stores.runs.cancel(&system(), all[1]).await.unwrap(), CancelOutcome::Cancelled);
    assert_eq!(stores.runs.cancel(&system(), all[0]).await.unwrap(), CancelOutcome::Cancelled);
    assert_eq!(run(&stores, all[2]).await.state, RunState::Queued, "the permit is free");
    assert_eq!(lease(&stores, 10, LONG).await, []);
    assert_eq!(stores.runs.cancel(&system(), all[2]).await.unwrap(), CancelOutcome::Cancelled);
    let report = stores.runs.promote(10).await.unwrap();
    assert_eq!(report, PromoteReport::default());
}

pub(crate) async fn delayed_runs_take_their_unit_when_they_start(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &paced("later", "1/1h burst 1", None)).await;
    trigger(&stores, NewRun { delay: LONG, ..new_run(task.id) }).await;
    let ready = trigger(&stores, new_run(task.id)).await;
    assert_eq!(lease_one(&stores, LONG).await.id, ready);
}

pub(crate) async fn leasers_together_keep_to_the_rate_in_every_window(backend: &dyn Backend) {
    const RUNS: usize = 60;
    let stores = replicas(backend, 4).await;
    let all = triggered(&stores[0], &paced("steady", "100/1s burst 5", None), RUNS).await;
    let ended = Arc::new(AtomicUsize::new(0));
    let starts = contend(&stores, 4, |stores, _| {
        let ended = ended.clone();
        async move {
            let mut starts = Vec::new();
            let patience = Patience::new();
            while ended.load(Ordering::SeqCst) < RUNS {
                stores.runs.promote(10).await.unwrap();
                for leased in stores.runs.lease(&request(3, LONG)).await.unwrap().runs {
                    starts.push(leased.leased_at);
                    finish(&stores, &leased, Ending::Succeeded(None)).await;
                    ended.fetch_add(1, Ordering::SeqCst);
                }
                patience.wait(&ended).await;
            }
            starts
        }
    })
    .await;
    let mut starts = starts.concat();
    assert_eq!(starts.len(), RUNS);
    let first = starts.iter().min().unwrap();
    assert!(*starts.iter().max().unwrap() - *first >= TimeDelta::milliseconds(500), "55 runs after the burst");
    check_windows(&mut starts, 5, 100);
    assert_eq!(states(&stores[0], &all).await, [RunState::Succeeded; RUNS]);
}

pub(crate) async fn thousands_that_wait_cost_a_pass_only_what_goes_on(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(
        &stores,
        &scheduled("flood", |spec| {
            spec.rate_limit = paced("x", "10/1h burst 10", None).rate_limit;
        }),
    )
    .await;
    let plan = plan(&task, 0, 2_000);
    stores.tasks.fire(&[plan]).await.unwrap();
    assert_eq!(lease(&stores, 3_000, LONG).await.len(), 10);
    for _ in 0..10 {
        let report = stores.runs.promote(500).await.unwrap();
        assert_eq!((report.paced, report.permitted, report.due), (0, 0, 0));
        assert!(!stores.runs.lease(&request(500, LONG)).await.unwrap().again);
    }
}
