//! Hints between replicas: lost listeners, silent transports, and the facts that a check asks for.

use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use switchboard_model::feed::{FeedCursor, ListenerMode, Signal, SignalKind, TickRequest};
use switchboard_store_api::{HintReceiver, Stores};
use switchboard_store_conformance::Backend as _;
use switchboard_store_pg::{HintTransport, PgOptions, diagnose, schema_version};

use crate::backend::PgBackend;

/// Waits for hints until the mode is as wanted; every change of the mode is a hint.
async fn mode(hints: &mut HintReceiver, wanted: ListenerMode) {
    let patience = Duration::from_secs(30);
    tokio::time::timeout(patience, async {
        while hints.mode() != wanted {
            hints.changed().await;
        }
    })
    .await
    .unwrap();
}

async fn emit(stores: &Stores, key: &str) {
    let signal = Signal { kind: SignalKind::RoomChanged, key: key.to_owned(), pos: 0, body: None };
    stores.feed.emit(&[signal]).await.unwrap();
}

/// Lets sessions of a database begin, or none but those that exist; asked for from another database.
async fn allow_connections(admin: &mut PgConnection, database: &str, allowed: bool) {
    let statement = format!("ALTER DATABASE {database} ALLOW_CONNECTIONS {allowed}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(admin).await.unwrap();
}

/// Ticks whenever a hint comes, until the signal is there.
async fn follow(stores: &Stores, hints: &mut HintReceiver, cursor: &mut FeedCursor, key: &str) {
    loop {
        let tick = stores.feed.tick(Some(cursor), &TickRequest::default()).await.unwrap();
        *cursor = tick.cursor;
        if tick.signals.iter().any(|signal| signal.key == key) {
            return;
        }
        tokio::time::timeout(Duration::from_secs(30), hints.changed()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_of_one_replica_reaches_the_others() {
    let backend = PgBackend::create().await;
    let [writer, reader] = [backend.stores().await, backend.stores().await];
    let mut hints = reader.feed.hints();
    mode(&mut hints, ListenerMode::Listening).await;
    let mut cursor = reader.feed.tick(None, &TickRequest::default()).await.unwrap().cursor;
    for n in 0..20 {
        let key = format!("room{n}");
        emit(&writer, &key).await;
        follow(&reader, &mut hints, &mut cursor, &key).await;
    }
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_listener_is_seen_and_made_again_and_nothing_is_lost() {
    let backend = PgBackend::create().await;
    let [writer, reader] = [backend.stores().await, backend.stores().await];
    let mut hints = reader.feed.hints();
    mode(&mut hints, ListenerMode::Listening).await;
    let mut cursor = reader.feed.tick(None, &TickRequest::default()).await.unwrap().cursor;
    let options: PgConnectOptions = backend.database.url().parse().unwrap();
    let database = options.get_database().unwrap().to_owned();
    let mut admin = options.database("postgres").connect().await.unwrap();
    for n in 0..3 {
        // Nobody listens again before this test has seen that nobody does.
        allow_connections(&mut admin, &database, false).await;
        let killed: i64 = sqlx::query_scalar(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = $1 AND application_name = 'switchboard listener'",
        )
        .bind(&database)
        .fetch_one(&mut admin)
        .await
        .unwrap();
        assert!(killed >= 1);
        mode(&mut hints, ListenerMode::Polling).await;
        allow_connections(&mut admin, &database, true).await;
        let key = format!("room{n}");
        emit(&writer, &key).await;
        mode(&mut hints, ListenerMode::Listening).await;
        // Whatever was notified in between, the return to listening is a hint to tick.
        follow(&reader, &mut hints, &mut cursor, &key).await;
    }
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_notify_the_feed_is_polled() {
    let backend = PgBackend::create().await;
    let silent = || PgOptions { notify: HintTransport::Off, ..backend.options() };
    let [writer, reader] = [backend.open(&silent()).await, backend.open(&silent()).await];
    let mut hints = reader.feed.hints();
    assert_eq!(hints.mode(), ListenerMode::Polling);
    let cursor = reader.feed.tick(None, &TickRequest::default()).await.unwrap().cursor;
    emit(&writer, "lobby").await;
    let tick = reader.feed.tick(Some(&cursor), &TickRequest::default()).await.unwrap();
    assert_eq!(tick.signals.len(), 1);
    // A replica needs no transport to hear itself.
    emit(&reader, "hall").await;
    hints.changed().await;

    let listening: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'switchboard listener'",
    )
    .fetch_one(backend.database.pool())
    .await
    .unwrap();
    assert_eq!(listening, 0);
    backend.close().await;
}

#[tokio::test]
async fn a_diagnosis_tells_the_facts() {
    let backend = PgBackend::create().await;
    let facts = diagnose(&backend.options()).await.unwrap();
    assert!(facts.listen_works);
    assert_eq!(facts.schema_version, schema_version());
    assert!(facts.max_connections > facts.superuser_reserved_connections);
    assert!(!facts.server_version.is_empty());
    let now = backend.stores().await.feed.tick(None, &TickRequest::default()).await.unwrap().now;
    assert!(facts.now <= now);
    backend.close().await;
}
