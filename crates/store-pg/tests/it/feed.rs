//! The feed beside what PostgreSQL alone can do to it: interleaved commits, crashes and deletions.

use std::collections::HashSet;

use switchboard_model::feed::{FeedCursor, Signal, SignalKind, TickRequest};
use switchboard_store_api::Stores;
use switchboard_store_conformance::Backend as _;
use switchboard_testkit::TestDatabase;
use tokio::task::JoinSet;

use crate::backend::PgBackend;

async fn start(stores: &Stores) -> FeedCursor {
    stores.feed.tick(None, &TickRequest::default()).await.unwrap().cursor
}

/// Inserts a signal, optionally under a savepoint, pauses with the transaction open, and ends it.
async fn write(database: &TestDatabase, key: String, commits: Commit) {
    let mut transaction = database.pool().begin().await.unwrap();
    if key.ends_with('3') {
        sqlx::query("SAVEPOINT inner_part").execute(&mut *transaction).await.unwrap();
    }
    sqlx::query("INSERT INTO switchboard.signals (kind, key) VALUES ('room_changed', $1)")
        .bind(&key)
        .execute(&mut *transaction)
        .await
        .unwrap();
    sqlx::query("SELECT pg_sleep(random() * 0.02)").execute(&mut *transaction).await.unwrap();
    match commits {
        Commit::Yes => transaction.commit().await.unwrap(),
        Commit::No => transaction.rollback().await.unwrap(),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Commit {
    Yes,
    No,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_transaction_makes_the_feed_neither_skip_nor_stall() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let mut cursor = start(&stores).await;
    let idle = backend.idle_transaction().await;
    let mut expected = HashSet::new();
    let mut seen = Vec::new();
    let mut writers = JoinSet::new();
    let database = std::sync::Arc::new(backend.database);
    for n in 0..400 {
        let key = format!("room{n}");
        let commits = if n % 5 == 0 { Commit::No } else { Commit::Yes };
        if commits == Commit::Yes {
            expected.insert(key.clone());
        }
        let database = std::sync::Arc::clone(&database);
        writers.spawn(async move { write(&database, key, commits).await });
    }
    // One more tick after the last writer ends: everything must be there while the idle one still is.
    loop {
        let is_over = writers.is_empty();
        let tick = stores.feed.tick(Some(&cursor), &TickRequest::default()).await.unwrap();
        assert!(!tick.resync);
        seen.extend(tick.signals.into_iter().map(|signal| signal.key));
        cursor = tick.cursor;
        if is_over {
            break;
        }
        while let Some(written) = writers.try_join_next() {
            written.unwrap();
        }
        tokio::task::yield_now().await;
    }
    drop(idle);
    assert_eq!(seen.len(), expected.len(), "each once");
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), expected);
}

#[tokio::test]
async fn a_feed_that_lost_its_life_asks_for_a_resync_once() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let before = start(&stores).await;
    // What a crash of the server does to an unlogged table.
    sqlx::query("TRUNCATE switchboard.feed_life").execute(backend.database.pool()).await.unwrap();
    let tick = stores.feed.tick(Some(&before), &TickRequest::default()).await.unwrap();
    assert!(tick.resync);
    let next = stores.feed.tick(Some(&tick.cursor), &TickRequest::default()).await.unwrap();
    assert!(!next.resync);
    backend.close().await;
}

#[tokio::test]
async fn another_timeline_asks_for_a_resync() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let FeedCursor(text) = start(&stores).await;
    let promoted = FeedCursor(text.replacen("|00000001|", "|00000002|", 1));
    assert_ne!(promoted.0, text);
    assert!(stores.feed.tick(Some(&promoted), &TickRequest::default()).await.unwrap().resync);
    backend.close().await;
}

#[tokio::test]
async fn a_reader_that_missed_a_deletion_is_told_and_others_go_on() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let late = start(&stores).await;
    let signal = Signal { kind: SignalKind::RoomChanged, key: "lobby".to_owned(), pos: 0, body: None };
    stores.feed.emit(&[signal]).await.unwrap();
    assert_eq!(stores.feed.sweep(100).await.unwrap(), 0, "no snapshot is old enough");
    let current = stores.feed.tick(Some(&late), &TickRequest::default()).await.unwrap();
    assert_eq!(current.signals.len(), 1);
    sqlx::query("UPDATE switchboard.feed_snapshots SET at = at - interval '2 minutes'")
        .execute(backend.database.pool())
        .await
        .unwrap();
    assert_eq!(stores.feed.sweep(100).await.unwrap(), 1);
    assert!(stores.feed.tick(Some(&late), &TickRequest::default()).await.unwrap().resync);
    let next = stores.feed.tick(Some(&current.cursor), &TickRequest::default()).await.unwrap();
    assert!(!next.resync, "what was deleted had been read");
    backend.close().await;
}

#[tokio::test]
async fn a_sweep_of_an_empty_feed_writes_nothing() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    assert_eq!(stores.feed.sweep(100).await.unwrap(), 0);
    let snapshots: i64 = sqlx::query_scalar("SELECT count(*) FROM switchboard.feed_snapshots")
        .fetch_one(backend.database.pool())
        .await
        .unwrap();
    assert_eq!(snapshots, 0);
    backend.close().await;
}
