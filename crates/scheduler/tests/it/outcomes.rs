//! How attempts end and what follows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use switchboard_model::json_text::JsonText;
use switchboard_model::run::{Ending, RunState};
use switchboard_model::span::Span;
use switchboard_scheduler::{ActionError, SystemRegistry};
use switchboard_store_api::CancelOutcome;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::faults::FaultyRuns;
use crate::fixtures::{Bench, context, eventually, json};

/// A registry whose function `act` answers by the number of its call, and that number.
fn acting(
    act: impl Fn(usize) -> Result<JsonText, ActionError> + Send + Sync + 'static,
) -> (SystemRegistry, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let act = Arc::new(act);
    let registry = SystemRegistry::default().with("act", move |_| {
        let (act, call) = (act.clone(), counted.fetch_add(1, Ordering::SeqCst) + 1);
        async move { act(call) }
    });
    (registry, calls)
}

/// A registry whose function `wait` tells that it has started, then waits until it is stopped.
fn waiting() -> (SystemRegistry, Arc<Notify>) {
    let started = Arc::new(Notify::new());
    let tell = started.clone();
    let registry = SystemRegistry::default().with("wait", move |stop: CancellationToken| {
        tell.notify_one();
        async move {
            stop.cancelled().await;
            Err(ActionError::Permanent("stopped".to_owned()))
        }
    });
    (registry, started)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_triggered_run_succeeds_with_its_result() {
    let bench = Bench::new().await;
    let (registry, _) = acting(|_| Ok(json(r#"{"rows": 3}"#)));
    let replica = bench.replica(registry);
    let id = bench.triggered("act", |_| {}).await;
    let run = bench.until_state(id, RunState::Succeeded).await;
    assert_eq!((run.result, run.error, run.attempt), (Some(json(r#"{"rows": 3}"#)), None, 1));
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_action_is_retried_until_its_run_is_dead() {
    let bench = Bench::new().await;
    let (registry, calls) = acting(|call| Err(ActionError::retryable(format!("failure {call}\n"))));
    let replica = bench.replica(registry);
    let id = bench.triggered("act", |spec| spec.max_attempts = 3).await;
    let run = bench.until_state(id, RunState::Dead).await;
    assert_eq!((run.error.as_deref(), run.attempt), (Some("failure 3 "), 3));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_action_may_say_how_long_to_wait() {
    let bench = Bench::new().await;
    let after = Some(Span::from_secs(3_600));
    let (registry, _) = acting(move |_| Err(ActionError::Retryable { error: "busy".to_owned(), after }));
    let replica = bench.replica(registry);
    let id = bench.triggered("act", |_| {}).await;
    let run = bench.until_state(id, RunState::Scheduled).await;
    assert!(run.run_at >= run.started_at.unwrap() + Span::from_secs(3_600).to_delta());
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permanent_failure_is_not_retried() {
    let bench = Bench::new().await;
    let (registry, calls) = acting(|_| Err(ActionError::Permanent("no such place".to_owned())));
    let replica = bench.replica(registry);
    let id = bench.triggered("act", |_| {}).await;
    let run = bench.until_state(id, RunState::Failed).await;
    assert_eq!((run.error.as_deref(), run.attempt), (Some("no such place"), 1));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_fails_its_attempt_only() {
    let bench = Bench::new().await;
    let (registry, _) = acting(|call| if call == 1 { panic!("as the test wants it") } else { Ok(json("2")) });
    let replica = bench.replica(registry);
    let id = bench.triggered("act", |spec| spec.max_attempts = 2).await;
    let run = bench.until_state(id, RunState::Succeeded).await;
    assert_eq!((run.result, run.attempt), (Some(json("2")), 2));
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_function_fails_the_attempt() {
    let bench = Bench::new().await;
    let replica = bench.replica(SystemRegistry::default());
    let id = bench.triggered("nowhere", |spec| spec.max_attempts = 1).await;
    let run = bench.until_state(id, RunState::Dead).await;
    assert_eq!(run.error.as_deref(), Some(r#"this replica knows no function "nowhere""#));
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_takes_too_long_is_stopped() {
    let bench = Bench::new().await;
    let (registry, started) = waiting();
    let replica = bench.replica(registry);
    let id = bench
        .triggered("wait", |spec| {
            spec.timeout = Some(Span::from_millis(50));
            spec.max_attempts = 1;
        })
        .await;
    started.notified().await;
    let run = bench.until_state(id, RunState::Dead).await;
    assert_eq!(run.error.as_deref(), Some("timed out"));
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_run_can_be_cancelled_between_renewals() {
    let bench = Bench::new().await;
    let (registry, started) = waiting();
    // Renewed every 30 s: only the request itself can bring the renewal that sees it in time.
    let replica = bench.replica_with(&bench.stores, registry, |options| options.lease = Span::from_secs(90));
    let id = bench.triggered("wait", |_| {}).await;
    started.notified().await;
    assert_eq!(bench.stores.runs.cancel(&context(), id).await.unwrap(), CancelOutcome::Requested);
    let run = bench.until_state(id, RunState::Cancelled).await;
    assert_eq!((run.error, run.attempt), (None, 1));
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_runs_than_permits_go_at_the_same_time() {
    let bench = Bench::new().await;
    let now = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    let registry = SystemRegistry::default().with("crowd", move |_| {
        let (now, most) = (now.clone(), most.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // All permits are in use before the first run ends; a further run would come in meanwhile.
            while most.load(Ordering::SeqCst) < 3 {
                tokio::task::yield_now().await;
            }
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(json("null"))
        }
    });
    let task = bench.create(&crate::fixtures::spec("crowd", |_| {})).await;
    for _ in 0..40 {
        bench.trigger(&task).await;
    }
    let replica = bench.replica_with(&bench.stores, registry, |options| options.permits = 3);
    eventually(async || {
        let runs = bench.runs(task.id).await;
        let succeeded = runs.iter().filter(|run| run.state == RunState::Succeeded).count();
        if succeeded == 40 { Ok(()) } else { Err(succeeded) }
    })
    .await;
    assert_eq!(seen.load(Ordering::SeqCst), 3);
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_recorded_after_the_database_was_away() {
    let bench = Bench::new().await;
    let (stores, faults) = FaultyRuns::put_into(&bench.stores);
    faults.failing_finishes.store(3, Ordering::SeqCst);
    let (registry, calls) = acting(|_| Ok(json("1")));
    let replica = bench.replica_with(&stores, registry, |_| {});
    let id = bench.triggered("act", |_| {}).await;
    let run = bench.until_state(id, RunState::Succeeded).await;
    assert_eq!((run.attempt, calls.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(faults.failing_finishes.load(Ordering::SeqCst), 0);
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_is_refused_does_not_harm_its_neighbours() {
    let bench = Bench::new().await;
    let (stores, faults) = FaultyRuns::put_into(&bench.stores);
    let (registry, calls) = acting(|_| Ok(json("1")));
    let task = bench.create(&crate::fixtures::spec("act", |_| {})).await;
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(bench.trigger(&task).await);
    }
    let refused = ids.remove(5);
    *faults.refused.lock() = Some(refused);
    // The first batch is held back until the others have gathered behind it.
    faults.finishes.forget_permits(1_000);
    // The lease of the refused one outlives the test.
    let replica = bench.replica_with(&stores, registry, |options| options.lease = Span::from_secs(600));
    eventually(async || match calls.load(Ordering::SeqCst) {
        10 => Ok(()),
        called => Err(called),
    })
    .await;
    faults.finishes.add_permits(1_000);
    for id in ids {
        bench.until_state(id, RunState::Succeeded).await;
    }
    eventually(async || match replica.handle.running() {
        0 => Ok(()),
        running => Err(running),
    })
    .await;
    let run = bench.run(refused).await;
    assert_eq!((run.state, run.result), (RunState::Running, None), "nothing claims that it ended");

    // It is still leased, so nobody else can have finished it in between.
    let late = switchboard_model::run::Finish { id: refused, fence: run.fence, ending: Ending::Released };
    bench.stores.runs.finish(&[late]).await.unwrap();
    bench.close([replica]).await;
}
