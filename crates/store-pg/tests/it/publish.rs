//! Events in the transactions of applications, and how they are relayed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::{PgPool, Postgres, Transaction};
use switchboard_model::identity::{Actor, RoomName};
use switchboard_model::ids::RoomId;
use switchboard_model::json_text::JsonText;
use switchboard_model::page::PageRequest;
use switchboard_model::room::{MessageId, NewEvent, NewRoom, Retention, RoomKind, StoredEvent};
use switchboard_store_api::{AppendOutcome, RelayReport, Stores, WriteContext};
use switchboard_store_conformance::Backend as _;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::backend::PgBackend;
use crate::waits::until_blocked;

fn room(name: &str) -> RoomName {
    name.parse().unwrap()
}

async fn create(stores: &Stores, name: &str) {
    let new = NewRoom { id: RoomId::new(), name: room(name), kind: RoomKind::Public, retention: Retention::default() };
    stores.rooms.create(&WriteContext::system("test"), &new).await.unwrap();
}

/// Calls the function outside any other transaction.
async fn call(pool: &PgPool, room: &str, event: &str, payload: &str, id: Option<&str>) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("SELECT switchboard.publish($1, $2, $3::text::json, $4)")
        .bind(room)
        .bind(event)
        .bind(payload)
        .bind(id)
        .fetch_one(pool)
        .await
}

async fn publish(transaction: &mut Transaction<'_, Postgres>, room: &str, payload: &str) -> String {
    sqlx::query_scalar("SELECT switchboard.publish($1, 'note', $2::text::json)")
        .bind(room)
        .bind(payload)
        .fetch_one(&mut **transaction)
        .await
        .unwrap()
}

async fn history(stores: &Stores, name: &str) -> Vec<StoredEvent> {
    let mut events: Vec<StoredEvent> = Vec::new();
    loop {
        let after = i64::try_from(events.len()).unwrap();
        let Some(page) = stores.rooms.history(&room(name), after, 500).await.unwrap() else { return events };
        if page.events.is_empty() {
            return events;
        }
        events.extend(page.events);
    }
}

async fn payloads(stores: &Stores, name: &str) -> Vec<String> {
    history(stores, name).await.iter().map(|event| event.payload.as_str().to_owned()).collect()
}

async fn relay(stores: &Stores) -> RelayReport {
    stores.outbox.relay(100).await.unwrap()
}

fn report(applied: u64, failed: u64) -> RelayReport {
    RelayReport { applied, failed, more: false }
}

#[tokio::test]
async fn a_rollback_publishes_nothing_and_a_commit_everything_in_order() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    create(&stores, "lobby").await;
    let mut transaction = backend.database.pool().begin().await.unwrap();
    publish(&mut transaction, "lobby", "1").await;
    assert_eq!(relay(&stores).await, report(0, 0), "it is not committed");
    transaction.rollback().await.unwrap();
    assert_eq!(relay(&stores).await, report(0, 0));

    let mut transaction = backend.database.pool().begin().await.unwrap();
    let given = [r#"{"a" : "\u0000 \ud800 é", "a":1.0e+400}"#, "[ ]", "null"];
    let mut ids = Vec::new();
    for payload in given {
        ids.push(publish(&mut transaction, "lobby", payload).await);
        // Rooms of users come into being with their first event.
        publish(&mut transaction, "user:ann", payload).await;
    }
    transaction.commit().await.unwrap();
    let signals: i64 = sqlx::query_scalar("SELECT count(*) FROM switchboard.signals WHERE kind = 'outbox_filled'")
        .fetch_one(backend.database.pool())
        .await
        .unwrap();
    assert_eq!(signals, 1, "one for the transaction");
    assert_eq!(relay(&stores).await, report(6, 0));
    assert_eq!(relay(&stores).await, report(0, 0));
    let events = history(&stores, "lobby").await;
    assert_eq!(events.iter().map(|event| event.payload.as_str()).collect::<Vec<_>>(), given);
    assert_eq!(events.iter().map(|event| event.msg_id.clone()).collect::<Vec<_>>(), ids);
    assert!(events.iter().all(|event| event.sender == "system:sql" && event.event.as_str() == "note"));
    assert_eq!(payloads(&stores, "user:ann").await, given);
    backend.close().await;
}

