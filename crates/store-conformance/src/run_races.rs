//! Races of workers and replicas for runs: leases, permits, recovery and cancelling.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rand::Rng as _;
use rand::rngs::StdRng;
use switchboard_model::ids::{Fence, RunId};
use switchboard_model::run::{Ending, LeasedRun, RunState};
use switchboard_model::task::{Concurrency, Overlap, TaskSpec};
use switchboard_store_api::{CancelOutcome, FinishOutcome, RenewOutcome, Renewal, RunFilter, Stores, WorkerKind};

use crate::Backend;
use crate::fixtures::{
    LONG, SHORT, database_time, eventually, expire, finish, fired, in_state, lease, list, random, replicas, request,
    run, scheduled, spec, states, system, together, triggered, until,
};

/// The ids of leased runs, sorted.
fn ids<'a>(leased: impl IntoIterator<Item = &'a LeasedRun>) -> Vec<RunId> {
    let mut ids: Vec<_> = leased.into_iter().map(|run| run.id).collect();
    ids.sort();
    ids
}

/// A task whose runs share three permits.
fn limited(name: &str) -> TaskSpec {
    spec(name, |spec| {
        spec.concurrency = Some(Concurrency { key: "shared".parse().unwrap(), max: 3 });
        spec.max_attempts = 1_000_000;
    })
}

pub(crate) async fn leasers_share_all_runs_without_overlap(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    fired(&stores[0], &scheduled("shared", |_| {}), 1_000).await;
    let mut all: Vec<_> = list(&stores[0], RunFilter::default()).await.iter().map(|run| run.id).collect();
    all.sort();
    let leased = together((0..8).map(|n| {
        let stores = stores[n % 4].clone();
        async move {
            let mut mine = Vec::new();
            loop {
                let batch = stores.runs.lease(&request(17, LONG)).await.unwrap();
                if batch.runs.is_empty() && !batch.again {
                    return mine;
                }
                mine.extend(batch.runs);
            }
        }
    }))
    .await;
    assert_eq!(ids(leased.iter().flatten()), all, "each run is leased once");
    let fences: BTreeSet<_> = leased.iter().flatten().map(|run| run.fence).collect();
    assert_eq!(fences.len(), 1_000);
    assert_eq!(in_state(&stores[0], RunState::Running).await.len(), 1_000);
}

/// What the workers of the permit race did.
#[derive(Default)]
struct Ledger {
    /// Runs that a worker has now under a lease that lasts; never more than really hold a permit.
    working: BTreeSet<RunId>,
    leases: BTreeMap<RunId, BTreeSet<Fence>>,
    accepted: BTreeMap<RunId, u32>,
    late: u32,
}

/// A worker that forgets some of its runs, and reports others when their lease is over.
async fn careless(stores: Stores, ledger: Arc<Mutex<Ledger>>, done: Arc<AtomicBool>, mut random: StdRng) {
    while !done.load(Ordering::SeqCst) {
        let forgets = random.random_bool(0.3);
        let length = if forgets { SHORT } else { LONG };
        let batch = until(
            async || stores.runs.lease(&request(2, length)).await.unwrap().runs,
            |runs| !runs.is_empty() || done.load(Ordering::SeqCst),
        )
        .await;
        {
            let mut ledger = ledger.lock().unwrap();
            for run in &batch {
                // A brief lease may be over by now, and its run with somebody else.
                assert!(forgets || ledger.working.insert(run.id), "one run, two workers");
                assert!(ledger.leases.entry(run.id).or_default().insert(run.fence), "one fence, two leases");
            }
            assert!(ledger.working.len() <= 3, "{} runs hold three permits", ledger.working.len());
        }
        for leased in batch {
            if forgets && random.random_bool(0.5) {
                continue;
            }
            if forgets {
                expire_unless_ended(&stores, &leased).await;
            } else {
                ledger.lock().unwrap().working.remove(&leased.id);
            }
            if finish(&stores, &leased, Ending::Succeeded(None)).await == FinishOutcome::Fenced {
                assert!(forgets, "a live lease was taken away");
                ledger.lock().unwrap().late += 1;
            } else {
                *ledger.lock().unwrap().accepted.entry(leased.id).or_default() += 1;
            }
        }
    }
}

/// Waits until this lease is over or was taken away.
async fn expire_unless_ended(stores: &Stores, leased: &LeasedRun) {
    until(
        async || (run(stores, leased.id).await, database_time(stores).await),
        |(run, now)| run.fence != leased.fence || run.state != RunState::Running || run.lease_until < Some(*now),
    )
    .await;
}

