//! The bus without faults: sizes, order, joins beside publishes, and positions that every replica continues.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use switchboard_client::Socket;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::Position;
use switchboard_model::wire::frame::Joined;
use switchboard_model::wire::op::{Since, SinceEnd};
use switchboard_model::wire::rest::PublishRequest;
use switchboard_testkit::{Cluster, ledger, wait_until};
use tokio::time::{Instant, timeout};

use crate::fixtures::{cluster, create_room, event, next_event, next_events, on_every_database, room};

on_every_database! {
    payloads_of_every_size_arrive_in_order_and_byte_for_byte,
    a_drop_before_the_first_event_loses_nothing,
    every_reconnect_goes_on_where_the_last_one_stopped,
    a_burst_that_a_drop_cuts_short_is_continued,
    an_ephemeral_event_of_any_size_arrives_once;
    but not pooled: a_join_beside_a_publish_misses_and_repeats_nothing,
}

/// How often a replica renews its lease.
const RENEW_PERIOD_MS: i64 = 3_000;

/// Returns the last replica, which is another one than the first where there are two.
fn last(cluster: &Cluster) -> usize {
    cluster.size() - 1
}

/// A JSON text of exactly so many bytes, most of them in characters of two bytes.
fn text(bytes: usize) -> JsonText {
    JsonText::parse(format!("\"{}{}\"", "é".repeat((bytes - 2) / 2), "x".repeat(bytes % 2))).unwrap()
}

fn carrying(payload: JsonText) -> PublishRequest {
    PublishRequest { payload, ..event("note", json!(null)) }
}

async fn join(socket: &Socket, since: Since) -> Joined {
    socket.handle().join(&room("lobby"), since).await.unwrap()
}

fn after(joined: &Joined, offset: i64) -> Since {
    Since::Position(Position { epoch: joined.epoch.clone(), offset })
}

async fn payloads_of_every_size_arrive_in_order_and_byte_for_byte(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let mut socket = cluster.socket(last(&cluster), "ann").await;
    join(&socket, Since::default()).await;
    // Around the limit of a notification, up to the limit of a payload, then large and small in turn.
    let limits = (7_900..=8_100).step_by(25).chain([61_440]);
    let turns = (0..40).map(|n| if n % 2 == 0 { 50_000 } else { 100 });
    let payloads: Vec<JsonText> = limits.chain(turns).map(text).collect();
    for payload in &payloads {
        cluster.client(0).publish(&room("lobby"), &carrying(payload.clone())).await.unwrap();
    }
    let events = next_events(&mut socket, payloads.len()).await;
    ledger::positions(&events, 1..=i64::try_from(payloads.len()).unwrap()).unwrap();
    assert!(events.iter().map(|event| &event.payload).eq(&payloads));
}

async fn a_join_beside_a_publish_misses_and_repeats_nothing(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let mut socket = cluster.socket(last(&cluster), "ann").await;
    let handle = socket.handle();
    for round in 0..150 {
        let lobby = room("lobby");
        let (note, client) = (event("note", json!(round)), cluster.client(0));
        let publish = async { client.publish(&lobby, &note).await.unwrap().position.unwrap().offset };
        let (joined, published) = tokio::join!(handle.join(&lobby, Since::default()), publish);
        let joined = joined.unwrap().offset;
        assert!([published, published - 1].contains(&joined), "{published} {joined}");
        if joined < published {
            assert_eq!(next_event(&mut socket).await.offset, Some(published));
        }
        // Whatever the join has answered, the next event follows and no other.
        client.publish(&lobby, &note).await.unwrap();
        assert_eq!(next_event(&mut socket).await.offset, Some(published + 1));
        handle.leave(&lobby).await.unwrap();
    }
}

async fn a_drop_before_the_first_event_loses_nothing(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    cluster.client(0).publish(&room("lobby"), &event("note", json!(0))).await.unwrap();
    let socket = cluster.socket(0, "ann").await;
    let joined = join(&socket, Since::default()).await;
    drop(socket);
    for n in 1..=5 {
        cluster.client(0).publish(&room("lobby"), &event("note", json!(n))).await.unwrap();
    }
    let mut socket = cluster.socket(last(&cluster), "ann").await;
    let again = join(&socket, after(&joined, joined.offset)).await;
    assert_eq!((again.recovered, again.offset, again.replayed), (true, 1, 5));
    ledger::positions(&next_events(&mut socket, 5).await, 2..=6).unwrap();
}