#[tokio::test]
async fn a_trigger_and_an_event_of_one_transaction_both_take_effect() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    create(&stores, "lobby").await;
    let spec = serde_json::from_str(r#"{"name":"job","action":{"system":{"function":"nothing"}}}"#).unwrap();
    stores.tasks.create(&WriteContext::system("test"), switchboard_model::ids::TaskId::new(), &spec).await.unwrap();
    sqlx::query("SELECT switchboard.publish('lobby', 'note', '1'), switchboard.trigger('job'), switchboard.publish('dm:a:b', 'note', '2')")
        .execute(backend.database.pool())
        .await
        .unwrap();
    assert_eq!(relay(&stores).await, report(3, 0));
    assert_eq!(
        (payloads(&stores, "lobby").await, payloads(&stores, "dm:a:b").await),
        (vec!["1".into()], vec!["2".into()])
    );
    let runs = stores.runs.list(&Default::default(), &PageRequest { after: None, limit: 10 }).await.unwrap().items;
    assert_eq!(runs.len(), 1);
    backend.close().await;
}

#[tokio::test]
async fn a_message_id_publishes_once_and_never_hides_the_event_of_another_sender() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    create(&stores, "lobby").await;
    let event = |sender| NewEvent {
        room: room("lobby"),
        event: "note".parse().unwrap(),
        payload: JsonText::null(),
        msg_id: MessageId::Given("order-17".parse().unwrap()),
        sender,
    };
    stores.rooms.append(&[event(Actor::System("test"))]).await.unwrap();
    for _ in 0..2 {
        let id = call(backend.database.pool(), "lobby", "note", "1", Some("order-17")).await.unwrap();
        assert_eq!(id, "order-17");
        assert_eq!(relay(&stores).await, report(1, 0), "a duplicate has what it asked for");
    }
    assert_eq!(payloads(&stores, "lobby").await, ["null", "1"]);
    backend.close().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_in_the_transaction_of_the_application() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    create(&stores, "lobby").await;
    let pool = backend.database.pool();
    let run_room = format!("run:{}", Uuid::now_v7());
    for name in
        ["", "Lobby", "a b", "a:", "user", "user:a:b", "dm:b:a", "dm:a:a", "dm:a", "run:x", &run_room, "lobby\n", "a:é"]
    {
        let error = call(pool, name, "note", "1", None).await.unwrap_err().to_string();
        assert!(error.contains("is not the name of a room"), "{name}: {error}");
    }
    let deep = |levels: usize| format!("{}\"[{{\\\"\"{}", "[".repeat(levels), "]".repeat(levels));
    let wide = |bytes: usize| format!("\"{}é\"", "x".repeat(bytes - 4));
    for (name, event, payload, id, message) in [
        ("nowhere", "note", "1", None, "there is no room \"nowhere\""),
        ("lobby", "Note", "1", None, "is not the name of an event"),
        ("lobby", "", "1", None, "is not the name of an event"),
        ("lobby", "run.started", "1", None, "only the server publishes"),
        ("lobby", "sb.x", "1", None, "only the server publishes"),
        ("lobby", "presence.joined", "1", None, "only the server publishes"),
        ("lobby", "note", "{\"a\":", None, "invalid input syntax for type json"),
        ("lobby", "note", &deep(65), None, "deeper than 64 levels"),
        ("lobby", "note", &wide(61_441), None, "the payload has 61441 bytes and may have 61440"),
        ("lobby", "note", "1", Some(""), "the message id is not usable"),
        ("lobby", "note", "1", Some("two words"), "the message id is not usable"),
        ("lobby", "note", "1", Some("é"), "the message id is not usable"),
    ] {
        let error = call(pool, name, event, payload, id).await.unwrap_err().to_string();
        assert!(error.contains(message), "{message}: {error}");
    }
    let none = sqlx::query("SELECT switchboard.publish('lobby', 'note', NULL)").execute(pool).await.unwrap_err();
    assert!(none.to_string().contains("the payload is missing"), "{none}");
    let none = sqlx::query("SELECT switchboard.publish(NULL, 'note', '1')").execute(pool).await.unwrap_err();
    assert!(none.to_string().contains("is not the name of a room"), "{none}");
    // The prefixes are reserved with their dot only.
    for event in ["running", "sb", "turned.on"] {
        call(pool, "lobby", event, &deep(64), Some(&"k".repeat(200))).await.unwrap();
    }
    call(pool, "lobby", "note", &wide(61_440), None).await.unwrap();
    assert_eq!(relay(&stores).await, report(4, 0));
    assert_eq!(history(&stores, "lobby").await.len(), 2, "the three have one message id");
    backend.close().await;
}

