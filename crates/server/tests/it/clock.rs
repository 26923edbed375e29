//! A server whose schedules follow a clock that a test moves.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::json;
use switchboard_client::Client;
use switchboard_model::Timestamp;
use switchboard_model::run::{RunState, SkipCause};
use switchboard_model::wire::rest::TriggerRequest;
use switchboard_model::wire::test_clock::{TestClockMove, TestClockReport};
use switchboard_testkit::{Cluster, ClusterBuilder, ledger, wait_until};

use crate::fixtures::{
    cluster, create_room, create_task, err, event_task, out, room, runs, skips, switchboard, trigger,
};

/// Runs each case on one SQLite process and on one PostgreSQL replica, both at the beginning of 2027.
macro_rules! on_one_replica {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::standing(crate::fixtures::cluster(1).sqlite()).await).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::standing(crate::fixtures::cluster(1)).await).await;
            })+
        }
    };
}

on_one_replica!(a_year_of_a_daily_schedule_is_replayed, delays_retries_instants_and_pauses_are_replayed);

async fn standing(cluster: ClusterBuilder) -> Cluster {
    cluster.env("SWITCHBOARD_REPLICAS", "single").env("SWITCHBOARD_SCHEDULER__TEST_CLOCK", "2027-01-01T00:00:00Z").await
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

async fn go(client: &Client, to: &str) -> TestClockReport {
    let to = TestClockMove { to: Some(at(to)), patience: Some("30s".parse().unwrap()), advance: None };
    let (mut instants, mut runs, mut attempts) = (0, 0, 0);
    loop {
        let report = client.move_test_clock(&to).await.unwrap();
        (instants, runs, attempts) = (instants + report.instants, runs + report.runs, attempts + report.attempts);
        if report.is_there {
            return TestClockReport { instants, runs, attempts, ..report };
        }
    }
}

async fn a_year_of_a_daily_schedule_is_replayed(cluster: Cluster) {
    let client = cluster.any();
    create_room(client, "lobby").await;
    let mut value = event_task("nightly", "lobby");
    value["schedule"] = json!({"cron": {"expression": "30 2 * * *", "zone": "America/New_York"}});
    let task = create_task(client, value).await;
    let started = Instant::now();
    let report = go(client, "2028-01-01T00:00:00Z").await;
    println!("a year in {:?}", started.elapsed());
    assert_eq!((report.instants, report.runs, report.attempts), (365, 365, 365));

    let runs = runs(client, task.id).await;
    assert!(runs.iter().all(|run| run.state == RunState::Succeeded), "all have ended");
    let year = at("2027-01-01T00:00:00Z")..=at("2028-01-01T00:00:00Z");
    ledger::occurrences(task.spec.schedule.as_ref().unwrap(), year, &runs, &skips(client, task.id).await).unwrap();
    let due: BTreeSet<Timestamp> = runs.iter().filter_map(|run| run.scheduled_for).collect();
    assert_eq!(due.len(), 365);
    for instant in [
        "2027-03-13T07:30:00Z",
        // The clocks go from 2:00 to 3:00.
        "2027-03-14T07:00:00Z",
        "2027-03-15T06:30:00Z",
        "2027-11-06T06:30:00Z",
        // They go from 2:00 to 1:00.
        "2027-11-07T07:30:00Z",
        "2027-11-08T07:30:00Z",
    ] {
        assert!(due.contains(&at(instant)), "{instant}");
    }
    // Newest first: the runs were made, and their events appended, in the order of the occurrences.
    assert!(runs.windows(2).all(|pair| pair[0].scheduled_for > pair[1].scheduled_for));
    let history = client.history(&room("lobby"), 0, 500).await.unwrap();
    assert!(history.events.iter().map(|event| event.offset).eq(1..=365));
    let messages = history.events.iter().map(|event| event.msg_id.clone());
    assert!(messages.eq(runs.iter().rev().map(|run| run.id.to_string())));
}

async fn delays_retries_instants_and_pauses_are_replayed(cluster: Cluster) {
    let client = cluster.any();
    create_room(client, "lobby").await;
    let scheduled = |name: &str, schedule: serde_json::Value| {
        let mut value = event_task(name, "lobby");
        value["schedule"] = schedule;
        value
    };
    let once = create_task(client, scheduled("once", json!({"at": "2027-01-05T06:00:00Z"}))).await;
    let mut silent = scheduled("paused", json!({"cron": {"expression": "0 0 * * *"}}));
    silent["missed"] = json!("skip");
    let paused = create_task(client, silent).await;
    client.pause_task(paused.id).await.unwrap();
    let plain = create_task(client, event_task("plain", "lobby")).await;
    let delayed = TriggerRequest { delay: Some("36h".parse().unwrap()), ..TriggerRequest::default() };
    let delayed = client.trigger_task(plain.id, &delayed).await.unwrap().run_id;
    let slow = json!({
        "name": "slow", "action": {"system": {"function": "test.wait"}}, "timeout": "20ms", "max_attempts": 3,
        "backoff": {"base": "6h", "cap": "1day", "jitter": 0.0},
    });
    let slow = create_task(client, slow).await;
    let failing = trigger(client, slow.id).await;

    let state = client.test_clock().await.unwrap();
    assert_eq!(state.now, at("2027-01-01T00:00:00Z"));
    assert_eq!(client.get_run(delayed).await.unwrap().run_at, at("2027-01-02T12:00:00Z"));
    // The first attempt fails where the clock stands, the others after 6 and 12 hours of schedule time.
    assert_eq!(go(client, "2027-01-01T05:59:59Z").await.instants, 0);
    assert_eq!(client.get_run(failing).await.unwrap().attempt, 1);
    assert_eq!(go(client, "2027-01-01T06:00:00Z").await.instants, 1);
    assert_eq!(client.get_run(failing).await.unwrap().attempt, 2);
    let report = go(client, "2027-01-02T11:59:59Z").await;
    assert_eq!((report.instants, report.runs, report.attempts), (1, 0, 1));
    let run = client.get_run(failing).await.unwrap();
    assert_eq!((run.state, run.attempt, run.run_at), (RunState::Dead, 3, at("2027-01-01T18:00:00Z")));
    assert_eq!(client.get_run(delayed).await.unwrap().state, RunState::Scheduled);
    assert_eq!(go(client, "2027-01-02T12:00:00Z").await.attempts, 1);
    assert_eq!(client.get_run(delayed).await.unwrap().state, RunState::Succeeded);

    assert_eq!(go(client, "2027-01-10T12:00:00Z").await.runs, 1, "the paused task stays silent");
    let run = runs(client, once.id).await.remove(0);
    assert_eq!(run.scheduled_for, Some(at("2027-01-05T06:00:00Z")));
    assert!(!client.get_task(once.id).await.unwrap().spec.is_active);
    assert_eq!(runs(client, paused.id).await, []);
    let resumed = client.resume_task(paused.id).await.unwrap();
    assert_eq!(resumed.next_run_at, Some(at("2027-01-11T00:00:00Z")));
    let skipped = skips(client, paused.id).await;
    assert!(skipped.iter().all(|skip| skip.cause == SkipCause::Paused), "{skipped:?}");
    assert_eq!(skipped.iter().map(|skip| skip.count).sum::<u64>(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_waits_for_what_is_not_done_and_says_so() {
    let cluster = standing(cluster(1).sqlite()).await;
    let client = cluster.any();
    let mut value = event_task("elsewhere", "lobby");
    value["pool"] = json!("elsewhere");
    value["schedule"] = json!({"cron": {"expression": "0 12 * * *"}});
    create_task(client, value).await;
    let patience = Some("50ms".parse().unwrap());
    let to = TestClockMove { to: Some(at("2027-01-08T00:00:00Z")), patience, advance: None };
    // The patience may be over before the task has fired.
    wait_until("the run that nobody executes", async || {
        let report = client.move_test_clock(&to).await.unwrap();
        assert!(!report.is_there);
        assert_eq!(report.state.now, at("2027-01-01T12:00:00Z"));
        if report.state.active == 1 { Ok(()) } else { Err(report) }
    })
    .await;
    for (to, reason) in [
        (TestClockMove { to: Some(at("2026-01-01T00:00:00Z")), ..TestClockMove::default() }, "never goes back"),
        (TestClockMove::default(), "give either"),
    ] {
        let error = client.move_test_clock(&to).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_and_moves_the_clock() {
    let cluster = standing(cluster(1).sqlite()).await;
    let url = &cluster.base_urls()[0];
    let env = [("SWITCHBOARD_URL", url.as_str()), ("SWITCHBOARD_API_KEY", cluster.key().expose())];
    let said = |arguments: &[&str]| {
        let output = switchboard(arguments, &env);
        assert!(output.status.success(), "{}", err(&output));
        out(&output)
    };
    assert!(said(&["clock", "advance", "36h"]).starts_with("The clock stands at 2027-01-02 12:00:00Z"));
    assert!(said(&["clock", "set", "2027-02-01T00:00:00Z"]).starts_with("The clock stands at 2027-02-01"));
    assert!(said(&["clock", "show"]).contains("2027-02-01"));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_server_with_a_test_clock_has_one_and_only_alone() {
    let cluster = cluster(1).sqlite().await;
    let error = cluster.any().test_clock().await.unwrap_err();
    assert!(error.to_string().contains("start it with --test-clock"), "{error}");
    let refused = switchboard(
        &["serve", "--test-clock", "--replicas", "multi", "--database-url", "postgres://localhost/none"],
        &[],
    );
    assert!(!refused.status.success());
    assert!(err(&refused).contains("scheduler.test_clock: needs replicas"), "{}", err(&refused));
}
