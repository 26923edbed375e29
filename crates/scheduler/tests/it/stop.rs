//! The two phases of a stop.

use std::sync::Arc;

use switchboard_model::run::RunState;
use switchboard_model::span::Span;
use switchboard_scheduler::SystemRegistry;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{Bench, json, spec};

/// A registry whose function `work` tells that it has started and goes on when it is told to,
/// whatever the token says.
fn stubborn() -> (SystemRegistry, Arc<Notify>, Arc<Notify>) {
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (started.clone(), go_on.clone());
    let registry = SystemRegistry::default().with("work", move |_| {
        let (tell, wait) = (tell.clone(), wait.clone());
        async move {
            tell.notify_one();
            wait.notified().await;
            Ok(json("1"))
        }
    });
    (registry, started, go_on)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_soft_stop_lets_work_in_flight_end_and_takes_no_more() {
    let bench = Bench::new().await;
    let (registry, started, go_on) = stubborn();
    let replica = bench.replica_with(&bench.stores, registry, |options| options.lease = Span::from_secs(30));
    let task = bench.create(&spec("work", |_| {})).await;
    let in_flight = bench.trigger(&task).await;
    started.notified().await;

    replica.soft.cancel();
    let late = bench.trigger(&task).await;
    bench.until_renewed(in_flight).await;
    assert_eq!(replica.handle.running(), 1);

    go_on.notify_one();
    replica.handle.drained().await;
    assert_eq!(replica.handle.running(), 0);
    assert_eq!(bench.run(in_flight).await.state, RunState::Succeeded);
    assert_eq!(bench.run(late).await.state, RunState::Queued);
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hard_stop_gives_unfinished_work_back() {
    let bench = Bench::new().await;
    let (registry, started, _) = stubborn();
    let replica = bench.replica(registry);
    let id = bench.triggered("work", |_| {}).await;
    started.notified().await;
    replica.hard.cancel();
    replica.handle.drained().await;
    let run = bench.run(id).await;
    assert_eq!((run.state, run.attempt, run.result), (RunState::Queued, 0, None));
    bench.close([replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_is_done_in_spite_of_a_hard_stop_is_not_done_again() {
    let bench = Bench::new().await;
    let started = Arc::new(Notify::new());
    let tell = started.clone();
    let registry = SystemRegistry::default().with("work", move |stop: CancellationToken| {
        tell.notify_one();
        async move {
            stop.cancelled().await;
            Ok(json("1"))
        }
    });
    let replica = bench.replica(registry);
    let id = bench.triggered("work", |_| {}).await;
    started.notified().await;
    replica.hard.cancel();
    replica.handle.drained().await;
    let run = bench.run(id).await;
    assert_eq!((run.state, run.attempt, run.result), (RunState::Succeeded, 1, Some(json("1"))));
    bench.close([replica]).await;
}
