//! Replicas with one role each: what they do together, what none of them does beside its role, and what is told when a
//! role or a pool has nobody.

use std::ops::Range;

use switchboard_client::{Client, SocketOptions};
use switchboard_model::page::PageRequest;
use switchboard_model::run::RunState;
use switchboard_model::ticket::Grants;
use switchboard_model::wire::op::Since;
use switchboard_model::wire::rest::TicketRequest;
use switchboard_testkit::{Cluster, ledger, wait_until};

use crate::fixtures::{
    cluster, create_room, create_task, ended, event_task, is_on, next_events, room, runs, skips, succeeded, trigger,
};
use crate::replicas::upgrade_status;

/// The replicas by their roles.
const API: usize = 0;
const SCHEDULER: usize = 1;
const WORKER: usize = 2;

const ROLES: &str = "SWITCHBOARD_ROLES";

/// How many pools have nobody.
const SOME: Range<u64> = 1..u64::MAX;
const NONE: Range<u64> = 0..1;

async fn split() -> Cluster {
    cluster(3).env_of(API, ROLES, "api").env_of(SCHEDULER, ROLES, "scheduler").env_of(WORKER, ROLES, "worker").await
}

async fn get(cluster: &Cluster, index: usize, path: &str) -> (u16, String) {
    let url = format!("{}{path}", cluster.base_urls()[index].trim_end_matches('/'));
    let answer = reqwest::Client::new().get(url).bearer_auth(cluster.key().expose()).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

async fn uncovered(client: &Client) -> Vec<(String, u64)> {
    let page = client.list_instances(PageRequest::default()).await.unwrap();
    let found = page.uncovered_pools.into_iter().map(|found| (found.pool.to_string(), found.queued));
    // Upkeep comes when it comes.
    found.filter(|(pool, _)| pool != "system").collect()
}

/// Waits until a replica counts pools without a worker, or none any more.
async fn counted(cluster: &Cluster, index: usize, expected: Range<u64>) {
    wait_until("the gauge of pools without a worker", async || {
        let (_, metrics) = get(cluster, index, "/metrics").await;
        let value = metrics.lines().find_map(|line| line.strip_prefix("switchboard_scheduler_uncovered_pools "));
        let value: u64 = value.unwrap().parse().unwrap();
        if expected.contains(&value) { Ok(()) } else { Err(value) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_roles_on_three_replicas_do_all_of_it() {
    let cluster = split().await;
    let client = cluster.client(API);
    create_room(client, "lobby").await;
    let mut socket = cluster.socket(API, "ann").await;
    socket.handle().join(&room("lobby"), Since::default()).await.unwrap();
    let mut value = event_task("tick", "lobby");
    value["schedule"] = serde_json::json!({"every": {"interval": "1s"}});
    let task = create_task(client, value).await;
    let runs = succeeded(client, task.id, 5).await;
    assert!(runs.iter().filter(|run| run.leased_by.is_some()).all(|run| is_on(run, "c-")), "{runs:?}");
    let due: Vec<_> = runs.iter().filter_map(|run| run.scheduled_for).collect();
    let window = *due.iter().min().unwrap()..=*due.iter().max().unwrap();
    let skips = skips(client, task.id).await;
    ledger::occurrences(task.spec.schedule.as_ref().unwrap(), window, &runs, &skips).unwrap();
    let events = next_events(&mut socket, 5).await;
    ledger::positions(&events, 1..=5).unwrap();
    assert_eq!(uncovered(client).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_role_api_there_are_probes_and_metrics_and_nothing_else() {
    let cluster = split().await;
    let request = TicketRequest { user_id: Some("ann".parse().unwrap()), origin: None, grants: Grants::default() };
    let ticket = cluster.client(API).mint_ticket(&request).await.unwrap();
    for index in [SCHEDULER, WORKER] {
        for path in ["/healthz/live", "/healthz/ready", "/metrics"] {
            assert_eq!(get(&cluster, index, path).await.0, 200, "{path}");
        }
        for path in ["/api/v1/tasks", "/api/v1/instances", "/api/v1/events", "/openapi.json", "/ws", "/console"] {
            assert_eq!(get(&cluster, index, path).await.0, 404, "{path}");
        }
        assert!(cluster.client(index).mint_ticket(&request).await.is_err());
        assert_eq!(upgrade_status(cluster.base_urls().remove(index), ticket.expose()).await, 404);
    }
    cluster.client(API).connect(SocketOptions::ticket(ticket)).await.expect("nobody has burned the ticket");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_worker_runs_wait_and_the_pool_is_told_of() {
    let mut cluster = split().await;
    cluster.stop(WORKER).await;
    let client = cluster.client(API).clone();
    create_room(&client, "lobby").await;
    let task = create_task(&client, event_task("note", "lobby")).await;
    let run = trigger(&client, task.id).await;
    counted(&cluster, SCHEDULER, SOME).await;
    assert_eq!(uncovered(&client).await, [("default".to_owned(), 1)]);
    assert!(cluster.logs(SCHEDULER).contains("no live worker serves a pool that has queued runs"));
    assert_eq!(client.get_run(run).await.unwrap().state, RunState::Queued, "the replica of the API executes nothing");

    cluster.add_with(&[(ROLES, "worker")]).await;
    assert_eq!(ended(&client, run).await.state, RunState::Succeeded);
    counted(&cluster, SCHEDULER, NONE).await;
    assert_eq!(uncovered(&client).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_scheduler_nothing_fires_and_what_is_triggered_runs() {
    let mut cluster = split().await;
    cluster.stop(SCHEDULER).await;
    let client = cluster.client(API).clone();
    create_room(&client, "lobby").await;
    let mut value = event_task("tick", "lobby");
    value["schedule"] = serde_json::json!({"every": {"interval": "1s"}});
    let scheduled = create_task(&client, value).await;
    let due = scheduled.next_run_at.unwrap();
    wait_until("the task to be due", async || {
        let now = cluster.database().now().await;
        if now > due { Ok(()) } else { Err(now) }
    })
    .await;
    let manual = create_task(&client, event_task("note", "lobby")).await;
    for _ in 0..3 {
        let run = trigger(&client, manual.id).await;
        assert_eq!(ended(&client, run).await.state, RunState::Succeeded);
    }
    assert_eq!(runs(&client, scheduled.id).await.len(), 0, "neither the API nor the worker fires");
    cluster.add_with(&[(ROLES, "scheduler")]).await;
    succeeded(&client, scheduled.id, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_its_own_needs_a_worker_of_its_own() {
    let mut cluster = cluster(1).await;
    let client = cluster.client(0).clone();
    create_room(&client, "lobby").await;
    let mut value = event_task("note", "lobby");
    value["pool"] = serde_json::json!("heavy");
    let task = create_task(&client, value).await;
    let run = trigger(&client, task.id).await;
    counted(&cluster, 0, SOME).await;
    assert_eq!(uncovered(&client).await, [("heavy".to_owned(), 1)]);
    cluster.add_with(&[(ROLES, "worker"), ("SWITCHBOARD_POOLS", "heavy")]).await;
    let run = ended(&client, run).await;
    assert!(run.state == RunState::Succeeded && is_on(&run, "b-"), "{run:?}");
    counted(&cluster, 0, NONE).await;
}
