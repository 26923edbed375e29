//! Databases that hang, vanish and come back: nothing is lost, and replicas recover by themselves.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use switchboard_model::page::PageRequest;
use switchboard_model::run::RunState;
use switchboard_model::wire::op::Since;
use switchboard_testkit::proxy::Traffic;
use switchboard_testkit::{Cluster, Eventually, ledger, wait_until};
use tokio::time::Instant;

use crate::fixtures::{
    all_events, cluster, create_room, create_task, ended, event, event_task, gated_task, held_by, is_on, next_event,
    room, runs, skips, slow_task, succeeded, trigger,
};

/// Ten times what a replica needs to give up a request, a lease or a connection; less than the minute that the client
/// waits, and far less than the server would.
const SOON: Duration = Duration::from_secs(50);

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_database_falls_silent_gives_up_its_runs_and_comes_back() {
    // Fewer permits than runs that go on, so that neither replica takes them all.
    let cluster = cluster(2)
        .env("SWITCHBOARD_SCHEDULER__PERMITS", "4")
        .env("SWITCHBOARD_SERVER__REQUEST_TIMEOUT", "10m")
        .lease("2s".parse().unwrap())
        .through_proxy(0)
        .await;
    create_room(cluster.client(1), "lobby").await;
    let task = create_task(cluster.client(1), gated_task("held")).await;
    let triggered = join_all((0..8).map(|_| trigger(cluster.client(1), task.id))).await;
    let left_behind = held_by(cluster.client(1), task.id, "a-").await;
    cluster.proxy(0).set(Traffic::Swallowed);
    let fallen_silent = Instant::now();

    let asked = Instant::now();
    let refused = cluster.client(0).list_tasks(PageRequest::default()).await.unwrap_err();
    assert_eq!(refused.status(), Some(503), "{refused}");
    assert!(asked.elapsed() < SOON, "refused after {:?}", asked.elapsed());
    Eventually::new("unreadiness")
        .within(SOON)
        .holds(async || cluster.client(0).ready().await.is_err().then_some(()))
        .await;
    cluster.client(0).live().await.unwrap();

    cluster.open_gate();
    for run in triggered {
        let run = ended(cluster.client(1), run).await;
        assert_eq!(run.state, RunState::Succeeded, "{run:?}");
        let is_moved = is_on(&run, "b-") && run.attempt >= 2;
        assert!(is_moved || !left_behind.contains(&run.id), "a run of the silent replica ends on the other: {run:?}");
    }
    assert!(fallen_silent.elapsed() < SOON * 2, "recovered after {:?}", fallen_silent.elapsed());

    cluster.proxy(0).set(Traffic::Flows);
    wait_until("readiness", async || cluster.client(0).ready().await).await;
    is_working(&cluster).await;
    let mut socket = cluster.socket(0, "ann").await;
    socket.handle().join(&room("lobby"), Since::default()).await.unwrap();
    cluster.client(1).publish(&room("lobby"), &event("note", serde_json::json!(1))).await.unwrap();
    assert_eq!(next_event(&mut socket).await.event.as_str(), "note");
}

/// Waits until the first replica executes new runs.
async fn is_working(cluster: &Cluster) {
    let task = create_task(cluster.client(0), slow_task("again")).await;
    wait_until("a run on the replica that is back", async || {
        // More than the other one can take at once.
        for _ in 0..8 {
            trigger(cluster.client(0), task.id).await;
        }
        let runs = runs(cluster.client(0), task.id).await;
        runs.iter().any(|run| is_on(run, "a-")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_runs_survive_a_restart_of_postgresql() {
    let mut cluster = cluster(2).lease("2s".parse().unwrap()).own_server().await;
    create_room(cluster.client(0), "lobby").await;
    let mut value = event_task("tick", "lobby");
    value["schedule"] = serde_json::json!({"every": {"interval": "200ms"}});
    let ticking = create_task(cluster.client(0), value).await;
    let mut value = event_task("note", "lobby");
    // However many leases a busy machine loses.
    value["max_attempts"] = serde_json::json!(1000);
    let note = create_task(cluster.client(0), value).await;
    let gated = create_task(cluster.client(0), gated_task("held")).await;
    let mut triggered = Vec::new();
    for n in 0..24 {
        let task = if n % 4 == 0 { gated.id } else { note.id };
        triggered.push(trigger(cluster.client(n % 2), task).await);
    }
    tokio::task::block_in_place(|| cluster.database_mut().restart_server());
    cluster.open_gate();

    for index in 0..2 {
        wait_until("readiness", async || cluster.client(index).ready().await).await;
    }
    for run in triggered {
        let run = ended(cluster.client(0), run).await;
        assert_eq!(run.state, RunState::Succeeded, "{run:?}");
    }
    let before = runs(cluster.client(1), ticking.id).await.len();
    let runs = succeeded(cluster.client(1), ticking.id, before + 5).await;
    let due: BTreeSet<_> = runs.iter().filter_map(|run| run.scheduled_for).collect();
    let skips = skips(cluster.client(1), ticking.id).await;
    let window = *due.first().unwrap()..=*due.last().unwrap();
    ledger::occurrences(ticking.spec.schedule.as_ref().unwrap(), window, &runs, &skips).unwrap();
    let events = all_events(cluster.client(0)).await;
    assert_eq!(events.iter().collect::<BTreeSet<_>>().len(), events.len(), "no run published twice");
}
