//! Sockets: the limit of a user holds for the whole fleet, and only live replicas count.

use switchboard_model::connection::{Connection, NewConnection};
use switchboard_model::feed::SignalKind;
use switchboard_model::ids::{ConnectionId, InstanceId};
use switchboard_model::instance::Role;
use switchboard_model::page::PageRequest;
use switchboard_model::span::Span;
use switchboard_store_api::{ConnectOutcome, StoreError, Stores};

use crate::Backend;
use crate::accounts::{audit_actions, audited, user};
use crate::fixtures::{
    ALL, LONG, Reader, SHORT, contend, database_time, eventually, new_instance, replicas, system, until,
};

/// Announces a replica that outlives its case.
pub(crate) async fn live_replica(stores: &Stores, name: &str) -> InstanceId {
    leased_replica(stores, name, LONG).await
}

/// Announces a replica for the length of a lease.
pub(crate) async fn leased_replica(stores: &Stores, name: &str, lease: Span) -> InstanceId {
    let new = new_instance(name, &Role::ALL);
    stores.instances.register(&new, lease).await.unwrap();
    new.id
}

/// A socket of a user on a replica.
pub(crate) fn socket(instance: &InstanceId, name: &str) -> NewConnection {
    NewConnection { id: ConnectionId::new(), instance: instance.clone(), user_id: user(name) }
}

/// Enters a socket that must be admitted.
pub(crate) async fn connected(stores: &Stores, instance: &InstanceId, name: &str) -> NewConnection {
    let socket = socket(instance, name);
    let outcomes = stores.connections.connect(std::slice::from_ref(&socket), 100).await.unwrap();
    assert_eq!(outcomes, [ConnectOutcome::Connected]);
    socket
}

/// Lists the sockets of a user.
async fn of_user(stores: &Stores, name: &str) -> Vec<Connection> {
    stores.connections.list(Some(&user(name)), &ALL).await.unwrap().items
}

fn ids(connections: &[Connection]) -> Vec<ConnectionId> {
    connections.iter().map(|connection| connection.id).collect()
}

pub(crate) async fn sockets_are_listed_until_they_close(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = live_replica(&stores, "one").await;
    let before = database_time(&stores).await;
    let mut opened = Vec::new();
    for name in ["ann", "bob", "ann"] {
        opened.push(connected(&stores, &instance, name).await);
    }
    let found = stores.connections.list(None, &ALL).await.unwrap().items;
    let after = database_time(&stores).await;
    assert_eq!(ids(&found), opened.iter().map(|socket| socket.id).collect::<Vec<_>>());
    for (connection, socket) in found.iter().zip(&opened) {
        assert_eq!((&connection.instance, &connection.user_id), (&socket.instance, &socket.user_id));
        assert!(before <= connection.since && connection.since <= after);
    }
    assert_eq!(ids(&of_user(&stores, "ann").await), [opened[0].id, opened[2].id]);

    let page = stores.connections.list(None, &PageRequest { after: None, limit: 2 }).await.unwrap();
    let rest = PageRequest { after: page.next_cursor, limit: 2 };
    assert_eq!(ids(&stores.connections.list(None, &rest).await.unwrap().items), [opened[2].id]);

    let gone = [opened[0].id, ConnectionId::new(), opened[1].id];
    stores.connections.disconnect(&gone).await.unwrap();
    stores.connections.disconnect(&gone).await.unwrap();
    assert_eq!(ids(&stores.connections.list(None, &ALL).await.unwrap().items), [opened[2].id]);
}

pub(crate) async fn one_batch_admits_no_more_than_the_limit(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = live_replica(&stores, "one").await;
    let wanted: Vec<_> = ["ann", "bob", "ann", "ann", "bob"].map(|name| socket(&instance, name)).into();
    let outcomes = stores.connections.connect(&wanted, 2).await.unwrap();
    let admitted: Vec<_> = outcomes.iter().map(|outcome| *outcome == ConnectOutcome::Connected).collect();
    assert_eq!(admitted, [true, true, true, false, true]);
    let again = stores.connections.connect(&[socket(&instance, "ann")], 2).await.unwrap();
    assert_eq!(again, [ConnectOutcome::TooMany]);
    stores.connections.disconnect(&[wanted[0].id]).await.unwrap();
    let again = stores.connections.connect(&[socket(&instance, "ann")], 2).await.unwrap();
    assert_eq!(again, [ConnectOutcome::Connected]);
    assert_eq!(stores.connections.connect(&[], 2).await.unwrap(), []);
}

