//! What hints carry between replicas, and what they leave to the feed.

use std::time::Duration;

use switchboard_model::feed::{ListenerMode, Signal, SignalKind, TickRequest};
use switchboard_model::ids::InstanceId;
use switchboard_model::instance::NewInstance;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::Retention;
use switchboard_model::span::Span;
use switchboard_store_api::{AppendOutcome, HintReceiver, News, NewsReceiver, Stores};
use switchboard_store_conformance::Backend as _;

use crate::backend::PgBackend;
use crate::busy_rooms::{create, event};

const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until hints arrive, and begins to collect news.
async fn listening(stores: &Stores) -> (HintReceiver, NewsReceiver) {
    let mut hints = stores.feed.hints();
    let wait = async {
        while hints.mode() != ListenerMode::Listening {
            hints.changed().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
    let news = hints.news();
    (hints, news)
}

async fn next(news: &mut NewsReceiver) -> News {
    (*tokio::time::timeout(PATIENCE, news.next()).await.unwrap()).clone()
}

fn text(bytes: usize) -> JsonText {
    // One byte to spare for an odd size.
    JsonText::parse(format!("\"{}{}\"", "é".repeat((bytes - 2) / 2), "x".repeat(bytes % 2))).unwrap()
}

fn ephemeral(payload: JsonText) -> Signal {
    Signal { kind: SignalKind::Ephemeral, key: "lobby".to_owned(), pos: 7, body: Some(payload) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_events_come_with_the_hint_byte_for_byte_and_large_ones_are_left_to_the_feed() {
    let backend = PgBackend::create().await;
    let [writer, reader] = [backend.stores().await, backend.stores().await];
    create(&writer, "lobby", Retention::default()).await;
    let (mut hints, mut news) = listening(&reader).await;
    let odd = JsonText::parse(r#"{"a" : "\u0000 \ud800 é", "a":1.0e+400}"#).unwrap();
    let sizes = [100, 7_000, 7_900, 7_950, 7_999, 8_000, 8_001, 8_100, 60_000];
    for payload in std::iter::once(odd).chain(sizes.map(text)) {
        let appended = writer.rooms.append(&[event("lobby", payload.clone())]).await.unwrap();
        let [AppendOutcome::Appended { position, event }] = &appended[..] else { panic!("{appended:?}") };
        if payload.as_str().len() <= 7_000 {
            let (room, epoch) = ("lobby".parse().unwrap(), position.epoch.clone());
            assert_eq!(next(&mut news).await, News::Appended { room, epoch, event: event.clone() });
        } else {
            tokio::time::timeout(PATIENCE, hints.changed()).await.unwrap();
            let tick = reader.feed.tick(None, &TickRequest::default()).await.unwrap();
            assert!(tick.resync);
        }
    }
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ephemeral_events_leave_no_row_unless_they_are_too_large_or_nobody_listens() {
    let backend = PgBackend::create().await;
    let [writer, reader] = [backend.stores().await, backend.stores().await];
    let (_, mut news) = listening(&reader).await;
    listening(&writer).await;
    let rows = async || backend.database.count("SELECT count(*) FROM switchboard.signals").await;
    let mut cursor = reader.feed.tick(None, &TickRequest::default()).await.unwrap().cursor;
    for size in [100, 7_000] {
        writer.feed.broadcast(&[ephemeral(text(size))]).await.unwrap();
        assert_eq!(next(&mut news).await, News::Signal(ephemeral(text(size))));
    }
    assert_eq!(rows().await, 0);
    for size in [7_900, 8_000, 60_000] {
        writer.feed.broadcast(&[ephemeral(text(size))]).await.unwrap();
        let tick = reader.feed.tick(Some(&cursor), &TickRequest::default()).await.unwrap();
        assert_eq!(tick.signals, [ephemeral(text(size))]);
        cursor = tick.cursor;
    }
    let silent =
        switchboard_store_pg::PgOptions { notify: switchboard_store_pg::HintTransport::Off, ..backend.options() };
    backend.open(&silent).await.feed.broadcast(&[ephemeral(text(100))]).await.unwrap();
    let tick = reader.feed.tick(Some(&cursor), &TickRequest::default()).await.unwrap();
    assert_eq!(tick.signals, [ephemeral(text(100))]);
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_alone_sends_no_hints_and_begins_to_once_another_is_there() {
    let backend = PgBackend::create().await;
    let [writer, reader] = [backend.stores().await, backend.stores().await];
    create(&writer, "lobby", Retention::default()).await;
    let (_, mut news) = listening(&reader).await;
    listening(&writer).await;
    let mut payloads = Vec::new();
    for (n, name) in ["a", "b"].into_iter().enumerate() {
        let instance = NewInstance {
            id: InstanceId::boot(name),
            name: name.to_owned(),
            version: "1".to_owned(),
            schema_version: 1,
            roles: Vec::new(),
            pools: Vec::new(),
            pool_size: 1,
            key_check: String::new(),
        };
        writer.instances.register(&instance, Span::from_secs(60)).await.unwrap();
        writer.feed.tick(None, &TickRequest::default()).await.unwrap();
        let payload = JsonText::parse(n.to_string()).unwrap();
        writer.rooms.append(&[event("lobby", payload.clone())]).await.unwrap();
        writer.feed.broadcast(&[ephemeral(payload.clone())]).await.unwrap();
        payloads.push(payload);
    }
    let News::Appended { event, .. } = next(&mut news).await else { panic!("an event expected") };
    assert_eq!((event.offset, &event.payload), (2, &payloads[1]), "nobody was told of the first");
    assert_eq!(next(&mut news).await, News::Signal(ephemeral(payloads[1].clone())));
    assert_eq!(backend.database.count("SELECT count(*) FROM switchboard.signals WHERE body IS NOT NULL").await, 0);
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_comes_in_order_and_fills_no_queue() {
    let backend = PgBackend::create().await;
    let [writer, reader] = [backend.stores().await, backend.stores().await];
    create(&writer, "lobby", Retention::default()).await;
    let (_, mut news) = listening(&reader).await;
    let burst: Vec<_> = (0..500).map(|n| event("lobby", JsonText::parse(n.to_string()).unwrap())).collect();
    writer.rooms.append(&burst).await.unwrap();
    for offset in 1..=500 {
        let News::Appended { event, .. } = next(&mut news).await else { panic!("an event expected") };
        assert_eq!(event.offset, offset);
    }
    let usage: f64 =
        sqlx::query_scalar("SELECT pg_notification_queue_usage()").fetch_one(backend.database.pool()).await.unwrap();
    assert!(usage < 0.01, "{usage}");
    backend.close().await;
}
