//! Replicas that die or stand still at the worst moments: nothing is lost and nothing is done twice.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use switchboard_client::{Client, ResumeEvent, ResumingSocket};
use switchboard_model::ids::{RunId, TaskId};
use switchboard_model::run::RunState;
use switchboard_model::wire::frame::EventFrame;
use switchboard_model::wire::op::{Since, SinceEnd};
use switchboard_testkit::{ClusterBuilder, Signal, ledger, wait_until};

use crate::fixtures::{
    all_events, cluster, create_room, create_task, ended, event, event_task, is_on, room, runs, skips, slow_task,
    succeeded, trigger,
};

/// A cluster whose leases run out quickly.
fn short_leases(size: usize) -> ClusterBuilder {
    cluster(size).lease("2s".parse().unwrap())
}

/// Waits for events on a resuming socket up to an offset.
async fn events_to(socket: &mut ResumingSocket, last: i64) -> Vec<EventFrame> {
    let mut events = Vec::new();
    loop {
        match socket.next().await {
            Some(ResumeEvent::Event(frame)) => {
                let is_last = frame.offset == Some(last);
                events.push(frame);
                if is_last {
                    return events;
                }
            }
            Some(ResumeEvent::Desync { room, reason }) => panic!("{room} lost events: {reason}"),
            Some(ResumeEvent::Stopped(cause)) => panic!("stopped: {cause:?}"),
            Some(_) => {}
            None => panic!("the socket ended"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_loses_and_doubles_nothing() {
    // Fewer permits than runs, so that neither replica takes them all.
    let mut cluster = short_leases(2).env("SWITCHBOARD_SCHEDULER__PERMITS", "8").await;
    create_room(cluster.client(1), "lobby").await;
    let mut value = event_task("tick", "lobby");
    value["schedule"] = serde_json::json!({"every": {"interval": "200ms"}});
    let task = create_task(cluster.client(1), value).await;
    let slow = create_task(cluster.client(1), slow_task("slow")).await;
    let socket = cluster.resuming_socket("ann");
    let mut socket = socket;
    socket.handle().join(&room("lobby"), Since::End(SinceEnd::Earliest)).await.unwrap();
    let triggered = join_all((0..20).map(|_| trigger(cluster.client(1), slow.id))).await;
    wait_until("runs on the replica that dies", async || {
        let runs = runs(cluster.client(1), slow.id).await;
        runs.iter().any(|run| run.state == RunState::Running && is_on(run, "a-")).then_some(())
    })
    .await;
    cluster.kill(0, Signal::SIGKILL);
    let left_behind = running_on(cluster.client(1), slow.id, "a-").await;
    assert!(!left_behind.is_empty(), "it died with runs in its hands");

    for run in triggered {
        let run = ended(cluster.client(1), run).await;
        assert_eq!(run.state, RunState::Succeeded);
        if left_behind.contains(&run.id) {
            assert!(is_on(&run, "b-") && run.attempt >= 2, "a run of the dead replica ends on the other: {run:?}");
        }
    }
    let runs_of_tick = succeeded(cluster.client(1), task.id, 30).await;
    let due: BTreeSet<_> = runs_of_tick.iter().filter_map(|run| run.scheduled_for).collect();
    let skips = skips(cluster.client(1), task.id).await;
    let window = *due.first().unwrap()..=*due.last().unwrap();
    ledger::occurrences(task.spec.schedule.as_ref().unwrap(), window, &runs_of_tick, &skips).unwrap();
    let top = cluster.client(1).history(&room("lobby"), 0, 1).await.unwrap().top;
    let events = events_to(&mut socket, top).await;
    ledger::positions(&events, 1..=top).unwrap();
    let messages: BTreeSet<_> = events.iter().map(|event| &event.msg_id).collect();
    assert_eq!(messages.len(), events.len(), "no run published twice");
}

/// Lists the runs of a task that a replica holds.
async fn running_on(client: &Client, task: TaskId, replica: &str) -> Vec<RunId> {
    let runs = runs(client, task).await;
    runs.iter().filter(|run| run.state == RunState::Running && is_on(run, replica)).map(|run| run.id).collect()
}

/// The first replica dies at a fail point while it works on runs; all runs end well all the same.
async fn dies_at(point: &str) {
    let mut cluster = short_leases(1).fail_point(0, point).await;
    let added = cluster.add().await;
    create_room(cluster.client(added), "lobby").await;
    let task = create_task(cluster.client(added), event_task("note", "lobby")).await;
    let slow = create_task(cluster.client(added), slow_task("slow")).await;
    let mut triggered = Vec::new();
    // Whichever replica gets them: more come until the first one has passed the point and died.
    let ended_by_itself = loop {
        triggered.push(trigger(cluster.client(added), task.id).await);
        triggered.push(trigger(cluster.client(added), slow.id).await);
        if let Some(status) = cluster.has_ended(0) {
            break status;
        }
        assert!(triggered.len() < 4_000, "the replica never came to {point}");
    };
    assert!(!ended_by_itself.success(), "{ended_by_itself}");
    for run in &triggered {
        let run = ended(cluster.client(added), *run).await;
        assert_eq!(run.state, RunState::Succeeded, "{run:?}");
    }
    let history = all_events(cluster.client(added)).await;
    let messages: BTreeSet<_> = history.iter().collect();
    assert_eq!(messages.len(), history.len(), "no event twice");
    assert_eq!(history.len(), triggered.len() / 2, "no event lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_after_a_claim_loses_nothing() {
    dies_at("after_claim:2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_before_a_finish_is_committed_loses_nothing() {
    dies_at("before_finish_commit:2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_after_a_finish_was_committed_repeats_nothing() {
    dies_at("after_finish_commit:2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_during_a_renewal_loses_nothing() {
    dies_at("during_renewal:2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_before_events_are_committed_loses_nothing() {
    dies_at("before_append_commit:2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_after_events_were_committed_repeats_nothing() {
    dies_at("after_append_commit:2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stood_still_past_its_lease_changes_nothing_when_it_wakes() {
    let mut cluster = short_leases(2).env("SWITCHBOARD_SCHEDULER__PERMITS", "4").await;
    let task = create_task(cluster.client(1), slow_task("slow")).await;
    let triggered = join_all((0..8).map(|_| trigger(cluster.client(1), task.id))).await;
    wait_until("runs on the replica that stops", async || {
        let runs = runs(cluster.client(1), task.id).await;
        runs.iter().any(|run| run.state == RunState::Running && is_on(run, "a-")).then_some(())
    })
    .await;
    cluster.pause(0);
    let left_behind = running_on(cluster.client(1), task.id, "a-").await;
    assert!(!left_behind.is_empty(), "it stands still with runs in its hands");
    let mut fences = Vec::new();
    for run in &triggered {
        let run = ended(cluster.client(1), *run).await;
        assert_eq!(run.state, RunState::Succeeded);
        assert!(!left_behind.contains(&run.id) || is_on(&run, "b-"), "it was taken away: {run:?}");
        fences.push((run.id, run.fence, run.finished_at));
    }
    cluster.resume(0);
    wait_until("the paused replica to serve again", async || cluster.client(0).ready().await.ok()).await;
    create_room(cluster.client(0), "lobby").await;
    let task = create_task(cluster.client(0), event_task("note", "lobby")).await;
    ended(cluster.client(0), trigger(cluster.client(0), task.id).await).await;
    for (run, fence, finished_at) in fences {
        let run = cluster.client(0).get_run(run).await.unwrap();
        assert_eq!((run.fence, run.finished_at), (fence, finished_at), "one terminal write");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_run_is_given_back_when_its_replica_stops() {
    let mut cluster = cluster(1).env("SWITCHBOARD_DRAIN__TIMEOUT", "200ms").await;
    let value = serde_json::json!({"name": "long", "action": {"system": {"function": "test.wait_minute"}}});
    let task = create_task(cluster.client(0), value).await;
    let run = trigger(cluster.client(0), task.id).await;
    wait_until("the start", async || {
        (cluster.client(0).get_run(run).await.unwrap().state == RunState::Running).then_some(())
    })
    .await;
    let other = cluster.add().await;
    assert!(cluster.stop(0).await.success());
    let moved = wait_until("the start elsewhere", async || {
        let run = cluster.client(other).get_run(run).await.unwrap();
        if run.state == RunState::Running { Ok(run) } else { Err(run.state) }
    })
    .await;
    assert!(is_on(&moved, "b-"), "{moved:?}");
    assert_eq!(moved.attempt, 1, "the attempt that was cut short does not count");
    cluster.client(other).cancel_run(run).await.unwrap();
    let run = ended(cluster.client(other), run).await;
    assert_eq!((run.state, run.attempt), (RunState::Cancelled, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_kills_its_replica_dies_and_the_others_go_on() {
    let mut cluster = cluster(2).lease("1s".parse().unwrap()).await;
    let value = serde_json::json!({
        "name": "deadly", "action": {"system": {"function": "test.kill"}}, "max_attempts": 3,
    });
    let deadly = create_task(cluster.client(0), value).await;
    let mut value = slow_task("slow");
    value["max_attempts"] = serde_json::json!(10);
    let slow = create_task(cluster.client(0), value).await;
    let mut others = Vec::new();
    for index in 0..12 {
        others.push(trigger(cluster.client(index % 2), slow.id).await);
    }
    let run = trigger(cluster.client(0), deadly.id).await;
    let mut deaths = 0;
    let run = wait_until("the end of the deadly run", async || {
        for index in 0..cluster.size() {
            if cluster.has_ended(index).is_some() {
                deaths += 1;
                cluster.restart(index).await;
            }
        }
        // A replica may die between the look and the question.
        match cluster.any().get_run(run).await {
            Ok(run) if run.state.is_terminal() => Ok(run),
            seen => Err(seen.map(|run| run.state)),
        }
    })
    .await;
    assert_eq!((run.state, run.attempt), (RunState::Dead, 3), "{run:?}");
    // On a busy machine a lease may run out before its run starts.
    assert!((1..=3).contains(&deaths), "{deaths} replicas went along");
    for run in others {
        assert_eq!(ended(cluster.any(), run).await.state, RunState::Succeeded);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_follows_a_room_through_kills_and_restarts() {
    let mut cluster = short_leases(2).await;
    create_room(cluster.client(1), "lobby").await;
    let mut socket = cluster.resuming_socket("ann");
    socket.handle().join(&room("lobby"), Since::default()).await.unwrap();
    for round in 0..4 {
        let (alive, victim) = (1 - round % 2, round % 2);
        for n in 0..25 {
            let client = cluster.client(alive);
            client.publish(&room("lobby"), &event("note", serde_json::json!(n))).await.unwrap();
        }
        cluster.kill(victim, Signal::SIGKILL);
        for n in 25..50 {
            let client = cluster.client(alive);
            client.publish(&room("lobby"), &event("note", serde_json::json!(n))).await.unwrap();
        }
        cluster.restart(victim).await;
    }
    let events = events_to(&mut socket, 200).await;
    ledger::positions(&events, 1..=200).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sqlite_process_killed_at_work_goes_on_after_its_restart() {
    let mut cluster = short_leases(1).sqlite().await;
    create_room(cluster.client(0), "lobby").await;
    let mut value = event_task("tick", "lobby");
    value["schedule"] = serde_json::json!({"every": {"interval": "200ms"}});
    let task = create_task(cluster.client(0), value).await;
    let slow = create_task(cluster.client(0), slow_task("slow")).await;
    let run = trigger(cluster.client(0), slow.id).await;
    wait_until("the start", async || {
        (cluster.client(0).get_run(run).await.unwrap().state == RunState::Running).then_some(())
    })
    .await;
    cluster.kill(0, Signal::SIGKILL);
    cluster.restart(0).await;
    let run = ended(cluster.client(0), run).await;
    assert_eq!((run.state, run.attempt), (RunState::Succeeded, 2));
    let runs = succeeded(cluster.client(0), task.id, 20).await;
    let due: BTreeSet<_> = runs.iter().filter_map(|run| run.scheduled_for).collect();
    let skips = skips(cluster.client(0), task.id).await;
    let window = *due.first().unwrap()..=*due.last().unwrap();
    ledger::occurrences(task.spec.schedule.as_ref().unwrap(), window, &runs, &skips).unwrap();
}
