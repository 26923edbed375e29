//! Presence on sockets: lists, and events for those who show themselves or have asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use serde_json::Value;
use switchboard_events::{FeedObserver as _, Session};
use switchboard_model::connection::NewConnection;
use switchboard_model::feed::TickRequest;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::ConnectionId;
use switchboard_model::presence::Presence;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{NoticeFrame, ServerFrame};
use switchboard_store_api::{PresenceChange, PresenceStore, StoreResult};
use tokio::sync::Notify;

use crate::bench::Bench;

/// Presence whose next reading is held back after it was made, until it is let go.
struct Held {
    store: Arc<dyn PresenceStore>,
    is_armed: AtomicBool,
    made: Notify,
    let_go: Notify,
}

impl Held {
    /// Makes a bus over it.
    async fn bench() -> (Bench, Arc<Self>) {
        let mut held = None;
        let bench = Bench::with(|stores| {
            let store = Arc::clone(&stores.presence);
            let own =
                Arc::new(Self { store, is_armed: AtomicBool::new(true), made: Notify::new(), let_go: Notify::new() });
            stores.presence = own.clone();
            held = Some(own);
        })
        .await;
        bench.create_room("lobby").await;
        (bench, held.unwrap())
    }
}

#[async_trait]
impl PresenceStore for Held {
    async fn change(&self, changes: &[PresenceChange]) -> StoreResult<()> {
        self.store.change(changes).await
    }

    async fn read(&self, rooms: &[RoomName]) -> StoreResult<Vec<Presence>> {
        let found = self.store.read(rooms).await;
        if self.is_armed.swap(false, Ordering::SeqCst) {
            self.made.notify_one();
            self.let_go.notified().await;
        }
        found
    }

    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.store.sweep(limit).await
    }
}

const JOIN: &str = r#"{"id":1,"op":"join","room":"lobby","presence":true}"#;
const LEAVE: &str = r#"{"id":2,"op":"leave","room":"lobby"}"#;
const WHO: &str = r#"{"id":3,"op":"presence","room":"lobby"}"#;

async fn bench() -> Bench {
    let bench = Bench::new().await;
    bench.create_room("lobby").await;
    bench
}

/// Asks who is in the lobby.
async fn who(bench: &Bench, session: &Arc<Session>) -> Vec<String> {
    let found: Value = serde_json::from_str(bench.send(session, WHO).await.as_str()).unwrap();
    let members = found["members"].as_array().unwrap();
    assert_eq!(found["count"], members.len());
    members.iter().map(|member| member["user_id"].as_str().unwrap().to_owned()).collect()
}