#[tokio::test]
async fn what_cannot_be_published_is_kept_with_its_reason_and_takes_no_other_along() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let pool = backend.database.pool();
    for name in ["gone", "lobby"] {
        create(&stores, name).await;
    }
    for (name, payload) in [("lobby", "1"), ("gone", "2"), ("lobby", "3"), ("lobby", "4")] {
        call(pool, name, "note", payload, None).await.unwrap();
    }
    stores.rooms.delete(&WriteContext::system("test"), &room("gone")).await.unwrap();
    sqlx::query("ALTER TABLE switchboard.room_events ADD CONSTRAINT refuses_one CHECK (payload <> '3')")
        .execute(pool)
        .await
        .unwrap();
    sqlx::query("INSERT INTO switchboard.outbox (kind, subject, event) VALUES ('publish', 'Not A Room', 'note')")
        .execute(pool)
        .await
        .unwrap();
    assert_eq!(relay(&stores).await, report(2, 3));
    assert_eq!(payloads(&stores, "lobby").await, ["1", "4"]);
    let failed = stores.outbox.failed(&PageRequest { after: None, limit: 10 }).await.unwrap().items;
    let reasons: Vec<_> = failed.iter().rev().map(|entry| (entry.subject.as_str(), entry.kind.as_str())).collect();
    assert_eq!(reasons, [("gone", "publish"), ("lobby", "publish"), ("Not A Room", "publish")]);
    assert_eq!(failed[2].error, "the room has been deleted");
    assert!(failed[1].error.contains("refuses_one"), "{}", failed[1].error);
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_keep_the_order_within_transactions_beside_direct_publishers() {
    let backend = PgBackend::create().await;
    let (stores, other) = (backend.stores().await, backend.stores().await);
    create(&stores, "lobby").await;
    let is_over = AtomicBool::new(false);
    let relays = async |stores: &Stores| {
        loop {
            let was_over = is_over.load(Ordering::SeqCst);
            if stores.outbox.relay(7).await.unwrap().applied == 0 && was_over {
                return;
            }
        }
    };
    let applications = async {
        for n in 0..40 {
            let mut transaction = backend.database.pool().begin().await.unwrap();
            for step in 0..10 {
                publish(&mut transaction, "lobby", &format!("[{n}, {step}]")).await;
            }
            transaction.commit().await.unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
    };
    let direct = async {
        let event = |_| NewEvent {
            room: room("lobby"),
            event: "direct".parse().unwrap(),
            payload: JsonText::null(),
            msg_id: MessageId::given_or_new(None),
            sender: Actor::System("test"),
        };
        for _ in 0..40 {
            let outcomes = stores.rooms.append(&(0..5).map(event).collect::<Vec<_>>()).await.unwrap();
            assert!(outcomes.iter().all(|outcome| matches!(outcome, AppendOutcome::Appended { .. })));
        }
    };
    tokio::join!(applications, direct, relays(&stores), relays(&other));
    let events = history(&stores, "lobby").await;
    assert_eq!(events.len(), 600);
    let mut steps: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.event.as_str() == "note") {
        let [n, step]: [u64; 2] = event.payload.decode().unwrap();
        steps.entry(n).or_default().push(step);
    }
    assert_eq!(steps.len(), 40);
    assert!(steps.values().all(|steps| steps.iter().copied().eq(0..10)), "{steps:?}");
    backend.close().await;
}

