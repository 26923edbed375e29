//! Due tasks become runs, each occurrence once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use chrono::TimeDelta;
use switchboard_model::run::{Run, RunState, Trigger};
use switchboard_model::setting::FleetSettings;
use switchboard_scheduler::SystemRegistry;
use switchboard_store_api::PutOutcome;

use crate::fixtures::{Bench, context, eventually, every_100_ms, json};

/// Calls of `count` are counted and succeed.
fn counting() -> (SystemRegistry, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let registry = SystemRegistry::default().with("count", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(json("null")))
    });
    (registry, calls)
}

/// Asserts that scheduled runs, newest first, are one for each occurrence of a 100 ms grid.
fn assert_each_occurrence_once(runs: &[Run]) {
    let occurrences: Vec<_> = runs.iter().rev().map(|run| run.scheduled_for.expect("the schedule made it")).collect();
    for pair in occurrences.windows(2) {
        assert_eq!(pair[1] - pair[0], TimeDelta::milliseconds(100));
    }
    assert!(runs.iter().all(|run| run.trigger == Trigger::Schedule));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_occurrence_fires_and_executes_once_over_several_replicas() {
    let bench = Bench::new().await;
    let (registries, calls): (Vec<_>, Vec<_>) = (0..3).map(|_| counting()).unzip();
    let replicas: Vec<_> = registries.into_iter().map(|registry| bench.replica(registry)).collect();
    let task = bench.create(&every_100_ms("count")).await;
    eventually(async || {
        let runs = bench.runs(task.id).await;
        if runs.len() >= 20 { Ok(()) } else { Err(runs.len()) }
    })
    .await;
    bench.stores.tasks.delete(&context(), task.id).await.unwrap();
    let runs = eventually(async || {
        let runs = bench.runs(task.id).await;
        if runs.iter().all(|run| run.state == RunState::Succeeded) { Ok(runs) } else { Err(runs) }
    })
    .await;
    assert_each_occurrence_once(&runs);
    assert!(runs.iter().all(|run| run.attempt == 1));
    assert_eq!(calls.iter().map(|calls| calls.load(Ordering::SeqCst)).sum::<usize>(), runs.len());
    bench.close(replicas).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn firing_goes_on_by_its_own_timers_between_ticks() {
    let bench = Bench::new().await;
    let (registry, calls) = counting();
    let replica = bench.replica_without_feed(&bench.stores, registry, |_| {});
    let task = bench.create(&every_100_ms("count")).await;
    replica.observer.observe(&bench.tick().await);
    eventually(async || {
        let called = calls.load(Ordering::SeqCst);
        if called >= 10 { Ok(()) } else { Err((called, replica.handle.loops())) }
    })
    .await;
    assert_each_occurrence_once(&bench.runs(task.id).await);
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fires_while_the_fleet_settings_forbid_it() {
    let bench = Bench::new().await;
    let put = async |expected, scheduler_enabled| {
        let value = FleetSettings { scheduler_enabled, ..FleetSettings::default() };
        let outcome = bench.stores.settings.put_fleet(&context(), expected, &value).await.unwrap();
        assert_eq!(outcome, PutOutcome::Written(expected + 1));
    };
    put(0, false).await;
    let (registry, _) = counting();
    let replica = bench.replica(registry);
    let task = bench.create(&every_100_ms("count")).await;
    let is_due = async || bench.tick().await.next.task.is_some_and(|due| due < task.created_at + TimeDelta::seconds(1));
    eventually(async || {
        let loops = replica.handle.loops();
        let fire = loops.into_iter().find(|status| status.name == "scheduler.fire").unwrap();
        if fire.report.starts_with("disabled") && is_due().await { Ok(()) } else { Err(fire) }
    })
    .await;
    assert_eq!(bench.runs(task.id).await, []);

    put(1, true).await;
    eventually(async || {
        let runs = bench.runs(task.id).await;
        if runs.len() >= 3 { Ok(()) } else { Err(runs) }
    })
    .await;
    bench.close([replica]).await;
}
