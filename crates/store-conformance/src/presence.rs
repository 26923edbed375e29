//! Presence: derived from sockets, with a grace for those that come back and none for dead replicas.

use switchboard_model::connection::NewConnection;
use switchboard_model::feed::{SignalKind, TickRequest};
use switchboard_model::presence::{PRESENCE_GRACE, PRESENCE_MEMBERS, Presence};
use switchboard_store_api::{ConnectOutcome, PresenceChange, Stores};

use crate::Backend;
use crate::connections::{connected, leased_replica, live_replica, socket};
use crate::fixtures::{LONG, Reader, SHORT, contend, database_time, named, replicas, until, wait_past};

fn entering(room: &str, socket: &NewConnection) -> PresenceChange {
    PresenceChange::Enter { room: named(room), connection: socket.clone() }
}

fn leaving(room: &str, socket: &NewConnection) -> PresenceChange {
    PresenceChange::Leave { room: named(room), connection: socket.id }
}

async fn change(stores: &Stores, changes: &[PresenceChange]) {
    stores.presence.change(changes).await.unwrap();
}

/// Reads one room.
async fn read(stores: &Stores, room: &str) -> Presence {
    let mut found = stores.presence.read(&[named(room)]).await.unwrap();
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// Reads who is in a room.
async fn members(stores: &Stores, room: &str) -> Vec<String> {
    let Presence { count, members } = read(stores, room).await;
    let members: Vec<_> = members.unwrap().iter().map(|member| member.user_id.to_string()).collect();
    assert_eq!(count, i64::try_from(members.len()).unwrap());
    members
}

fn told(rooms: &[&str]) -> Vec<(SignalKind, String)> {
    rooms.iter().map(|room| (SignalKind::PresenceChanged, (*room).to_owned())).collect()
}

pub(crate) async fn a_user_is_present_once_whatever_their_sockets(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = live_replica(&stores, "one").await;
    let bob = connected(&stores, &instance, "bob").await;
    let first = connected(&stores, &instance, "ann").await;
    let second = connected(&stores, &instance, "ann").await;
    let before = database_time(&stores).await;
    change(&stores, &[entering("lobby", &bob), entering("lobby", &first), entering("den", &bob)]).await;
    let after = database_time(&stores).await;
    wait_past(&stores, after).await;
    change(&stores, &[entering("lobby", &second)]).await;
    assert_eq!(members(&stores, "lobby").await, ["ann", "bob"]);
    let ann = read(&stores, "lobby").await.members.unwrap().remove(0);
    assert!(before <= ann.since && ann.since <= after, "the oldest socket counts");

    let rooms = [named("den"), named("empty"), named("lobby")];
    let counts: Vec<_> = stores.presence.read(&rooms).await.unwrap().iter().map(|found| found.count).collect();
    assert_eq!(counts, [1, 0, 2]);
    change(&stores, &[leaving("lobby", &first)]).await;
    assert_eq!(members(&stores, "lobby").await, ["ann", "bob"]);
    change(&stores, &[leaving("lobby", &second), leaving("lobby", &bob)]).await;
    assert_eq!(members(&stores, "lobby").await, [""; 0]);
    assert_eq!(members(&stores, "den").await, ["bob"]);
}

pub(crate) async fn what_changes_nothing_signals_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = live_replica(&stores, "one").await;
    let ann = connected(&stores, &instance, "ann").await;
    let mut reader = Reader::start(&stores).await;
    change(&stores, &[entering("lobby", &ann), entering("den", &ann)]).await;
    assert_eq!(reader.changes().await, told(&["den", "lobby"]));
    change(&stores, &[entering("lobby", &ann), leaving("attic", &ann)]).await;
    change(&stores, &[]).await;
    assert_eq!(stores.presence.sweep(10).await.unwrap(), 0);
    assert_eq!(reader.changes().await, []);
    change(&stores, &[leaving("lobby", &ann)]).await;
    assert_eq!(reader.changes().await, told(&["lobby"]));
}

pub(crate) async fn the_last_change_of_a_batch_counts(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = live_replica(&stores, "one").await;
    let ann = connected(&stores, &instance, "ann").await;
    change(&stores, &[entering("lobby", &ann), leaving("lobby", &ann)]).await;
    assert_eq!(members(&stores, "lobby").await, [""; 0]);
    change(&stores, &[leaving("lobby", &ann), entering("lobby", &ann)]).await;
    assert_eq!(members(&stores, "lobby").await, ["ann"]);
    for _ in 0..50 {
        change(&stores, &[leaving("lobby", &ann), entering("lobby", &ann), leaving("lobby", &ann)]).await;
        change(&stores, &[entering("lobby", &ann)]).await;
    }
    assert_eq!(members(&stores, "lobby").await, ["ann"]);
}

