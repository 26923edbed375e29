//! Much at once: schedules that are due together, actions that fail in a storm, writers in a crowd.

use std::time::Duration;

use futures_util::future::join_all;
use switchboard_client::Client;
use switchboard_model::run::RunState;
use switchboard_testkit::{Cluster, Eventually};

use crate::fixtures::{
    cluster, create_room, create_task, ended, event, event_task, gated_task, on_both_databases, room, runs, slow_task,
    spec, started, trigger,
};

on_both_databases! {
    a_task_is_deleted_and_swept_while_its_run_goes_on,
    a_storm_of_retries_holds_nobody_up,
}

/// How many tasks are due within seconds.
const CROWD: i64 = 10_000;

/// Makes a crowd of one task: each a copy with a name of its own, due a little later than the one before.
const MULTIPLY: &str = "
    INSERT INTO tasks (id, name, spec, has_schedule, is_active, next_run_at, version, created_at, updated_at)
    SELECT gen_random_uuid(), name || n, replace(replace(spec, '\"crowd\"', '\"crowd' || n || '\"'), at.old, at.new),
           has_schedule, is_active, due, version, created_at, updated_at
    FROM tasks
    CROSS JOIN generate_series(2, 10000) AS n
    CROSS JOIN LATERAL (SELECT now() + (n % 30) * interval '100 milliseconds') AS moment (due)
    CROSS JOIN LATERAL (
        SELECT spec::jsonb #>> '{schedule,at}',
               to_char(due AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')
    ) AS at (old, new)
    WHERE name = 'crowd'";

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_schedules_due_together_all_become_one_run_each() {
    let cluster = cluster(2)
        .env("SWITCHBOARD_SCHEDULER__PERMITS", "1")
        // However long a slow machine takes, that is not what counts as missed here.
        .env("SWITCHBOARD_SCHEDULER__MISFIRE_GRACE", "1h")
        .await;
    let slow = create_task(cluster.any(), slow_task("slow")).await;
    for _ in 0..4 {
        trigger(cluster.any(), slow.id).await;
    }
    let due = (cluster.database().now().await + chrono::TimeDelta::seconds(2)).to_rfc3339();
    let mut value = slow_task("crowd");
    value["schedule"] = serde_json::json!({"at": due});
    value["priority"] = serde_json::json!(1000);
    create_task(cluster.any(), value).await;
    cluster.database().execute(MULTIPLY).await;
    let count = async |query: &'static str| cluster.database().count(query).await;
    Eventually::new("a run of each schedule")
        .within(Duration::from_secs(240))
        .holds(async || {
            let made = count("SELECT count(*) FROM runs WHERE trigger = 'schedule' AND priority = 1000").await;
            if made >= CROWD { Ok(()) } else { Err(made) }
        })
        .await;
    let tasks = "SELECT count(DISTINCT task_id) FROM runs WHERE priority = 1000";
    assert_eq!(count(tasks).await, CROWD, "one run each");
    assert_eq!(count("SELECT count(*) FROM runs WHERE priority = 1000").await, CROWD, "and no second one");
    assert_eq!(count("SELECT count(*) FROM task_skips").await, 0, "none was missed");
    let left = "SELECT count(*) FROM tasks WHERE name LIKE 'crowd%' AND (is_active OR parked IS NOT NULL)";
    assert_eq!(count(left).await, 0, "all are done with");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_writers_never_find_sqlite_locked() {
    let cluster = cluster(1).sqlite().env("SWITCHBOARD_SCHEDULER__PERMITS", "64").await;
    create_room(cluster.client(0), "lobby").await;
    let writes = async |writer: usize| {
        let client = cluster.client(0);
        let task = create_task(client, event_task(&format!("writer{writer}"), "lobby")).await;
        let mut triggered = Vec::new();
        for n in 0..6 {
            client.publish(&room("lobby"), &event("note", serde_json::json!(n))).await.unwrap();
            triggered.push(trigger(client, task.id).await);
        }
        client.pause_task(task.id).await.unwrap();
        client.resume_task(task.id).await.unwrap();
        triggered
    };
    let triggered = join_all((0..50).map(writes)).await.into_iter().flatten().collect::<Vec<_>>();
    assert_eq!(triggered.len(), 300);
    for run in triggered {
        assert_eq!(ended(cluster.client(0), run).await.state, RunState::Succeeded);
    }
    let top = cluster.client(0).history(&room("lobby"), 0, 1).await.unwrap().top;
    assert_eq!(top, 600, "one event of each writer and of each run");
    assert!(!cluster.logs(0).contains("database is locked"));
}

async fn sweep(client: &Client) {
    let task = client.find_task(&"system:prune_history".parse().unwrap()).await.unwrap();
    let run = client.trigger_task(task.id, &Default::default()).await;
    // Under its overlap policy a sweep that goes on by its schedule stands for this one.
    if let Ok(triggered) = run {
        assert_eq!(ended(client, triggered.run_id).await.state, RunState::Succeeded);
    }
}

async fn a_task_is_deleted_and_swept_while_its_run_goes_on(cluster: Cluster) {
    let client = cluster.any();
    let task = create_task(client, gated_task("held")).await;
    let run = trigger(client, task.id).await;
    started(client, run).await;
    client.delete_task(task.id).await.unwrap();
    sweep(client).await;
    assert_eq!(client.get_run(run).await.unwrap().state, RunState::Running);
    cluster.open_gate();
    let run = ended(client, run).await;
    assert_eq!((run.state, run.attempt), (RunState::Succeeded, 1), "{run:?}");
    assert_eq!(client.get_task(task.id).await.unwrap_err().status(), Some(404));
    sweep(client).await;
    assert_eq!(client.get_run(run.id).await.unwrap().state, RunState::Succeeded, "history outlives its task");
}

async fn a_storm_of_retries_holds_nobody_up(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let failing = serde_json::json!({
        "name": "failing", "action": {"system": {"function": "test.nothing"}}, "max_attempts": 5,
        "backoff": {"base": "10ms", "cap": "50ms", "jitter": 0.5},
    });
    let failing = cluster.any().create_task(&spec(failing)).await.unwrap();
    let good = create_task(cluster.any(), event_task("note", "lobby")).await;
    let storm = join_all((0..40).map(|_| trigger(cluster.any(), failing.id))).await;
    let calm = join_all((0..20).map(|_| trigger(cluster.any(), good.id))).await;
    for run in calm {
        let run = ended(cluster.any(), run).await;
        assert_eq!((run.state, run.attempt), (RunState::Succeeded, 1));
    }
    for run in storm {
        let run = ended(cluster.any(), run).await;
        assert_eq!((run.state, run.attempt), (RunState::Dead, 5), "{run:?}");
    }
    assert_eq!(runs(cluster.any(), failing.id).await.len(), 40);
}
