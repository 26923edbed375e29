//! What operators do to the whole fleet and to many things at once, on live servers.

use serde_json::{Value, json};
use switchboard_client::Client;
use switchboard_model::ids::TaskId;
use switchboard_model::run::RunState;
use switchboard_model::span::Span;
use switchboard_model::wire::bulk::{BulkRunItem, BulkRunsRequest, BulkTaskItem, BulkTasksRequest};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::work::{FinishRequest, PoolLeaseRequest, PulledRun};
use switchboard_testkit::Cluster;
use tokio::time::{Duration, Instant};
use uuid::Uuid;

use crate::cli::Cli;
use crate::fixtures::{create_task, on_every_database, runs, trigger};

on_every_database! {
    a_pause_of_the_fleet_acts_at_once,
    a_pool_has_a_maximum_over_the_fleet,
    ten_thousand_tasks_are_made_by_one_request,
    ten_thousand_runs_are_made_by_one_request,
    dead_runs_are_queued_again_by_one_command,
}

/// Before the wait for runs is over, so that it was the change of the settings that ended it.
const SOON: Duration = Duration::from_secs(20);

async fn pull_task(client: &Client, name: &str) -> TaskId {
    create_task(client, json!({"name": name, "action": {"pull": {}}, "max_attempts": 1})).await.id
}

async fn lease(client: &Client, max: u32, wait: Span) -> Vec<PulledRun> {
    let request = PoolLeaseRequest {
        request_id: Uuid::new_v4(),
        worker: "test".parse().unwrap(),
        max,
        lease: Some(Span::from_secs(600)),
        wait: Some(wait),
    };
    client.lease_runs(&"default".parse().unwrap(), &request).await.unwrap()
}

/// Runs a command while somebody waits for runs on the last replica, and returns what they got and how soon.
async fn while_waiting(cluster: &Cluster, command: &'static [&'static str]) -> (Vec<PulledRun>, Duration) {
    let cli = Cli::of(cluster);
    let client = cluster.client(cluster.size() - 1);
    let waiting = lease(client, 10, Span::from_secs(25));
    let told = async {
        // The wait has begun once a first look has found nothing.
        tokio::time::sleep(Duration::from_millis(300)).await;
        tokio::task::spawn_blocking(move || cli.says(command)).await.unwrap();
        Instant::now()
    };
    let waiting = async { (waiting.await, Instant::now()) };
    let ((runs, got), told) = tokio::join!(waiting, told);
    (runs, got.saturating_duration_since(told))
}

async fn a_pause_of_the_fleet_acts_at_once(cluster: Cluster) {
    let cli = Cli::of(&cluster);
    let task = pull_task(cluster.any(), "t").await;
    assert_eq!(cli.says(&["fleet", "pause"]), "Paused: no run is taken but upkeep; those under way go on.\n");
    assert!(cli.says(&["fleet", "show"]).contains("runs are taken: no"));
    trigger(cluster.any(), task).await;
    assert_eq!(lease(cluster.client(cluster.size() - 1), 10, Span::from_secs(1)).await, []);
    let (runs, delay) = while_waiting(&cluster, &["fleet", "resume"]).await;
    assert_eq!(runs.len(), 1);
    assert!(delay < SOON, "{delay:?}");
}

async fn a_pool_has_a_maximum_over_the_fleet(cluster: Cluster) {
    let cli = Cli::of(&cluster);
    let task = pull_task(cluster.any(), "t").await;
    for _ in 0..6 {
        trigger(cluster.any(), task).await;
    }
    let said = cli.says(&["fleet", "pool", "default", "--max", "2"]);
    assert_eq!(said, "Pool default runs at most 2 at the same time.\n");
    assert_eq!(cli.gives(&["fleet", "show"])["pools"], json!({"default": {"max_running": 2}}));
    let first = lease(cluster.client(0), 10, Span::default()).await;
    assert_eq!(first.len(), 2);
    let client = cluster.client(cluster.size() - 1);
    assert_eq!(lease(client, 10, Span::default()).await, []);
    client.finish_run(first[0].id, &FinishRequest { fence: first[0].fence, result: None }).await.unwrap();
    assert_eq!(lease(client, 10, Span::from_secs(25)).await.len(), 1);
    let (more, delay) = while_waiting(&cluster, &["fleet", "pool", "default", "--max", "4"]).await;
    assert_eq!(more.len(), 2);
    assert!(delay < SOON, "{delay:?}");
    let (rest, delay) = while_waiting(&cluster, &["fleet", "pool", "default", "--no-max"]).await;
    assert_eq!(rest.len(), 1);
    assert!(delay < SOON, "{delay:?}");
    let mut settings = client.fleet_settings().await.unwrap();
    settings.value.pools.entry("default".parse().unwrap()).or_default().max_running = Some(u32::MAX);
    let refused = client.put_fleet_settings(&settings).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::ValidationFailed));
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_str(&value.to_string()).unwrap()
}

