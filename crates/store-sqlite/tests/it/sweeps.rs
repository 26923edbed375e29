//! Sweeps of more rows than one command of the writer deletes, and of rows that no trait can age.

use sqlx::SqliteConnection;
use switchboard_model::identity::{Actor, RoomName};
use switchboard_model::ids::RoomId;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{MessageId, NewEvent, NewRoom, Retention, RoomKind};
use switchboard_model::span::Span;
use switchboard_store_api::{AppendOutcome, Stores, WriteContext};
use switchboard_store_conformance::Backend as _;

use crate::SqliteBackend;

/// More than two commands delete.
const MANY: usize = 4_500;

fn context() -> WriteContext {
    WriteContext::system("tests")
}

fn lobby() -> RoomName {
    "lobby".parse().unwrap()
}

fn event(id: Option<&str>) -> NewEvent {
    NewEvent {
        room: lobby(),
        event: "note".parse().unwrap(),
        payload: JsonText::parse("1").unwrap(),
        msg_id: MessageId::given_or_new(id.map(|id| id.parse().unwrap())),
        sender: Actor::System("tests"),
    }
}

async fn fill_lobby(stores: &Stores, retention: Retention) {
    let room = NewRoom { id: RoomId::new(), name: lobby(), kind: RoomKind::Public, retention };
    stores.rooms.create(&context(), &room).await.unwrap();
    stores.rooms.append(&(0..MANY).map(|_| event(None)).collect::<Vec<_>>()).await.unwrap();
}

async fn events_left(connection: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("SELECT COUNT(*) FROM room_events").fetch_one(connection).await.unwrap()
}

/// Sweeps as the scheduler does, and returns what was deleted.
async fn sweep_all(stores: &Stores) -> u64 {
    let mut total = 0;
    loop {
        match stores.rooms.sweep(10).await.unwrap() {
            0 => return total,
            deleted => total += deleted,
        }
    }
}

#[tokio::test]
async fn all_expired_message_ids_are_forgotten_and_counted() {
    let backend = SqliteBackend::create().await;
    let stores = backend.stores().await;
    fill_lobby(&stores, Retention::default()).await;
    stores.rooms.append(&[event(Some("live"))]).await.unwrap();
    let mut connection = backend.raw().await;
    sqlx::query(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 12345)
         INSERT INTO room_dedupe (room_id, sender, msg_id, pos, expires_at) SELECT randomblob(16), 's', n, 1, n FROM numbers",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    assert_eq!(sweep_all(&stores).await, 12_345);
    let left: Vec<String> =
        sqlx::query_scalar("SELECT msg_id FROM room_dedupe").fetch_all(&mut connection).await.unwrap();
    assert_eq!(left, ["live"]);
    let repeated = stores.rooms.append(&[event(Some("live"))]).await.unwrap();
    assert!(matches!(repeated[..], [AppendOutcome::Duplicate(_)]));
    backend.close().await;
}

#[tokio::test]
async fn a_room_is_trimmed_over_as_many_commands_as_it_takes() {
    let backend = SqliteBackend::create().await;
    let stores = backend.stores().await;
    fill_lobby(&stores, Retention { max_count: 10, ..Retention::default() }).await;
    assert_eq!(sweep_all(&stores).await, MANY as u64 - 10);
    let page = stores.rooms.history(&lobby(), 0, 100).await.unwrap().unwrap();
    assert_eq!((page.first_kept, page.top, page.events.len()), (MANY as i64 - 9, MANY as i64, 10));
    assert_eq!(events_left(&mut backend.raw().await).await, 10);
    backend.close().await;
}

#[tokio::test]
async fn a_deleted_room_takes_all_its_events_with_it() {
    let backend = SqliteBackend::create().await;
    let stores = backend.stores().await;
    fill_lobby(&stores, Retention::default()).await;
    assert!(stores.rooms.delete(&context(), &lobby()).await.unwrap());
    assert_eq!(events_left(&mut backend.raw().await).await, 0);
    backend.close().await;
}

#[tokio::test]
async fn events_of_a_room_whose_deletion_was_cut_short_are_swept() {
    let backend = SqliteBackend::create().await;
    let stores = backend.stores().await;
    fill_lobby(&stores, Retention::default()).await;
    let mut connection = backend.raw().await;
    sqlx::query("DELETE FROM rooms").execute(&mut connection).await.unwrap();
    fill_lobby(&stores, Retention::default()).await;
    assert_eq!(sweep_all(&stores).await, MANY as u64);
    assert_eq!(events_left(&mut connection).await, MANY as i64, "the room that is there keeps its own");
    backend.close().await;
}

#[tokio::test]
async fn leases_are_forgotten_a_minute_after_they_are_over() {
    let backend = SqliteBackend::create().await;
    let stores = backend.stores().await;
    let mut connection = backend.raw().await;
    sqlx::query(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 7),
         clock (now) AS (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER))
         INSERT INTO leases (key, holder, fence, expires_at)
         SELECT 'old' || n, 'h', n, now - 61000000 FROM numbers, clock
         UNION ALL SELECT 'rests', 'h', 8, now - 10000000 FROM clock
         UNION ALL SELECT 'held', 'h', 9, now + 3600000000 FROM clock",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    for deleted in [5, 2, 0] {
        assert_eq!(stores.leases.sweep(5).await.unwrap(), deleted);
    }
    let left: Vec<String> =
        sqlx::query_scalar("SELECT key FROM leases ORDER BY key").fetch_all(&mut connection).await.unwrap();
    assert_eq!(left, ["held", "rests"]);
    backend.close().await;
}

#[tokio::test]
async fn a_sweep_that_finds_nothing_writes_nothing() {
    let backend = SqliteBackend::create().await;
    let stores = backend.stores().await;
    fill_lobby(&stores, Retention::default()).await;
    let mut connection = backend.raw().await;
    let version = async |connection: &mut SqliteConnection| -> i64 {
        sqlx::query_scalar("PRAGMA data_version").fetch_one(connection).await.unwrap()
    };
    let before = version(&mut connection).await;
    let (age, limit) = (Span::from_secs(3_600), 10);
    assert_eq!(stores.runs.sweep(age, limit).await.unwrap(), 0);
    assert_eq!(stores.outbox.sweep(age, limit).await.unwrap(), 0);
    assert_eq!(stores.audit.sweep(age, limit).await.unwrap(), 0);
    assert_eq!(stores.tickets.sweep(limit).await.unwrap(), 0);
    assert_eq!(stores.once.sweep(limit).await.unwrap(), 0);
    assert_eq!(stores.leases.sweep(limit).await.unwrap(), 0);
    assert_eq!(stores.state.sweep(limit).await.unwrap(), 0);
    assert_eq!(stores.auth_sessions.sweep(limit).await.unwrap(), 0);
    assert_eq!(stores.webhooks.sweep(limit).await.unwrap(), 0);
    assert_eq!(stores.limits.sweep(limit).await.unwrap(), 0);
    assert_eq!(stores.rooms.sweep(limit).await.unwrap(), 0);
    assert_eq!(stores.feed.sweep(limit).await.unwrap(), 0);
    assert_eq!(stores.tasks.repair_unarmed(limit).await.unwrap().found, 0);
    assert_eq!(stores.tasks.sweep(age, limit).await.unwrap(), 0);
    assert!(stores.instances.sweep().await.unwrap().is_empty());
    assert_eq!(version(&mut connection).await, before, "the file is as it was");
    backend.close().await;
}