pub(crate) async fn who_loses_a_socket_stays_for_the_grace(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = live_replica(&stores, "one").await;
    let ann = connected(&stores, &instance, "ann").await;
    change(&stores, &[entering("lobby", &ann)]).await;
    let before = database_time(&stores).await;
    stores.connections.disconnect(&[ann.id]).await.unwrap();
    assert_eq!(members(&stores, "lobby").await, ["ann"]);
    let due = stores.feed.tick(None, &TickRequest::default()).await.unwrap().next.presence.unwrap();
    assert!(before + PRESENCE_GRACE.to_delta() <= due);
    assert!(due <= database_time(&stores).await + PRESENCE_GRACE.to_delta());
    assert_eq!(stores.presence.sweep(10).await.unwrap(), 0, "not yet");

    // The replica may go: its clients were told to come back elsewhere.
    stores.instances.deregister(&instance).await.unwrap();
    assert_eq!(members(&stores, "lobby").await, ["ann"]);
    let mut reader = Reader::start(&stores).await;
    until(async || members(&stores, "lobby").await, Vec::is_empty).await;
    assert!(database_time(&stores).await >= due);
    assert_eq!(stores.presence.sweep(10).await.unwrap(), 1);
    assert_eq!(reader.changes().await, told(&["lobby"]));
    assert_eq!(stores.feed.tick(None, &TickRequest::default()).await.unwrap().next.presence, None);
}

pub(crate) async fn who_comes_back_in_time_has_never_left(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let old = live_replica(&stores, "old").await;
    let new = live_replica(&stores, "new").await;
    let first = connected(&stores, &old, "ann").await;
    change(&stores, &[entering("lobby", &first)]).await;
    stores.connections.disconnect(&[first.id]).await.unwrap();
    let due = stores.feed.tick(None, &TickRequest::default()).await.unwrap().next.presence.unwrap();
    let second = connected(&stores, &new, "ann").await;
    change(&stores, &[entering("lobby", &second)]).await;
    wait_past(&stores, due).await;
    assert_eq!(members(&stores, "lobby").await, ["ann"]);
    assert_eq!(stores.presence.sweep(10).await.unwrap(), 1);
    assert_eq!(members(&stores, "lobby").await, ["ann"]);
}

pub(crate) async fn a_dead_replica_takes_its_people_along_at_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let lost = leased_replica(&stores, "lost", SHORT).await;
    let live = live_replica(&stores, "live").await;
    let ann = socket(&lost, "ann");
    let bob = connected(&stores, &live, "bob").await;
    assert_eq!(stores.connections.connect(std::slice::from_ref(&ann), 9).await.unwrap(), [ConnectOutcome::Connected]);
    change(&stores, &[entering("lobby", &ann), entering("lobby", &bob)]).await;
    let mut reader = Reader::start(&stores).await;
    until(async || members(&stores, "lobby").await, |members| *members == ["bob"]).await;
    assert_eq!(stores.instances.sweep().await.unwrap(), [lost]);
    let changes = reader.changes().await;
    assert!(changes.contains(&told(&["lobby"])[0]), "{changes:?}");
    assert_eq!(members(&stores, "lobby").await, ["bob"]);
    assert_eq!(stores.feed.tick(None, &TickRequest::default()).await.unwrap().next.presence, None, "no grace");
}

pub(crate) async fn a_socket_that_is_gone_enters_nothing(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = live_replica(&stores, "one").await;
    let ann = connected(&stores, &instance, "ann").await;
    stores.connections.disconnect(&[ann.id]).await.unwrap();
    let mut reader = Reader::start(&stores).await;
    change(&stores, &[entering("lobby", &ann)]).await;
    assert_eq!(members(&stores, "lobby").await, [""; 0]);
    assert_eq!(reader.changes().await, []);
}

pub(crate) async fn entering_and_closing_at_once_leave_nobody_for_ever(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let instance = live_replica(&stores[0], "one").await;
    let mut sockets = Vec::new();
    for n in 0..20 {
        sockets.push(connected(&stores[0], &instance, &format!("u{n}")).await);
    }
    contend(&stores, 40, |stores, n| {
        let socket = sockets[n / 2].clone();
        async move {
            match n % 2 {
                0 => change(&stores, &[entering("lobby", &socket), entering("den", &socket)]).await,
                _ => stores.connections.disconnect(&[socket.id]).await.unwrap(),
            }
        }
    })
    .await;
    let due = database_time(&stores[0]).await + PRESENCE_GRACE.to_delta();
    wait_past(&stores[0], due).await;
    while stores[0].presence.sweep(3).await.unwrap() > 0 {}
    for room in ["lobby", "den"] {
        assert_eq!(members(&stores[0], room).await, [""; 0]);
    }
}

pub(crate) async fn a_large_room_tells_its_number_only(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = leased_replica(&stores, "one", LONG).await;
    let sockets: Vec<_> = (0..=PRESENCE_MEMBERS).map(|n| socket(&instance, &format!("u{n:04}"))).collect();
    stores.connections.connect(&sockets, 9).await.unwrap();
    let entered: Vec<_> = sockets.iter().map(|socket| entering("arena", socket)).collect();
    change(&stores, &entered).await;
    let count = i64::try_from(PRESENCE_MEMBERS).unwrap();
    assert_eq!(read(&stores, "arena").await, Presence { count: count + 1, members: None });
    change(&stores, &[leaving("arena", &sockets[0])]).await;
    let found = read(&stores, "arena").await;
    assert_eq!((found.count, found.members.unwrap().len()), (count, PRESENCE_MEMBERS));
}
