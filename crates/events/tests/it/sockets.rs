//! Sockets as rows of the database: entered, counted, taken off the list; and what ends them.

use std::sync::Arc;

use chrono::TimeDelta;
use switchboard_events::{ConnectError, Hold, Outgoing, Session, SessionGuard};
use switchboard_model::Timestamp;
use switchboard_model::auth_session::Credential;
use switchboard_model::connection::Connection;
use switchboard_model::page::PageRequest;
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
