//! Sockets of a whole fleet: counted together, listed, kicked, and shown in rooms, wherever they are open.

use std::time::Duration;

use futures_util::future::join_all;
use switchboard_client::{Socket, SocketEvent, SocketOptions};
use switchboard_model::identity::UserId;
use switchboard_model::page::PageRequest;
use switchboard_model::ticket::Grants;
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::op::Since;
use switchboard_testkit::{Cluster, Signal, wait_until};
use tokio::time::Instant;

use crate::fixtures::{cluster, create_room, next_event, on_every_database, room};

on_every_database! {
    those_who_show_themselves_are_listed_and_told_everywhere,
    a_kick_reaches_its_socket_and_no_other,
}

async fn show(socket: &Socket) {
    socket.handle().join_shown(&room("lobby"), Since::default()).await.unwrap();
}

/// Reads who is in the lobby, as one replica says.
async fn who(cluster: &Cluster, index: usize) -> Vec<String> {
    let found = cluster.client(index).presence(&room("lobby")).await.unwrap();
    found.members.unwrap().into_iter().map(|member| member.user_id.into_string()).collect()
}

/// Waits for the next word about somebody else, and returns it.
async fn told(socket: &mut Socket, own: &str) -> (String, String) {
    loop {
        let event = next_event(socket).await;
        let payload: serde_json::Value = serde_json::from_str(event.payload.as_str()).unwrap();
        let user = payload["user_id"].as_str().unwrap();
        if user != own {
            return (event.event.into_string(), user.to_owned());
        }
    }
}

async fn close_code(socket: &mut Socket) -> u16 {
    loop {
        if let SocketEvent::Closed { code, .. } = socket.next().await.unwrap() {
            return code;
        }
    }
}

fn pair(event: &str, user: &str) -> (String, String) {
    (event.to_owned(), user.to_owned())
}

