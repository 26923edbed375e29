//! Sockets as rows of the database: entered, counted, taken off the list; and what ends them.

use std::sync::Arc;

use chrono::TimeDelta;
use switchboard_events::{ConnectError, Hold, Outgoing, Reach, Session, SessionGuard, SessionIdentity};
use switchboard_model::Timestamp;
use switchboard_model::auth_session::Credential;
use switchboard_model::connection::Connection;
use switchboard_model::page::PageRequest;
use switchboard_model::ticket::Grants;
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::WriteContext;

use crate::bench::{Bench, SOCKETS, announce};

/// Lists all sockets after everything said so far was written.
async fn rows(bench: &Bench) -> Vec<Connection> {
    bench.hub.settled().await;
    bench.stores.connections.list(None, &PageRequest::default()).await.unwrap().items
}

async fn closed(session: &Arc<Session>) -> CloseCode {
    loop {
        if let Outgoing::Close(code) = session.next().await {
            return code;
        }
    }
}

/// Returns database time, once it is known.
async fn now(bench: &Bench) -> Timestamp {
    loop {
        match bench.hub.now() {
            Some(now) => return now,
            None => tokio::task::yield_now().await,
        }
    }
}

fn hold(user: &str, expires_at: Option<Timestamp>) -> Hold {
    Hold { credential: Credential::User(user.parse().unwrap()), expires_at }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_has_a_row_as_long_as_it_is_open() {
    let bench = Bench::new().await;
    let ann = bench.connect("ann").await;
    let bob = bench.connect("bob").await;
    let found = rows(&bench).await;
    assert_eq!(found.iter().map(|row| row.id).collect::<Vec<_>>(), [ann.id(), bob.id()]);
    drop(ann);
    let found = rows(&bench).await;
    assert_eq!(found.iter().map(|row| row.user_id.as_str()).collect::<Vec<_>>(), ["bob"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_no_more_sockets_than_allowed() {
    let bench = Bench::new().await;
    let mut open: Vec<SessionGuard> = Vec::new();
    for _ in 0..SOCKETS {
        open.push(bench.connect("ann").await);
    }
    let refused = bench.try_connect("ann", hold("ann", None)).await;
    assert!(matches!(refused, Err(ConnectError::TooMany)));
    assert_eq!(rows(&bench).await.len(), SOCKETS as usize);
    bench.connect("bob").await;
    drop(open.pop());
    rows(&bench).await;
    bench.connect("ann").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_under_another_identity_starts_without_sockets() {
    let bench = Bench::new().await;
    let old = bench.connect("ann").await;
    let identity = announce(&bench.stores).await;
    bench.stores.instances.deregister(&rows(&bench).await[0].instance).await.unwrap();
    let refused = bench.try_connect("bob", hold("bob", None)).await;
    assert!(matches!(refused, Err(ConnectError::Store(_))), "the old identity enters nobody");
    bench.hub.rejoin(identity.clone());
    assert_eq!(closed(&old).await, CloseCode::Reconnect);
    let new = bench.connect("ann").await;
    drop(old);
    let found = rows(&bench).await;
    assert_eq!(found.iter().map(|row| (row.id, row.instance.clone())).collect::<Vec<_>>(), [(new.id(), identity)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kicked_socket_is_closed_for_good() {
    let bench = Bench::new().await;
    let ann = bench.connect("ann").await;
    let other = bench.connect("ann").await;
    assert!(bench.stores.connections.kick(&WriteContext::system("test"), ann.id()).await.unwrap());
    assert_eq!(closed(&ann).await, CloseCode::Kicked);
    bench.send(&other, r#"{"id":1,"op":"ping"}"#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kick_that_nobody_heard_of_is_found_by_the_resync() {
    let bench = Bench::deaf().await;
    let ann = bench.connect("ann").await;
    let other = bench.connect("ann").await;
    assert!(bench.stores.connections.kick(&WriteContext::system("test"), ann.id()).await.unwrap());
    bench.lose_the_feed().await;
    assert_eq!(closed(&ann).await, CloseCode::Kicked);
    bench.send(&other, r#"{"id":1,"op":"ping"}"#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sockets_of_a_replica_that_was_given_up_are_not_kicked() {
    let bench = Bench::deaf().await;
    let ann = bench.connect("ann").await;
    let instance = rows(&bench).await[0].instance.clone();
    bench.stores.instances.deregister(&instance).await.unwrap();
    bench.lose_the_feed().await;
    bench.hub.rejoin(announce(&bench.stores).await);
    assert_eq!(closed(&ann).await, CloseCode::Reconnect, "it comes back at once");
}

/// Begins to listen to the room of a user without a socket.
async fn listen(bench: &Bench, user: &str, reach: Reach) -> Result<SessionGuard, ErrorCode> {
    let identity = SessionIdentity { user_id: user.parse().unwrap(), grants: Grants::default() };
    let heard = bench.hub.listen(identity, hold(user, None), reach, &[]).await;
    heard.map(|(session, _)| session).map_err(|error| error.code)
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_and_sockets_of_a_user_count_together() {
    let bench = Bench::new().await;
    let mut open = vec![listen(&bench, "ann", Reach::OfUser).await.unwrap(), bench.connect("ann").await];
    for _ in 2..SOCKETS {
        open.push(listen(&bench, "ann", Reach::OfUser).await.unwrap());
    }
    assert_eq!(listen(&bench, "ann", Reach::OfUser).await.err(), Some(ErrorCode::TooManyConnections));
    assert!(matches!(bench.try_connect("ann", hold("ann", None)).await, Err(ConnectError::TooMany)));
    assert_eq!(rows(&bench).await.len(), 1, "only sockets have rows");
    listen(&bench, "bob", Reach::OfUser).await.unwrap();
    // A program has no user; what it may do is limited by its requests.
    let programs = futures_util::future::join_all((0..=SOCKETS).map(|_| listen(&bench, "key", Reach::EveryRoom))).await;
    assert!(programs.iter().all(Result::is_ok));
    open.remove(0);
    bench.connect("ann").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_ends_with_its_token() {
    let bench = Bench::new().await;
    let soon = now(&bench).await + TimeDelta::milliseconds(50);
    let ann = bench.try_connect("ann", hold("ann", Some(soon))).await.unwrap();
    assert_eq!(closed(&ann).await, CloseCode::TokenExpired);
    assert!(now(&bench).await >= soon);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_token_keeps_a_socket_open() {
    let bench = Bench::new().await;
    let soon = now(&bench).await + TimeDelta::milliseconds(500);
    let ann = bench.try_connect("ann", hold("ann", Some(soon))).await.unwrap();
    let answer = bench.send(&ann, r#"{"id":1,"op":"auth","token":"ann"}"#).await;
    assert_eq!(answer.as_str(), "{}");
    while now(&bench).await < soon + TimeDelta::milliseconds(50) {
        tokio::task::yield_now().await;
    }
    bench.send(&ann, r#"{"id":2,"op":"ping"}"#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_fails_ends_the_socket() {
    let bench = Bench::new().await;
    for token in ["wrong", "bob"] {
        let ann = bench.connect("ann").await;
        bench.refused(&ann, &format!(r#"{{"id":1,"op":"auth","token":"{token}"}}"#), ErrorCode::Unauthorized).await;
        assert_eq!(closed(&ann).await, CloseCode::AuthFailed);
    }
}
