//! Two and more replicas on one PostgreSQL database share the work.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use switchboard_client::SocketOptions;
use switchboard_model::page::PageRequest;
use switchboard_model::run::{Run, RunState};
use switchboard_model::ticket::Grants;
use switchboard_model::wire::op::Since;
use switchboard_testkit::{Cluster, Signal, ledger, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixtures::{
    cluster, create_room, create_task, ended, event, event_task, gated_task, next_event, next_events, room, runs,
    skips, started, succeeded, trigger,
};

#[tokio::test(flavor = "multi_thread")]
async fn replicas_boot_together_and_see_each_other() {
    let cluster = cluster(2).await;
    for index in 0..2 {
        let listed = cluster.client(index).list_instances(PageRequest::default()).await.unwrap().items;
        assert_eq!(listed.len(), 2, "{listed:?}");
    }
    let tasks = cluster.any().list_tasks(PageRequest::default()).await.unwrap().items;
    let names: BTreeSet<&str> = tasks.iter().map(|task| task.spec.name.as_str()).collect();
    assert!(names.contains("system:prune_history"), "{names:?}");
    assert_eq!(names.len(), tasks.len(), "system tasks are installed once");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_second_has_exactly_one_run() {
    let cluster = cluster(2).await;
    create_room(cluster.any(), "lobby").await;
    let mut value = event_task("tick", "lobby");
    value["schedule"] = serde_json::json!({"every": {"interval": "1s"}});
    let task = create_task(cluster.any(), value).await;
    let runs = succeeded(cluster.any(), task.id, 20).await;
    let due: BTreeSet<_> = runs.iter().filter_map(|run| run.scheduled_for).collect();
    assert_eq!(due.len(), runs.len(), "each run has an occurrence of its own");
    let (first, last) = (*due.first().unwrap(), *due.last().unwrap());
    let skips = skips(cluster.any(), task.id).await;
    ledger::occurrences(task.spec.schedule.as_ref().unwrap(), first..=last, &runs, &skips).unwrap();
    let history = cluster.any().history(&room("lobby"), 0, 500).await.unwrap();
    let succeeded = runs.iter().filter(|run| run.state == RunState::Succeeded).count();
    assert!(history.events.len() >= succeeded, "one event per successful run");
    let messages: BTreeSet<_> = history.events.iter().map(|event| &event.msg_id).collect();
    assert_eq!(messages.len(), history.events.len(), "and no event twice");
}

/// Triggers two runs, and waits until each of two replicas with one permit holds one of them: they end only when the
/// test says so, so neither replica can take both.
async fn both_hold_a_run(cluster: &Cluster) -> Vec<Run> {
    let task = create_task(cluster.any(), gated_task("held")).await;
    for _ in 0..2 {
        trigger(cluster.any(), task.id).await;
    }
    wait_until("a run on each replica", async || {
        let runs = runs(cluster.any(), task.id).await;
        let running = runs.iter().filter(|run| run.state == RunState::Running);
        let holders: BTreeSet<_> = running.filter_map(|run| run.leased_by.clone()).collect();
        if holders.len() == 2 { Ok(runs) } else { Err(runs) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn both_replicas_execute() {
    let cluster = cluster(2).env("SWITCHBOARD_SCHEDULER__PERMITS", "1").await;
    let held = both_hold_a_run(&cluster).await;
    cluster.open_gate();
    for run in held {
        assert_eq!(ended(cluster.any(), run.id).await.state, RunState::Succeeded);
    }
}

/// Asks for a socket by a ticket and returns the status of the answer.
pub(crate) async fn upgrade_status(url: String, ticket: &str) -> u16 {
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /ws?ticket={ticket} HTTP/1.1\r\nhost: {address}\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    connection.read_exact(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head);
    head.strip_prefix("HTTP/1.1 ").and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{head}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_of_one_replica_opens_one_socket_on_any() {
    let cluster = cluster(3).await;
    let request = switchboard_model::wire::rest::TicketRequest {
        user_id: Some("ann".parse().unwrap()),
        origin: None,
        grants: Grants::default(),
    };
    let ticket = cluster.client(0).mint_ticket(&request).await.unwrap();
    // A third of the tries goes to each replica. They are read as HTTP, so that no client loses its patience.
    let tries = (0..100).map(|index| upgrade_status(cluster.base_urls().remove(index % 3), ticket.expose()));
    let statuses = join_all(tries).await;
    assert_eq!(statuses.iter().filter(|status| **status == 101).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|status| [101, 401].contains(status)), "{statuses:?}");
    let ticket = cluster.client(0).mint_ticket(&request).await.unwrap();
    cluster.client(1).connect(SocketOptions::ticket(ticket)).await.unwrap();
}

async fn events_cross_replicas(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let lobby = room("lobby");
    let mut there = cluster.socket(1, "ann").await;
    let joined = there.handle().join(&lobby, Since::default()).await.unwrap();
    let mut positions = Vec::new();
    for n in 0..40 {
        let published = cluster.client(n % 2).publish(&lobby, &event("note", serde_json::json!(n))).await.unwrap();
        positions.push(published.position.unwrap());
    }
    let events = next_events(&mut there, 40).await;
    ledger::positions(&events, 1..=40).unwrap();
    let arrived: Vec<_> = events.iter().map(|event| event.position().unwrap()).collect();
    assert_eq!(arrived, positions);
    assert_eq!(arrived[0].epoch, joined.epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_cross_replicas_with_hints() {
    events_cross_replicas(cluster(2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_cross_replicas_without_hints() {
    events_cross_replicas(cluster(2).polling().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_added_takes_work() {
    let mut cluster = cluster(1).env("SWITCHBOARD_SCHEDULER__PERMITS", "1").await;
    cluster.add().await;
    both_hold_a_run(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_replica_finishes_its_runs_and_moves_its_sockets() {
    let mut cluster = cluster(2).env("SWITCHBOARD_SCHEDULER__PERMITS", "1").await;
    create_room(cluster.any(), "lobby").await;
    let mut socket = cluster.socket(0, "ann").await;
    socket.handle().join(&room("lobby"), Since::default()).await.unwrap();
    let held = both_hold_a_run(&cluster).await;
    let task = held[0].task_id;
    let queued = join_all((0..4).map(|_| trigger(cluster.client(0), task))).await;
    cluster.kill(0, Signal::SIGTERM);
    wait_until("the stop to begin", async || cluster.client(0).ready().await.is_err().then_some(())).await;
    cluster.open_gate();
    let status = cluster.ended(0).await;
    assert!(status.success(), "{status}");
    for before in held {
        let run = ended(cluster.client(1), before.id).await;
        assert_eq!((run.state, run.attempt), (RunState::Succeeded, 1), "no run is lost or repeated");
        assert_eq!(run.leased_by, before.leased_by, "whoever began it has ended it");
    }
    for run in queued {
        let run = ended(cluster.client(1), run).await;
        assert_eq!((run.state, run.attempt), (RunState::Succeeded, 1), "no run is lost or repeated");
    }
    let close = loop {
        match socket.next().await {
            Some(switchboard_client::SocketEvent::Closed { code, .. }) => break code,
            Some(_) => {}
            None => panic!("the socket ended without a close"),
        }
    };
    assert_eq!(close, 4200);
    let left = cluster.client(1).list_instances(PageRequest::default()).await.unwrap().items;
    assert_eq!(left.len(), 1, "the stopped replica took itself off the list");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_the_replica_that_runs() {
    let cluster = cluster(2).await;
    let task = create_task(cluster.any(), gated_task("held")).await;
    let run = trigger(cluster.any(), task.id).await;
    started(cluster.any(), run).await;
    cluster.any().cancel_run(run).await.unwrap();
    assert_eq!(ended(cluster.any(), run).await.state, RunState::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_joins_the_room_of_another_user_in_vain() {
    let cluster = cluster(2).await;
    let socket = cluster.socket(0, "ann").await;
    let refused = socket.handle().join(&room("user:bob"), Since::default()).await.unwrap_err();
    assert_eq!(refused.code(), Some(switchboard_model::wire::code::ErrorCode::NotFound));
    let mut own = cluster.socket(1, "ann").await;
    cluster.client(0).publish_to_user(&"ann".parse().unwrap(), &event("note", serde_json::json!(1))).await.unwrap();
    assert_eq!(next_event(&mut own).await.offset, Some(1));
}