/// One application: pauses with its transaction open, and now and then thinks better of it.
async fn application(pool: PgPool, n: u64) -> Vec<String> {
    let mut published = Vec::new();
    for round in 0..6 {
        let mut transaction = pool.begin().await.unwrap();
        let name = format!("room{}", (n + round) % 5);
        let id = publish(&mut transaction, &name, &format!("{n}")).await;
        sqlx::query("SELECT pg_sleep(random() * 0.03)").execute(&mut *transaction).await.unwrap();
        if (n + round).is_multiple_of(5) {
            transaction.rollback().await.unwrap();
        } else {
            transaction.commit().await.unwrap();
            published.push(id);
        }
    }
    published
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_applications_with_rollbacks_beside_an_idle_one_skip_and_stall_nothing() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    for n in 0..5 {
        create(&stores, &format!("room{n}")).await;
    }
    let mut idle = backend.database.pool().begin().await.unwrap();
    for n in 0..5 {
        publish(&mut idle, &format!("room{n}"), "\"idle\"").await;
    }
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(20)
        .acquire_timeout(Duration::from_secs(60))
        .connect_lazy(backend.database.url())
        .unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut relays = JoinSet::new();
    for stores in [stores.clone(), backend.stores().await] {
        let is_over = Arc::clone(&is_over);
        relays.spawn(async move {
            loop {
                let was_over = is_over.load(Ordering::SeqCst);
                if stores.outbox.relay(100).await.unwrap().applied == 0 {
                    if was_over {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    let mut applications = JoinSet::new();
    for n in 0..50 {
        applications.spawn(application(pool.clone(), n));
    }
    let committed: HashSet<String> = applications.join_all().await.into_iter().flatten().collect();
    is_over.store(true, Ordering::SeqCst);
    relays.join_all().await;
    let mut published = Vec::new();
    for n in 0..5 {
        published.extend(history(&stores, &format!("room{n}")).await.into_iter().map(|event| event.msg_id));
    }
    assert_eq!(published.len(), committed.len(), "each once, and nothing of the idle one");
    assert_eq!(published.into_iter().collect::<HashSet<_>>(), committed);
    idle.commit().await.unwrap();
    assert_eq!(relay(&stores).await, report(5, 0));
    pool.close().await;
    backend.close().await;
}

#[tokio::test]
async fn a_room_that_somebody_holds_is_relayed_last_and_holds_no_other_up() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    for name in ["busy", "free"] {
        create(&stores, name).await;
    }
    let mut holder = backend.database.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM switchboard.rooms WHERE name = 'busy' FOR UPDATE").execute(&mut *holder).await.unwrap();
    for name in ["busy", "free"] {
        call(backend.database.pool(), name, "note", "1", None).await.unwrap();
    }
    let relaying = async { stores.outbox.relay(100).await.unwrap() };
    let watching = async {
        switchboard_testkit::wait_until("the event of the free room", async || {
            (payloads(&stores, "free").await.len() == 1).then_some(())
        })
        .await;
        assert!(payloads(&stores, "busy").await.is_empty());
        holder.commit().await.unwrap();
    };
    let (report_of_both, ()) = tokio::join!(relaying, watching);
    assert_eq!(report_of_both, report(2, 0));
    assert_eq!(payloads(&stores, "busy").await, ["1"]);
    backend.close().await;
}

#[tokio::test]
async fn more_rooms_that_are_held_than_one_pass_takes_hide_no_free_one() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let busy: Vec<String> = (0..25).map(|n| format!("busy{n}")).collect();
    for name in busy.iter().map(String::as_str).chain(["free"]) {
        create(&stores, name).await;
    }
    let mut holder = backend.database.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM switchboard.rooms WHERE name LIKE 'busy%' FOR UPDATE")
        .execute(&mut *holder)
        .await
        .unwrap();
    for name in busy.iter().map(String::as_str).chain(["free"]) {
        call(backend.database.pool(), name, "note", "1", None).await.unwrap();
    }
    let relaying = async { stores.outbox.relay(10).await.unwrap() };
    let watching = async {
        switchboard_testkit::wait_until("the event of the free room", async || {
            (payloads(&stores, "free").await.len() == 1).then_some(())
        })
        .await;
        assert!(payloads(&stores, "busy0").await.is_empty());
        holder.commit().await.unwrap();
    };
    let (relayed, ()) = tokio::join!(relaying, watching);
    assert_eq!(relayed.failed, 0);
    let mut applied = relayed.applied;
    while applied < 26 {
        let RelayReport { applied: more, failed, .. } = stores.outbox.relay(10).await.unwrap();
        assert!(more > 0 && failed == 0, "{applied} so far");
        applied += more;
    }
    for name in &busy {
        assert_eq!(payloads(&stores, name).await, ["1"]);
    }
    backend.close().await;
}

/// Locks a room as long as the transaction is open; fails at once when somebody else holds it.
async fn hold<'a>(backend: &PgBackend, name: &str) -> Transaction<'a, Postgres> {
    let mut holder = backend.database.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM switchboard.rooms WHERE name = $1 FOR UPDATE NOWAIT")
        .bind(name)
        .execute(&mut *holder)
        .await
        .unwrap();
    holder
}

#[tokio::test]
async fn while_the_relay_waits_for_a_room_it_holds_no_other() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    for name in ["a", "b"] {
        create(&stores, name).await;
    }
    let (first, second) = (hold(&backend, "a").await, hold(&backend, "b").await);
    for name in ["a", "b"] {
        call(backend.database.pool(), name, "note", "1", None).await.unwrap();
    }
    let relaying = async { stores.outbox.relay(100).await.unwrap() };
    let watching = async {
        until_blocked(&backend).await;
        second.rollback().await.unwrap();
        let second = hold(&backend, "b").await;
        first.rollback().await.unwrap();
        switchboard_testkit::wait_until("the event of the first room", async || {
            (payloads(&stores, "a").await.len() == 1).then_some(())
        })
        .await;
        until_blocked(&backend).await;
        hold(&backend, "a").await.rollback().await.unwrap();
        second.rollback().await.unwrap();
    };
    let (relayed, ()) = tokio::join!(relaying, watching);
    assert_eq!(relayed, report(2, 0));
    assert_eq!((payloads(&stores, "a").await, payloads(&stores, "b").await), (vec!["1".into()], vec!["1".into()]));
    backend.close().await;
}

#[tokio::test]
async fn a_transaction_for_many_rooms_is_relayed_a_bounded_part_at_a_time() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let mut transaction = backend.database.pool().begin().await.unwrap();
    for n in 0..250 {
        publish(&mut transaction, &format!("user:{n}"), &n.to_string()).await;
    }
    transaction.commit().await.unwrap();
    // Rooms that are not there yet are made by the pass that needs them, and by no earlier one.
    for made in [100, 200, 250] {
        relay(&stores).await;
        assert_eq!(backend.database.count("SELECT count(*) FROM switchboard.rooms").await, made);
    }
    assert_eq!(relay(&stores).await, report(0, 0));
    for n in 0..250 {
        assert_eq!(payloads(&stores, &format!("user:{n}")).await, [n.to_string()]);
    }
}