async fn every_reconnect_goes_on_where_the_last_one_stopped(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let mut events = Vec::new();
    let mut since = Since::End(SinceEnd::Earliest);
    for round in 0..20 {
        let mut socket = cluster.socket(round % cluster.size(), "ann").await;
        let joined = join(&socket, since).await;
        assert!(joined.recovered, "{joined:?}");
        for n in 0..7 {
            let client = cluster.client(n % cluster.size());
            client.publish(&room("lobby"), &event("note", json!(n))).await.unwrap();
        }
        // Some were published that this socket does not read.
        let read = if round == 19 { 140 - events.len() } else { 5 };
        events.extend(next_events(&mut socket, read).await);
        since = Since::Position(events.last().unwrap().position().unwrap());
    }
    ledger::positions(&events, 1..=140).unwrap();
}

async fn a_burst_that_a_drop_cuts_short_is_continued(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let mut socket = cluster.socket(last(&cluster), "ann").await;
    let joined = join(&socket, Since::default()).await;
    let events = (0..500).map(|n| event("note", json!(n))).collect();
    cluster.client(0).publish_batch(&room("lobby"), events).await.unwrap();
    let mut read = next_events(&mut socket, 10).await;
    drop(socket);
    let mut socket = cluster.socket(0, "ann").await;
    let again = join(&socket, after(&joined, 10)).await;
    assert_eq!((again.recovered, again.replayed), (true, 490));
    read.extend(next_events(&mut socket, 490).await);
    ledger::positions(&read, 1..=500).unwrap();
}