/// Reads on until somebody is said to have come or gone, and says who.
async fn told(bench: &Bench, session: &Arc<Session>, event: &str) -> String {
    let is_it = |frame: &ServerFrame| matches!(frame, ServerFrame::Event(found) if found.event.as_str() == event);
    let frames = bench.frames_until(session, is_it).await;
    let Some(ServerFrame::Event(found)) = frames.last() else { panic!("an event expected") };
    assert_eq!((found.room.as_str(), found.offset), ("lobby", None));
    let payload: Value = serde_json::from_str(found.payload.as_str()).unwrap();
    payload["user_id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_show_themselves_see_each_other_come_and_go() {
    let bench = bench().await;
    let ann = bench.connect("ann").await;
    bench.send(&ann, JOIN).await;
    assert_eq!(who(&bench, &ann).await, ["ann"]);
    let bob = bench.connect("bob").await;
    bench.send(&bob, JOIN).await;
    assert_eq!(who(&bench, &bob).await, ["ann", "bob"]);
    assert_eq!(told(&bench, &ann, "presence.joined").await, "bob");
    bench.send(&bob, LEAVE).await;
    assert_eq!(told(&bench, &ann, "presence.left").await, "bob");
    assert_eq!(who(&bench, &ann).await, ["ann"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_only_watches_is_not_seen_but_told() {
    let bench = bench().await;
    let eve = bench.connect("eve").await;
    bench.refused(&eve, WHO, ErrorCode::NotJoined).await;
    bench.send(&eve, r#"{"id":1,"op":"join","room":"lobby"}"#).await;
    assert_eq!(who(&bench, &eve).await, [""; 0]);
    let ann = bench.connect("ann").await;
    bench.send(&ann, JOIN).await;
    assert_eq!(told(&bench, &eve, "presence.joined").await, "ann");
    assert_eq!(who(&bench, &ann).await, ["ann"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_socket_leaves_after_the_grace_unless_another_one_comes() {
    let bench = bench().await;
    let eve = bench.connect("eve").await;
    bench.send(&eve, JOIN).await;
    let (ann, bob) = (bench.connect("ann").await, bench.connect("bob").await);
    for session in [&ann, &bob] {
        bench.send(session, JOIN).await;
    }
    drop((ann, bob));
    bench.hub.settled().await;
    let ann = bench.connect("ann").await;
    bench.send(&ann, JOIN).await;
    assert_eq!(who(&bench, &eve).await, ["ann", "bob", "eve"], "nobody has left yet");
    assert_eq!(told(&bench, &eve, "presence.left").await, "bob", "ann has never left");
    assert_eq!(who(&bench, &eve).await, ["ann", "eve"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_that_is_deleted_keeps_nobody() {
    let bench = bench().await;
    let ann = bench.connect("ann").await;
    bench.send(&ann, JOIN).await;
    bench.delete_room("lobby").await;
    let is_desync = |frame: &ServerFrame| matches!(frame, ServerFrame::Notice(_));
    bench.frames_until(&ann, is_desync).await;
    bench.create_room("lobby").await;
    let bob = bench.connect("bob").await;
    bench.send(&bob, r#"{"id":1,"op":"join","room":"lobby"}"#).await;
    while !who(&bench, &bob).await.is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_came_during_the_first_reading_is_told() {
    let (bench, held) = Held::bench().await;
    let ann = bench.connect("ann").await;
    let feed = &bench.stores.feed;
    let cursor = feed.tick(None, &TickRequest::default()).await.unwrap().cursor;
    let asking = async {
        bench.send(&ann, r#"{"id":1,"op":"join","room":"lobby"}"#).await;
        who(&bench, &ann).await
    };
    let coming = async {
        held.made.notified().await;
        // On another replica, as far as this one knows; the reading that is held back knows nothing of it.
        let instance = bench.stores.instances.list().await.unwrap().remove(0).id;
        let connection = NewConnection { id: ConnectionId::new(), instance, user_id: "bob".parse().unwrap() };
        bench.stores.connections.connect(std::slice::from_ref(&connection), 1).await.unwrap();
        let entering = PresenceChange::Enter { room: "lobby".parse().unwrap(), connection };
        bench.stores.presence.change(&[entering]).await.unwrap();
        // It has been heard of for certain before there is anything to compare with.
        bench.hub.observe(&feed.tick(Some(&cursor), &TickRequest::default()).await.unwrap());
        held.let_go.notify_one();
    };
    let (found, ()) = tokio::join!(asking, coming);
    assert_eq!(found, [""; 0]);
    assert_eq!(told(&bench, &ann, "presence.joined").await, "bob");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_that_is_deleted_while_it_is_joined_leaves_no_watcher_behind() {
    let (bench, held) = Held::bench().await;
    let (ann, bob) = (bench.connect("ann").await, bench.connect("bob").await);
    // Somebody whose membership tells when the deletion has arrived.
    bench.send(&bob, r#"{"id":1,"op":"join","room":"lobby"}"#).await;
    let joining = bench.refused(&ann, JOIN, ErrorCode::NotFound);
    let deleting = async {
        held.made.notified().await;
        bench.delete_room("lobby").await;
        bench.frames_until(&bob, |frame| matches!(frame, ServerFrame::Notice(NoticeFrame::Desync(_)))).await;
        held.let_go.notify_one();
    };
    tokio::join!(joining, deleting);
    nobody_is_left(&bench, &ann).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_does_one_that_nobody_else_had_joined() {
    let (bench, held) = Held::bench().await;
    let ann = bench.connect("ann").await;
    let joining = bench.refused(&ann, JOIN, ErrorCode::NotFound);
    let deleting = async {
        held.made.notified().await;
        bench.delete_room("lobby").await;
        held.let_go.notify_one();
    };
    tokio::join!(joining, deleting);
    nobody_is_left(&bench, &ann).await;
}

/// Makes the room anew, and checks that who had been refused is not shown in it and hears nothing of it.
async fn nobody_is_left(bench: &Bench, refused: &Arc<Session>) {
    bench.create_room("lobby").await;
    let (eve, cyd) = (bench.connect("eve").await, bench.connect("cyd").await);
    bench.send(&eve, r#"{"id":1,"op":"join","room":"lobby"}"#).await;
    while !who(bench, &eve).await.is_empty() {
        tokio::task::yield_now().await;
    }
    bench.send(&cyd, JOIN).await;
    while told(bench, &eve, "presence.joined").await != "cyd" {}
    bench.give(refused, r#"{"id":9,"op":"ping"}"#).await;
    let is_pong = |frame: &ServerFrame| matches!(frame, ServerFrame::Reply(reply) if reply.re == 9);
    let heard = bench.frames_until(refused, is_pong).await;
    let is_event = |frame: &&ServerFrame| matches!(frame, ServerFrame::Event(_));
    assert_eq!(heard.iter().filter(is_event).count(), 0, "{heard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_while_the_feed_was_lost_is_told_after_the_resync() {
    let bench = bench().await;
    let ann = bench.connect("ann").await;
    bench.send(&ann, JOIN).await;
    bench.lose_the_feed().await;
    let bob = bench.connect("bob").await;
    bench.send(&bob, JOIN).await;
    bench.lose_the_feed().await;
    assert_eq!(told(&bench, &ann, "presence.joined").await, "bob");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_rapid_toggles_end_equal_in_lists_and_events() {
    let bench = bench().await;
    let eve = bench.connect("eve").await;
    bench.send(&eve, r#"{"id":1,"op":"join","room":"lobby"}"#).await;
    who(&bench, &eve).await;
    let ann = bench.connect("ann").await;
    for _ in 0..500 {
        bench.send(&ann, JOIN).await;
        bench.send(&ann, LEAVE).await;
    }
    bench.send(&ann, JOIN).await;
    assert_eq!(who(&bench, &eve).await, ["ann"]);
    let bob = bench.connect("bob").await;
    bench.send(&bob, JOIN).await;
    let is_bob =
        |frame: &ServerFrame| matches!(frame, ServerFrame::Event(found) if found.payload.as_str().contains("bob"));
    let frames = bench.frames_until(&eve, is_bob).await;
    let last = frames.iter().rev().find_map(|frame| match frame {
        ServerFrame::Event(found) if found.payload.as_str().contains("ann") => Some(found.event.to_string()),
        _ => None,
    });
    // Events that went by before the list was read may have been the last about ann.
    assert!(last.is_none_or(|event| event == "presence.joined"));
}