pub(crate) async fn permits_are_never_exceeded_and_nothing_is_stuck(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let all = triggered(&stores[0], &limited("limited"), 40).await;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let done = Arc::new(AtomicBool::new(false));
    let mut seeds = random();
    let workers = together((0..12).map(|n| {
        let random = rand::SeedableRng::from_rng(&mut seeds);
        careless(stores[n % 4].clone(), ledger.clone(), done.clone(), random)
    }));
    let sweepers = together(stores[..2].iter().cloned().map(|stores| {
        let done = done.clone();
        async move {
            eventually(async || {
                let report = (stores.runs.recover(10).await.unwrap(), stores.runs.promote(10).await.unwrap());
                if done.load(Ordering::SeqCst) { Ok(()) } else { Err(report) }
            })
            .await;
        }
    }));
    let watch = async {
        eventually(async || {
            let running = in_state(&stores[3], RunState::Running).await.len();
            assert!(running <= 3, "{running} runs hold three permits");
            let succeeded = in_state(&stores[3], RunState::Succeeded).await.len();
            if succeeded == all.len() { Ok(()) } else { Err(format!("{succeeded} succeeded, {running} running")) }
        })
        .await;
        done.store(true, Ordering::SeqCst);
    };
    futures_util::future::join3(workers, sweepers, watch).await;

    let ended = in_state(&stores[0], RunState::Succeeded).await;
    {
        let ledger = ledger.lock().unwrap();
        println!("{} reports came too late", ledger.late);
        for run in ended {
            assert_eq!(ledger.accepted.get(&run.id), Some(&1), "each run ends once");
            assert_eq!(ledger.leases[&run.id].len(), run.attempt as usize, "each lease counts once");
        }
    }
    check_permits_are_free(&stores[0]).await;
}

/// Checks that permits are free again: three new runs can be leased.
async fn check_permits_are_free(stores: &Stores) {
    let fresh = triggered(stores, &limited("fresh"), 4).await;
    let leased = lease(stores, 10, LONG).await;
    assert_eq!(ids(&leased), fresh[..3], "three permits are free");
}

pub(crate) async fn concurrent_finish_and_recovery_have_one_winner(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    triggered(&stores[0], &spec("late", |_| {}), 20).await;
    let leased = lease(&stores[0], 20, SHORT).await;
    expire(&stores[0], leased[19].id).await;
    let finishing = together(leased.iter().cloned().enumerate().map(|(n, leased)| {
        let stores = stores[n % 4].clone();
        async move { (leased.id, finish(&stores, &leased, Ending::Succeeded(None)).await) }
    }));
    let recovering =
        together(stores.iter().cloned().map(|stores| async move { stores.runs.recover(8).await.unwrap().requeued }));
    let (finished, recovered) = futures_util::future::join(finishing, recovering).await;
    let mut accepted = 0;
    for (id, outcome) in finished {
        let state = run(&stores[0], id).await.state;
        match outcome {
            FinishOutcome::Accepted(ended) => {
                assert_eq!((ended, state), (RunState::Succeeded, RunState::Succeeded));
                accepted += 1;
            }
            FinishOutcome::Fenced => assert_eq!(state, RunState::Queued),
            FinishOutcome::Repeated(ended) => panic!("the end was reported once, the run is {ended}"),
        }
    }
    assert_eq!(accepted + recovered.iter().sum::<u64>(), 20);
}

pub(crate) async fn recovery_never_touches_a_live_lease(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    triggered(&stores[0], &spec("mixed", |_| {}), 30).await;
    let live = lease(&stores[0], 10, LONG).await;
    let lost = lease(&stores[0], 20, SHORT).await;
    let renewals: Vec<_> = live.iter().map(|run| Renewal { id: run.id, fence: run.fence }).collect();
    expire(&stores[0], lost[19].id).await;
    let renewing = async {
        for _ in 0..20 {
            let outcomes = stores[0].runs.renew(WorkerKind::Replica, &renewals, LONG).await.unwrap();
            assert_eq!(outcomes, [RenewOutcome::Renewed; 10]);
        }
    };
    let recovering = together(stores.iter().cloned().map(|stores| async move {
        let mut requeued = 0;
        for _ in 0..10 {
            requeued += stores.runs.recover(3).await.unwrap().requeued;
        }
        requeued
    }));
    let (_, requeued) = futures_util::future::join(renewing, recovering).await;
    assert_eq!(requeued.iter().sum::<u64>(), 20);
    for leased in &live {
        let run = run(&stores[0], leased.id).await;
        assert_eq!((run.state, run.fence, run.attempt), (RunState::Running, leased.fence, 1));
    }
    assert_eq!(states(&stores[0], &ids(&lost)).await, [RunState::Queued; 20]);
}