async fn an_ephemeral_event_of_any_size_arrives_once(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let mut sockets = Vec::new();
    for index in [0, last(&cluster)] {
        let socket = cluster.socket(index, "ann").await;
        join(&socket, Since::default()).await;
        sockets.push(socket);
    }
    // Right after its boot a replica need not know of the other yet, and what it sends reaches its own sockets only.
    let [near, far] = &mut sockets[..] else { panic!("two sockets") };
    let probe = PublishRequest { ephemeral: true, ..event("probe", json!(null)) };
    let mut is_heard = false;
    while !is_heard {
        cluster.client(0).publish(&room("lobby"), &probe).await.unwrap();
        is_heard = timeout(Duration::from_millis(100), next_event(far)).await.is_ok();
    }
    cluster.client(0).publish(&room("lobby"), &event("start", json!(null))).await.unwrap();
    for socket in [near, far] {
        while next_event(socket).await.offset != Some(1) {}
    }
    let sizes = [100, 7_000, 8_000, 60_000, 101];
    for size in sizes {
        let event = PublishRequest { ephemeral: true, ..carrying(text(size)) };
        // It reaches who is connected at most once, so each is seen before the next one is sent.
        cluster.client(0).publish(&room("lobby"), &event).await.unwrap();
        for socket in &mut sockets {
            let arrived = next_event(socket).await;
            assert_eq!((arrived.offset, &arrived.payload), (None, &text(size)));
        }
    }
    // The next thing that arrives is the next event, and no second copy of an earlier one.
    cluster.client(0).publish(&room("lobby"), &event("last", json!(null))).await.unwrap();
    for socket in &mut sockets {
        assert_eq!(next_event(socket).await.offset, Some(2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_the_transaction_of_an_application_arrives_within_a_second_or_two() {
    let cluster = cluster(2).await;
    create_room(cluster.any(), "lobby").await;
    let mut sockets = [cluster.socket(0, "ann").await, cluster.socket(1, "bob").await];
    for socket in &sockets {
        join(socket, Since::default()).await;
    }
    let called = Instant::now();
    cluster.database().execute(r#"SELECT switchboard.publish('lobby', 'note', '{"to": "\u0000 \ud800"}')"#).await;
    for socket in &mut sockets {
        let arrived = next_event(socket).await;
        assert_eq!((arrived.offset, arrived.payload.as_str()), (Some(1), r#"{"to": "\u0000 \ud800"}"#));
    }
    assert!(called.elapsed() < Duration::from_secs(10), "it took {:?}", called.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guide_to_publishing_in_a_transaction_works_as_it_is_written() {
    let guide = include_str!("../../../../docs/guides/sql-publish.md");
    let mut blocks = guide.split("```sql\n").skip(1).map(|block| block.split("```").next().unwrap());
    // Roles belong to a server, not to a database.
    let cluster = cluster(1).own_server().await;
    create_room(cluster.any(), "orders").await;
    let database = cluster.database();
    database
        .script("CREATE TABLE orders (id int, state text); INSERT INTO orders VALUES (17, 'new'); CREATE ROLE app")
        .await;
    database.script(blocks.next().unwrap()).await;
    database.script(blocks.next().unwrap()).await;
    database.execute("UPDATE orders SET state = 'sent'").await;
    database.script(blocks.next().unwrap()).await;
    database
        .script("BEGIN; SET LOCAL ROLE app; SELECT switchboard.publish('orders', 'order.seen', '17'); COMMIT")
        .await;
    database.script("DROP OWNED BY app; DROP ROLE app").await;
    let events = wait_until("the events of the guide", async || {
        let events = cluster.any().history(&room("orders"), 0, 10).await.unwrap().events;
        if events.len() == 3 { Ok(events) } else { Err(events) }
    })
    .await;
    let seen: Vec<_> = events.iter().map(|event| (event.event.as_str(), event.payload.as_str())).collect();
    assert_eq!(
        seen,
        [
            ("order.paid", r#"{"order" : 17}"#),
            ("order.changed", r#"{"id": 17, "state": "sent"}"#),
            ("order.seen", "17")
        ]
    );
    assert_eq!(events[0].msg_id, "order-17-paid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_that_somebody_holds_delays_no_other_and_keeps_its_order() {
    let cluster = cluster(1).await;
    for name in ["lobby", "hall"] {
        create_room(cluster.any(), name).await;
    }
    let holder = cluster.database().hold("SELECT FROM switchboard.rooms WHERE name = 'lobby' FOR UPDATE").await;
    let client = cluster.client(0);
    let (lobby, hall) = (room("lobby"), room("hall"));
    let held = async {
        let mut offsets = Vec::new();
        let publishes = (0..20).map(|n| {
            let lobby = &lobby;
            async move { client.publish(lobby, &event("note", json!(n))).await.unwrap().position.unwrap().offset }
        });
        offsets.extend(join_all(publishes).await);
        offsets.sort_unstable();
        assert!(offsets.into_iter().eq(1..=20));
    };
    let free = async {
        for n in 0..20 {
            client.publish(&hall, &event("note", json!(n))).await.unwrap();
        }
        assert_eq!(client.history(&lobby, 0, 1).await.unwrap().top, 0, "it is held still");
        holder.commit().await;
    };
    tokio::join!(held, free);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_joined_rooms_take_no_connection() {
    let cluster = cluster(1).await;
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()";
    let mut sockets = Vec::new();
    for n in 0..50 {
        sockets.push(cluster.socket(0, &format!("user{n}")).await);
    }
    for (n, socket) in sockets.iter().enumerate() {
        let joins = (0..200).map(|m| {
            let pair = room(&format!("dm:user{n}:with{m}"));
            let handle = socket.handle();
            async move { handle.join(&pair, Since::default()).await.unwrap() }
        });
        join_all(joins).await;
    }
    // The pool, what lies beside it, and those of the test.
    let most = 10 + 2 + 2;
    let open = cluster.database().count(connections).await;
    assert!(open <= most, "{open} connections");
    let pair = room("dm:user7:with150");
    cluster.client(0).publish(&pair, &event("note", json!(1))).await.unwrap();
    assert_eq!(next_event(&mut sockets[7]).await.room, pair);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_idle_replicas_write_their_leases_and_nothing_else() {
    let cluster = cluster(2).own_server().await;
    let database = cluster.database();
    // On this server nobody else writes then.
    database.execute("ALTER SYSTEM SET autovacuum = off").await;
    database.execute("SELECT pg_reload_conf()").await;
    // The next transaction id: only a transaction that writes gets one.
    let next_id = async || database.count("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").await;
    // The sum of when both leases end; each renewal moves one of them on by at least the period of renewals.
    let leases_ms =
        async || database.count("SELECT sum(extract(epoch FROM expires_at) * 1000)::bigint FROM instances").await;
    let (leases, id) = (leases_ms().await, next_id().await);
    let renewals = async || (leases_ms().await - leases) / RENEW_PERIOD_MS;
    wait_until("some renewals of both", async || {
        let renewals = renewals().await;
        if renewals >= 8 { Ok(()) } else { Err(renewals) }
    })
    .await;
    let written = next_id().await - id;
    let renewals = renewals().await;
    assert!((1..=renewals).contains(&written), "{written} transactions have written, of which {renewals} may renew");
}