pub(crate) async fn replicas_together_admit_no_more_than_the_limit(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let mut instances = Vec::new();
    for name in ["a", "b", "c", "d"] {
        instances.push(live_replica(&stores[0], name).await);
    }
    // Batches that name the users in opposite order must not block each other for ever.
    let outcomes = contend(&stores, 16, |stores, n| {
        let mut batch = vec![socket(&instances[n % 4], "ann"), socket(&instances[n % 4], "bob")];
        if n % 2 == 0 {
            batch.reverse();
        }
        async move {
            // On a slow machine the wait for the others may be given up; then nothing was changed.
            let outcomes = eventually(async || match stores.connections.connect(&batch, 5).await {
                Err(error) if !error.is_transient() => panic!("{error:?}"),
                outcomes => outcomes,
            });
            let outcomes = outcomes.await;
            batch.into_iter().zip(outcomes).collect::<Vec<_>>()
        }
    })
    .await;
    for name in ["ann", "bob"] {
        let mut admitted: Vec<_> = outcomes
            .iter()
            .flatten()
            .filter(|(socket, outcome)| socket.user_id == user(name) && *outcome == ConnectOutcome::Connected)
            .map(|(socket, _)| socket.id)
            .collect();
        admitted.sort();
        assert_eq!(admitted.len(), 5);
        assert_eq!(ids(&of_user(&stores[0], name).await), admitted);
    }
}

pub(crate) async fn sockets_of_a_dead_replica_do_not_count(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let lost = leased_replica(&stores, "lost", SHORT).await;
    let live = live_replica(&stores, "live").await;
    let left = socket(&lost, "ann");
    // The lease may be over before the row is there; it does not count in either case.
    stores.connections.connect(std::slice::from_ref(&left), 1).await.unwrap();
    until(async || of_user(&stores, "ann").await, Vec::is_empty).await;
    assert!(!stores.connections.kick(&system(), left.id).await.unwrap());
    let kept = connected(&stores, &live, "ann").await;
    let mut reader = Reader::start(&stores).await;
    assert_eq!(stores.instances.sweep().await.unwrap(), std::slice::from_ref(&lost));
    let changes = reader.changes().await;
    assert!(changes.contains(&(SignalKind::ConnectionsChanged, "ann".to_owned())), "{changes:?}");
    assert_eq!(ids(&of_user(&stores, "ann").await), [kept.id]);
    let late = stores.connections.connect(&[socket(&lost, "ann")], 9).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "no socket without its replica: {late:?}");
}

pub(crate) async fn a_replica_that_leaves_takes_its_sockets_along(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let leaving = live_replica(&stores, "leaving").await;
    let staying = live_replica(&stores, "staying").await;
    connected(&stores, &leaving, "ann").await;
    let kept = connected(&stores, &staying, "bob").await;
    let mut reader = Reader::start(&stores).await;
    stores.instances.deregister(&leaving).await.unwrap();
    let told = (SignalKind::ConnectionsChanged, "ann".to_owned());
    assert!(reader.changes().await.contains(&told));
    assert_eq!(ids(&stores.connections.list(None, &ALL).await.unwrap().items), [kept.id]);
}

pub(crate) async fn comings_and_goings_signal_their_users(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = live_replica(&stores, "one").await;
    let mut reader = Reader::start(&stores).await;
    let both = [socket(&instance, "ann"), socket(&instance, "bob")];
    stores.connections.connect(&both, 1).await.unwrap();
    let told = |name: &str| (SignalKind::ConnectionsChanged, name.to_owned());
    assert_eq!(reader.changes().await, [told("ann"), told("bob")]);
    stores.connections.connect(&[socket(&instance, "ann")], 1).await.unwrap();
    assert_eq!(reader.changes().await, [], "a refusal changes nothing");
    stores.connections.disconnect(&[both[1].id]).await.unwrap();
    assert_eq!(reader.changes().await, [told("bob")]);
    stores.connections.disconnect(&[both[1].id]).await.unwrap();
    assert_eq!(reader.changes().await, []);
}

pub(crate) async fn a_kick_is_signalled_and_recorded(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = live_replica(&stores, "one").await;
    let socket = connected(&stores, &instance, "ann").await;
    let mut reader = Reader::start(&stores).await;
    let context = audited("session.kick");
    assert!(stores.connections.kick(&context, socket.id).await.unwrap());
    let told = [(SignalKind::ConnectionsChanged, "ann".to_owned()), (SignalKind::Kicked, socket.id.to_string())];
    assert_eq!(reader.changes().await, told);
    assert_eq!(of_user(&stores, "ann").await, [], "it counts no longer");
    assert!(!stores.connections.kick(&context, socket.id).await.unwrap());
    assert!(!stores.connections.kick(&context, ConnectionId::new()).await.unwrap());
    assert_eq!(reader.changes().await, []);
    assert_eq!(audit_actions(&stores).await, ["session.kick"]);
}

pub(crate) async fn a_replica_finds_out_which_of_its_sockets_were_kicked(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let instance = live_replica(&stores, "one").await;
    let kept = connected(&stores, &instance, "ann").await;
    let kicked = connected(&stores, &instance, "ann").await;
    let both = [kept.id, kicked.id];
    assert_eq!(stores.connections.kicked(&instance, &both).await.unwrap(), []);
    assert!(stores.connections.kick(&system(), kicked.id).await.unwrap());
    assert_eq!(stores.connections.kicked(&instance, &both).await.unwrap(), [kicked.id]);
    assert_eq!(stores.connections.kicked(&instance, &[]).await.unwrap(), []);
    // The sockets of a replica that is off the list are lost with it; nobody has kicked them.
    stores.instances.deregister(&instance).await.unwrap();
    assert_eq!(stores.connections.kicked(&instance, &both).await.unwrap(), []);
}
