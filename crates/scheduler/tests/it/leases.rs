//! Leases that are lost: whoever holds them stops, and what he says afterwards changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use switchboard_model::identity::PoolName;
use switchboard_model::instance::Role;
use switchboard_model::run::RunState;
use switchboard_model::setting::{FleetSettings, PoolSettings};
use switchboard_model::span::Span;
use switchboard_scheduler::{ActionError, SystemRegistry};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::faults::{FaultyRuns, Renewing};
use crate::fixtures::{Bench, context, eventually, json, spec};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_end_changes_nothing() {
    let bench = Bench::new().await;
    let (stores, faults) = FaultyRuns::put_into(&bench.stores);
    // The replica believes in a lease that the database neither gave nor prolonged, as after a long pause.
    *faults.granting.lock() = Some(Span::from_secs(1));
    *faults.renewing.lock() = Renewing::Lies;
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (started.clone(), go_on.clone());
    let paused = SystemRegistry::default().with("work", move |_| {
        let (tell, wait) = (tell.clone(), wait.clone());
        async move {
            tell.notify_one();
            wait.notified().await;
            Ok(json(r#""late""#))
        }
    });
    let first = bench.replica_with(&stores, paused, |options| {
        options.roles = vec![Role::Worker];
        options.permits = 1;
        options.lease = Span::from_secs(600);
    });
    let id = bench.triggered("work", |_| {}).await;
    started.notified().await;

    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let healthy = SystemRegistry::default().with("work", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(json(r#""in time""#)))
    });
    let second = bench.replica(healthy);
    let ended = bench.until_state(id, RunState::Succeeded).await;
    assert_eq!((ended.result.clone(), ended.attempt), (Some(json(r#""in time""#)), 2));

    assert_eq!(first.handle.running(), 1);
    go_on.notify_one();
    eventually(async || match first.handle.running() {
        0 => Ok(()),
        running => Err(running),
    })
    .await;
    assert_eq!(bench.run(id).await, ended);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    bench.close([first, second]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_stops_when_renewals_stay_unanswered() {
    let bench = Bench::new().await;
    let (stores, faults) = FaultyRuns::put_into(&bench.stores);
    *faults.renewing.lock() = Renewing::Hangs;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (calls, note) = (AtomicUsize::new(0), seen.clone());
    let registry = SystemRegistry::default().with("work", move |stop: CancellationToken| {
        let (call, note) = (calls.fetch_add(1, Ordering::SeqCst) + 1, note.clone());
        async move {
            if call == 1 {
                stop.cancelled().await;
                note.lock().push("stopped");
                return Err(ActionError::Permanent("stopped".to_owned()));
            }
            note.lock().push("again");
            Ok(json("2"))
        }
    });
    let replica = bench.replica_with(&stores, registry, |options| options.lease = Span::from_secs(8));
    let id = bench.triggered("work", |_| {}).await;
    eventually(async || match seen.lock().len() {
        0 => Err("not stopped"),
        _ => Ok(()),
    })
    .await;
    *faults.renewing.lock() = Renewing::Works;
    let run = bench.until_state(id, RunState::Succeeded).await;
    assert_eq!((run.result, run.attempt), (Some(json("2")), 2), "the first attempt left no trace but its number");
    assert_eq!(*seen.lock(), ["stopped", "again"]);
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_given_up_when_its_lease_is_lost() {
    let bench = Bench::new().await;
    let (stores, faults) = FaultyRuns::put_into(&bench.stores);
    *faults.renewing.lock() = Renewing::Hangs;
    faults.failing_finishes.store(u32::MAX, Ordering::SeqCst);
    let registry = SystemRegistry::default().with("work", |_| std::future::ready(Ok(json("1"))));
    let replica = bench.replica_with(&stores, registry, |options| options.lease = Span::from_secs(2));
    let id = bench.triggered("work", |spec| spec.max_attempts = 1_000).await;
    // The lease runs out at last: another attempt begins, while no end was ever recorded.
    let run = bench.until(id, |run| run.attempt >= 2).await;
    assert_eq!(run.result, None);
    *faults.renewing.lock() = Renewing::Works;
    faults.failing_finishes.store(0, Ordering::SeqCst);
    bench.until_state(id, RunState::Succeeded).await;
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_fails_once_loses_no_run() {
    loses_no_run(Renewing::FailsOnce).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_hangs_once_loses_no_run() {
    loses_no_run(Renewing::HangsOnce).await;
}

/// Lets the first renewal of a run go wrong, and the run end after the next one.
async fn loses_no_run(fault: Renewing) {
    let bench = Bench::new().await;
    let (stores, faults) = FaultyRuns::put_into(&bench.stores);
    *faults.renewing.lock() = fault;
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (started.clone(), go_on.clone());
    let registry = SystemRegistry::default().with("work", move |stop: CancellationToken| {
        let (tell, wait) = (tell.clone(), wait.clone());
        async move {
            tell.notify_one();
            tokio::select! {
                () = stop.cancelled() => Err(ActionError::Permanent("stopped".to_owned())),
                () = wait.notified() => Ok(json("1")),
            }
        }
    });
    // Long enough for the next renewal to come in time on a machine that stands still for seconds.
    let replica = bench.replica_with(&stores, registry, |options| options.lease = Span::from_secs(40));
    let id = bench.triggered("work", |_| {}).await;
    started.notified().await;
    bench.until_renewed(id).await;
    assert_eq!(*faults.renewing.lock(), Renewing::Works, "one renewal went wrong");
    go_on.notify_one();
    let run = bench.until_state(id, RunState::Succeeded).await;
    assert_eq!((run.result, run.attempt), (Some(json("1")), 1));
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_of_a_lease_loses_no_attempt() {
    let bench = Bench::new().await;
    let (stores, faults) = FaultyRuns::put_into(&bench.stores);
    faults.losing_leases.store(3, Ordering::SeqCst);
    let registry = SystemRegistry::default().with("work", |_| std::future::ready(Ok(json("1"))));
    let replica = bench.replica_with(&stores, registry, |options| {
        options.permits = 2;
        options.lease = Span::from_secs(60);
    });
    let task = bench.create(&spec("work", |spec| spec.max_attempts = 1)).await;
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(bench.trigger(&task).await);
    }
    for id in ids {
        let run = bench.until_state(id, RunState::Succeeded).await;
        assert_eq!((run.attempt, run.result), (1, Some(json("1"))));
    }
    assert_eq!(faults.losing_leases.load(Ordering::SeqCst), 0, "answers got lost");
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ends_makes_room_in_its_pool_at_once() {
    let bench = Bench::new().await;
    let mut fleet = FleetSettings::default();
    fleet.pools.insert(PoolName::default_pool(), PoolSettings { max_running: Some(1) });
    bench.stores.settings.put_fleet(&context(), 0, &fleet).await.unwrap();
    let running = Arc::new(AtomicUsize::new(0));
    let registry = SystemRegistry::default().with("work", move |_| {
        let running = running.clone();
        async move {
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two runs at once");
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(json("1"))
        }
    });
    let task = bench.create(&spec("work", |_| {})).await;
    let mut ids = Vec::new();
    for _ in 0..30 {
        ids.push(bench.trigger(&task).await);
    }
    // Nothing tells the replica of changes: only the ends of its own runs wake it.
    let replica = bench.replica_without_feed(&bench.stores, registry, |_| {});
    replica.observer.observe(&bench.tick().await);
    for id in ids {
        bench.until_state(id, RunState::Succeeded).await;
    }
    bench.close([replica]).await;
}