async fn those_who_show_themselves_are_listed_and_told_everywhere(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let there = cluster.size() - 1;
    let mut ann = cluster.socket(0, "ann").await;
    show(&ann).await;
    let mut bob = cluster.socket(there, "bob").await;
    show(&bob).await;
    assert_eq!(told(&mut ann, "ann").await, pair("presence.joined", "bob"));
    for index in 0..cluster.size() {
        assert_eq!(who(&cluster, index).await, ["ann", "bob"]);
    }
    let lobby = room("lobby");
    let asked = [ann.presence(&lobby).await.unwrap(), bob.presence(&lobby).await.unwrap()];
    assert_eq!(asked[0], asked[1], "lists are equal on all replicas");
    ann.leave(&lobby).await.unwrap();
    assert_eq!(told(&mut bob, "bob").await, pair("presence.left", "ann"));
    assert_eq!(who(&cluster, there).await, ["bob"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_people_of_a_killed_replica_leave_everywhere() {
    let mut cluster = cluster(3).await;
    create_room(cluster.any(), "lobby").await;
    let ann = cluster.socket(0, "ann").await;
    show(&ann).await;
    let mut others = [cluster.socket(1, "bob").await, cluster.socket(2, "cyd").await];
    for socket in &others {
        show(socket).await;
    }
    let killed = Instant::now();
    cluster.kill(0, Signal::SIGKILL);
    for (socket, own) in others.iter_mut().zip(["bob", "cyd"]) {
        while told(socket, own).await != pair("presence.left", "ann") {}
    }
    assert!(killed.elapsed() < Duration::from_secs(20), "left after {:?}", killed.elapsed());
    for index in 1..3 {
        assert_eq!(who(&cluster, index).await, ["bob", "cyd"]);
    }
    let open = cluster.client(1).list_sessions(None, PageRequest::default()).await.unwrap().items;
    assert_eq!(open.len(), 2, "the sockets of the dead are gone: {open:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_moves_from_a_stopping_replica_has_never_left() {
    let mut cluster = cluster(2).await;
    create_room(cluster.any(), "lobby").await;
    let mut ann = cluster.socket(0, "ann").await;
    show(&ann).await;
    let mut bob = cluster.socket(1, "bob").await;
    show(&bob).await;
    cluster.kill(0, Signal::SIGTERM);
    assert_eq!(close_code(&mut ann).await, CloseCode::Drain.number());
    let ann = cluster.socket(1, "ann").await;
    show(&ann).await;
    cluster.ended(0).await;
    wait_until("the end of the grace", async || {
        let leaving = cluster.database().count("SELECT count(*) FROM presence WHERE leaves_at IS NOT NULL").await;
        if leaving == 0 { Ok(()) } else { Err(leaving) }
    })
    .await;
    let cyd = cluster.socket(1, "cyd").await;
    show(&cyd).await;
    // What was said of ann before this would have arrived before it.
    assert_eq!(told(&mut bob, "bob").await, pair("presence.joined", "cyd"));
    assert_eq!(who(&cluster, 1).await, ["ann", "bob", "cyd"]);
}

async fn a_kick_reaches_its_socket_and_no_other(cluster: Cluster) {
    let there = cluster.size() - 1;
    let mut kicked = cluster.socket(0, "ann").await;
    let other = cluster.socket(there, "ann").await;
    let ann: UserId = "ann".parse().unwrap();
    let listed = cluster.client(there).list_sessions(Some(&ann), PageRequest::default()).await.unwrap().items;
    let ids: Vec<_> = listed.iter().map(|socket| socket.id).collect();
    assert_eq!(ids, [kicked.hello().conn_id, other.hello().conn_id]);
    assert_eq!(listed[0].instance, kicked.hello().instance);
    cluster.client(there).kick_session(ids[0]).await.unwrap();
    let asked = Instant::now();
    assert_eq!(close_code(&mut kicked).await, CloseCode::Kicked.number());
    assert!(asked.elapsed() < Duration::from_secs(3), "closed after {:?}", asked.elapsed());
    other.ping().await.unwrap();
    wait_until("the end of the row", async || {
        let gone = cluster.client(there).kick_session(ids[0]).await.err()?;
        (gone.code() == Some(ErrorCode::NotFound)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_so_many_sockets_on_all_replicas_together() {
    let cluster = cluster(2).env("SWITCHBOARD_LIMITS__SOCKETS_PER_USER", "3").await;
    let tickets = join_all((0..20).map(|_| cluster.ticket_for("ann", Grants::default()))).await;
    let tries = tickets.into_iter().enumerate();
    let tries = tries.map(|(index, ticket)| cluster.client(index % 2).connect(SocketOptions::ticket(ticket)));
    let (mut open, refused): (Vec<_>, Vec<_>) = join_all(tries).await.into_iter().partition(Result::is_ok);
    assert_eq!(open.len(), 3);
    for error in refused.into_iter().map(Result::unwrap_err) {
        assert_eq!(error.code(), Some(ErrorCode::TooManyConnections), "{error}");
    }
    drop(open.pop());
    wait_until("room for another socket", async || {
        let ticket = cluster.ticket_for("ann", Grants::default()).await;
        cluster.client(1).connect(SocketOptions::ticket(ticket)).await.map(|socket| open.push(Ok(socket)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_given_up_comes_back_without_its_sockets() {
    let mut cluster = cluster(2).await;
    create_room(cluster.any(), "lobby").await;
    let mut ann = cluster.socket(0, "ann").await;
    show(&ann).await;
    cluster.pause(0);
    wait_until("the end of the lease", async || {
        let open = cluster.client(1).list_sessions(None, PageRequest::default()).await.unwrap().items;
        let live = cluster.client(1).list_instances(PageRequest::default()).await.unwrap().items;
        (open.is_empty() && live.len() == 1).then_some(())
    })
    .await;
    assert_eq!(who(&cluster, 1).await, [""; 0]);
    cluster.resume(0);
    assert_eq!(close_code(&mut ann).await, CloseCode::Reconnect.number());
    let back = wait_until("the replica under its new identity", async || {
        let ticket = cluster.ticket_for("ann", Grants::default()).await;
        cluster.client(0).connect(SocketOptions::ticket(ticket)).await
    })
    .await;
    show(&back).await;
    assert_eq!(who(&cluster, 1).await, ["ann"]);
    let open = cluster.client(1).list_sessions(None, PageRequest::default()).await.unwrap().items;
    let rows: Vec<_> = open.iter().map(|socket| (socket.id, &socket.instance)).collect();
    assert_eq!(rows, [(back.hello().conn_id, &back.hello().instance)]);
}