pub(crate) async fn parallel_reports_on_one_lease_end_it_once(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    triggered(&stores[0], &spec("reported", |_| {}), 10).await;
    let leased = lease(&stores[0], 10, LONG).await;
    let outcomes = together((0..40).map(|n| {
        let (stores, leased) = (stores[n % 4].clone(), leased[n % 10].clone());
        async move { (leased.id, finish(&stores, &leased, Ending::Failed(format!("report {n}"))).await) }
    }))
    .await;
    for leased in &leased {
        let accepted = (leased.id, FinishOutcome::Accepted(RunState::Failed));
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == accepted).count(), 1);
    }
}

pub(crate) async fn cancel_and_retry_end_in_cancelled_and_free_the_hold(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let mut followers = Vec::new();
    for n in 0..10 {
        let queueing = spec(&format!("t{n}"), |spec| spec.overlap = Overlap::Queue);
        followers.push(triggered(&stores[0], &queueing, 2).await[1]);
    }
    let leased = lease(&stores[0], 20, LONG).await;
    assert_eq!(leased.len(), 10);
    let outcomes = together(leased.iter().cloned().enumerate().map(|(n, leased)| {
        let (one, two) = (stores[n % 4].clone(), stores[(n + 1) % 4].clone());
        async move {
            let retry = Ending::Retry { error: "no".to_owned(), delay: LONG };
            let context = system();
            let cancelling = async { two.runs.cancel(&context, leased.id).await.unwrap() };
            futures_util::future::join(finish(&one, &leased, retry), cancelling).await
        }
    }))
    .await;
    for outcome in outcomes {
        let asked_first = (FinishOutcome::Accepted(RunState::Cancelled), CancelOutcome::Requested);
        let retried_first = (FinishOutcome::Accepted(RunState::Scheduled), CancelOutcome::Cancelled);
        assert!(outcome == asked_first || outcome == retried_first, "{outcome:?}");
    }
    assert_eq!(states(&stores[0], &ids(&leased)).await, [RunState::Cancelled; 10]);
    assert_eq!(ids(&lease(&stores[0], 20, LONG).await), followers, "every hold is free");
}

pub(crate) async fn cancel_and_success_agree_on_one_ending(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    triggered(&stores[0], &spec("done", |_| {}), 20).await;
    let leased = lease(&stores[0], 20, LONG).await;
    let outcomes = together(leased.iter().cloned().enumerate().map(|(n, leased)| {
        let (one, two) = (stores[n % 4].clone(), stores[(n + 1) % 4].clone());
        async move {
            let context = system();
            let cancelling = async { two.runs.cancel(&context, leased.id).await.unwrap() };
            futures_util::future::join(finish(&one, &leased, Ending::Succeeded(None)), cancelling).await
        }
    }))
    .await;
    for (finished, cancelled) in outcomes {
        assert_eq!(finished, FinishOutcome::Accepted(RunState::Succeeded));
        assert!(matches!(cancelled, CancelOutcome::Requested | CancelOutcome::Ended(RunState::Succeeded)));
    }
    assert_eq!(states(&stores[0], &ids(&leased)).await, [RunState::Succeeded; 20]);
}

pub(crate) async fn cancel_and_lease_agree_on_who_started(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let all = triggered(&stores[0], &limited("limited"), 20).await;
    let leasing = together(stores.iter().cloned().map(|stores| async move { lease(&stores, 10, LONG).await }));
    let cancelling = together(all.iter().copied().enumerate().map(|(n, id)| {
        let stores = stores[n % 4].clone();
        async move { (id, stores.runs.cancel(&system(), id).await.unwrap()) }
    }));
    let (leased, cancelled) = futures_util::future::join(leasing, cancelling).await;
    let leased: Vec<_> = leased.into_iter().flatten().collect();
    // A run that was asked to stop has a holder; one that was cancelled has none.
    let mut asked: Vec<_> = cancelled
        .iter()
        .filter(|(_, outcome)| match outcome {
            CancelOutcome::Requested => true,
            CancelOutcome::Cancelled => false,
            other => panic!("unexpected {other:?}"),
        })
        .map(|(id, _)| *id)
        .collect();
    asked.sort();
    assert_eq!(ids(&leased), asked);
    for leased in &leased {
        assert_eq!(finish(&stores[0], leased, Ending::Cancelled).await, FinishOutcome::Accepted(RunState::Cancelled));
    }
    assert_eq!(states(&stores[0], &all).await, [RunState::Cancelled; 20]);
    check_permits_are_free(&stores[0]).await;
}
