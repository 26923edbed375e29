//! Replicas that die or stand still at the worst moments: nothing is lost and nothing is done twice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use switchboard_client::{ResumeEvent, ResumingSocket};
use switchboard_model::run::RunState;
use switchboard_model::wire::frame::EventFrame;
use switchboard_model::wire::op::{Since, SinceEnd};
use switchboard_testkit::{ClusterBuilder, Eventually, Signal, ledger, wait_until};

use crate::fixtures::{
    all_events, cluster, create_room, create_task, ended, event, event_task, gated_task, held_by, is_on, room, skips,
    slow_task, started, succeeded, trigger,
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
    let gated = create_task(cluster.client(1), gated_task("held")).await;
    let mut socket = cluster.resuming_socket("ann");
    socket.handle().join(&room("lobby"), Since::End(SinceEnd::Earliest)).await.unwrap();
    let triggered = join_all((0..20).map(|_| trigger(cluster.client(1), gated.id))).await;
    let left_behind = held_by(cluster.client(1), gated.id, "a-").await;
    cluster.kill(0, Signal::SIGKILL);
    cluster.open_gate();

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

/// The first replica dies at a fail point while it works on runs; all runs end well all the same.
async fn dies_at(point: &str) {
    let mut cluster = short_leases(1).fail_point(0, point).await;
    let added = cluster.add().await;
    create_room(cluster.client(added), "lobby").await;
    // Attempts never run out, however many leases a busy machine loses.
    let lasting = |mut value: serde_json::Value| {
        value["max_attempts"] = serde_json::json!(1000);
        value
    };
    let task = create_task(cluster.client(added), lasting(event_task("note", "lobby"))).await;
    let slow = create_task(cluster.client(added), lasting(slow_task("slow"))).await;
    let mut triggered = Vec::new();
    // Whichever replica gets them: more come until the first one has passed the point and died. One after the other,
    // so that their number does not depend on how fast they can be asked for.
    let begun = Instant::now();
    let ended_by_itself = loop {
        triggered.push(trigger(cluster.client(added), slow.id).await);
        let note = trigger(cluster.client(added), task.id).await;
        triggered.push(note);
        ended(cluster.client(added), note).await;
        if let Some(status) = cluster.has_ended(0) {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "the replica never came to {point}");
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
    let task = create_task(cluster.client(1), gated_task("held")).await;
    let triggered = join_all((0..8).map(|_| trigger(cluster.client(1), task.id))).await;
    let left_behind = held_by(cluster.client(1), task.id, "a-").await;
    cluster.pause(0);
    cluster.open_gate();
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
    let task = create_task(cluster.client(0), gated_task("long")).await;
    let run = trigger(cluster.client(0), task.id).await;
    started(cluster.client(0), run).await;
    let other = cluster.add().await;
    assert!(cluster.stop(0).await.success());
    let moved = started(cluster.client(other), run).await;
    assert!(is_on(&moved, "b-"), "{moved:?}");
    assert_eq!(moved.attempt, 1, "the attempt that was cut short does not count");
    cluster.client(other).cancel_run(run).await.unwrap();
    let run = ended(cluster.client(other), run).await;
    assert_eq!((run.state, run.attempt), (RunState::Cancelled, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_kills_its_replica_dies_and_the_others_go_on() {
    // A replica is up again long before the lease of the run runs out that has killed it.
    let mut cluster = cluster(2).lease("10s".parse().unwrap()).await;
    let value = serde_json::json!({
        "name": "deadly", "action": {"system": {"function": "test.kill"}}, "max_attempts": 3,
    });
    let deadly = create_task(cluster.client(0), value).await;
    let mut value = slow_task("slow");
    value["max_attempts"] = serde_json::json!(1000);
    let slow = create_task(cluster.client(0), value).await;
    let mut others = Vec::new();
    for index in 0..12 {
        others.push(trigger(cluster.client(index % 2), slow.id).await);
    }
    let run = trigger(cluster.client(0), deadly.id).await;
    let mut deaths = 0;
    let run = Eventually::new("the end of the deadly run")
        .within(Duration::from_secs(240))
        .holds(async || {
            // Before the replicas are looked at: whichever it has killed is counted when its end is known.
            // A replica may die between the look and the question.
            let seen = cluster.any().get_run(run).await;
            for index in 0..cluster.size() {
                if cluster.has_ended(index).is_some() {
                    deaths += 1;
                    cluster.restart(index).await;
                }
            }
            match seen {
                Ok(run) if run.state.is_terminal() => Ok(run),
                seen => Err(seen.map(|run| run.state)),
            }
        })
        .await;
    assert_eq!((run.state, run.attempt), (RunState::Dead, 3), "{run:?}");
    // Whoever has leased it calls the function, even if the lease is over by then, so each attempt is a death.
    assert_eq!(deaths, 3, "each attempt took its replica along");
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
    let gated = create_task(cluster.client(0), gated_task("held")).await;
    let run = trigger(cluster.client(0), gated.id).await;
    started(cluster.client(0), run).await;
    cluster.kill(0, Signal::SIGKILL);
    cluster.open_gate();
    cluster.restart(0).await;
    let run = ended(cluster.client(0), run).await;
    assert_eq!((run.state, run.attempt), (RunState::Succeeded, 2));
    let runs = succeeded(cluster.client(0), task.id, 20).await;
    let due: BTreeSet<_> = runs.iter().filter_map(|run| run.scheduled_for).collect();
    let skips = skips(cluster.client(0), task.id).await;
    let window = *due.first().unwrap()..=*due.last().unwrap();
    ledger::occurrences(task.spec.schedule.as_ref().unwrap(), window, &runs, &skips).unwrap();
}