async fn ten_thousand_tasks_are_made_by_one_request(cluster: Cluster) {
    let spec = |n| json!({"name": format!("t/{n}"), "action": {"pull": {}}, "schedule": {"every": {"interval": "1h"}}});
    let tasks: Vec<Value> = (0..10_000).map(spec).collect();
    let request: BulkTasksRequest = read(&json!({ "tasks": tasks }));
    let client = cluster.any().with_idempotency_key("all".parse().unwrap());
    let made = client.create_tasks(&request).await.unwrap();
    assert_eq!(made.len(), 10_000);
    assert!(made.iter().all(|item| matches!(item, BulkTaskItem::Ok(_))));
    let again = cluster.client(cluster.size() - 1).with_idempotency_key("all".parse().unwrap());
    assert_eq!(again.create_tasks(&request).await.unwrap(), made);
    let last = cluster.any().find_task(&"t/9999".parse().unwrap()).await.unwrap();
    assert!(matches!(&made[9_999], BulkTaskItem::Ok(task) if task.id == last.id));
    assert!(last.next_run_at.is_some());
}

async fn ten_thousand_runs_are_made_by_one_request(cluster: Cluster) {
    let task = pull_task(cluster.any(), "t").await;
    let asked: Vec<Value> = (0..10_000).map(|n| json!({"task": "t", "input": n})).collect();
    let request: BulkRunsRequest = read(&json!({ "runs": asked }));
    let client = cluster.any().with_idempotency_key("all".parse().unwrap());
    let made = client.trigger_runs(&request).await.unwrap();
    assert!(made.iter().all(|item| matches!(item, BulkRunItem::Ok(run) if !run.duplicate)));
    let again = cluster.client(cluster.size() - 1).with_idempotency_key("all".parse().unwrap());
    assert_eq!(again.trigger_runs(&request).await.unwrap(), made);
    let mut inputs: Vec<i64> = runs(cluster.any(), task)
        .await
        .iter()
        .map(|run| run.input.as_ref().unwrap().as_str().parse().unwrap())
        .collect();
    inputs.sort_unstable();
    assert_eq!(inputs, (0..10_000).collect::<Vec<_>>());
}

async fn dead_runs_are_queued_again_by_one_command(cluster: Cluster) {
    let cli = Cli::of(&cluster);
    let (task, other) = (pull_task(cluster.any(), "t").await, pull_task(cluster.any(), "other").await);
    for task in [task, task, task, other] {
        trigger(cluster.any(), task).await;
    }
    for run in lease(cluster.any(), 10, Span::default()).await {
        let (id, fence) = (run.id.to_string(), run.fence.0.to_string());
        assert!(cli.says(&["work", "fail", &id, "--fence", &fence, "--error", "broken"]).contains(": dead"));
    }
    assert_eq!(cli.says(&["run", "redrive", "--task", "t", "--state", "dead"]), "Queued 3 runs again.\n");
    assert!(runs(cluster.any(), task).await.iter().all(|run| (run.state, run.attempt) == (RunState::Queued, 0)));
    assert!(runs(cluster.any(), other).await.iter().all(|run| run.state == RunState::Dead));
    let done = cli.gives(&["run", "redrive", "--limit", "5"]);
    assert_eq!((&done["queued"], &done["after"]), (&json!(1), &Value::Null));
}
