//! Rooms: positions, deduplication, history, retention and epochs.

use switchboard_model::identity::Actor;
use switchboard_model::page::PageRequest;
use switchboard_model::room::{NewEvent, NewRoom, Retention, RoomKind};
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::limits::HISTORY_BYTES;
use switchboard_store_api::{AppendOutcome, RoomCreateOutcome, RoomTop, Stores};

use crate::Backend;
use crate::fixtures::{ALL, append, create_room, database_time, event, named, new_room, now, system, until, with_id};

/// Reads all kept offsets of a room.
async fn offsets(stores: &Stores, room: &str) -> Vec<i64> {
    let page = stores.rooms.history(&named(room), 0, 500).await.unwrap().unwrap();
    page.events.iter().map(|event| event.offset).collect()
}

/// Numbered events of one room.
fn notes(room: &str, count: usize) -> Vec<NewEvent> {
    (0..count).map(|n| event(room, &n.to_string())).collect()
}

pub(crate) async fn a_created_room_reads_back_and_its_name_is_taken(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let retention = Retention { max_count: 7, max_age: Span::from_secs(60), max_bytes: 1_000 };
    let wanted = NewRoom { kind: RoomKind::Private, retention, ..new_room("chat:1") };
    let room = create_room(&stores, &wanted).await;
    assert_eq!((room.id, &room.name, room.kind), (wanted.id, &wanted.name, RoomKind::Private));
    assert_eq!((room.top, room.first_kept, &room.retention), (0, 1, &wanted.retention));
    assert_eq!(stores.rooms.find(&wanted.name).await.unwrap(), Some(room.clone()));
    assert_eq!(stores.rooms.find(&named("chat:2")).await.unwrap(), None);
    let outcome = now(stores.rooms.create(&system(), &new_room("chat:1")).await.unwrap());
    assert_eq!(outcome, RoomCreateOutcome::NameTaken(room));
}

pub(crate) async fn rooms_are_listed_by_name(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for name in ["d", "a", "c:2", "c:1", "b"] {
        create_room(&stores, &new_room(name)).await;
    }
    let first = stores.rooms.list(&PageRequest { after: None, limit: 3 }).await.unwrap();
    let second = stores.rooms.list(&PageRequest { after: first.next_cursor, limit: 3 }).await.unwrap();
    let found: Vec<_> = first.items.iter().chain(&second.items).map(|room| room.name.as_str()).collect();
    assert_eq!(found, ["a", "b", "c:1", "c:2", "d"]);
    assert_eq!(second.next_cursor, None);
}

pub(crate) async fn appended_events_follow_the_order_of_the_batch(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let rooms = [create_room(&stores, &new_room("a")).await, create_room(&stores, &new_room("b")).await];
    let batch = [event("b", "0"), event("a", "1"), event("b", "2"), event("a", "3"), event("b", "4")];
    assert_eq!(append(&stores, &batch).await, [1, 1, 2, 2, 3]);
    let outcomes = stores.rooms.append(&[event("a", r#"{"x" : 5}"#)]).await.unwrap();
    let [AppendOutcome::Appended { position, event: stored }] = outcomes.as_slice() else {
        panic!("one event expected, found {outcomes:?}")
    };
    assert_eq!((&position.epoch, position.offset, stored.offset), (&rooms[0].epoch, 3, 3));
    assert_eq!((stored.event.as_str(), stored.payload.as_str()), ("note", r#"{"x" : 5}"#));
    assert_eq!(stored.sender, "system:conformance");

    let page = stores.rooms.history(&named("a"), 0, 10).await.unwrap().unwrap();
    assert_eq!((&page.epoch, page.top, page.first_kept), (&rooms[0].epoch, 3, 1));
    let payloads: Vec<_> = page.events.iter().map(|event| event.payload.as_str()).collect();
    assert_eq!(payloads, ["1", "3", r#"{"x" : 5}"#]);
    assert_eq!(&page.events[2], stored);
    assert!(page.events[0].at >= rooms[0].created_at && page.events[2].at >= page.events[0].at);
    assert_eq!(stores.rooms.append(&[]).await.unwrap(), []);
}

pub(crate) async fn rooms_of_users_and_pairs_are_made_by_their_first_event(backend: &dyn Backend) {
    let stores = backend.stores().await;
    assert_eq!(stores.rooms.find(&named("user:7")).await.unwrap(), None);
    assert_eq!(append(&stores, &[event("user:7", "1"), event("dm:a:b", "1"), event("user:7", "2")]).await, [1, 1, 2]);
    assert_eq!(append(&stores, &[event("user:7", "3"), event("dm:a:b", "2")]).await, [3, 2]);
    for (name, kind, top) in [("user:7", RoomKind::User, 3), ("dm:a:b", RoomKind::Direct, 2)] {
        let room = stores.rooms.find(&named(name)).await.unwrap().unwrap();
        assert_eq!((room.kind, room.top), (kind, top));
    }
}

pub(crate) async fn a_refused_event_does_not_disturb_its_neighbours(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let room = create_room(&stores, &new_room("lobby")).await;
    let run = "run:0190a0b0-0000-7000-8000-000000000000";
    let names = ["lobby", "nowhere", run, "dm:b:a", "user:1:2", "lobby"];
    let batch: Vec<_> = names.into_iter().map(|name| event(name, "1")).collect();
    let codes: Vec<_> = stores
        .rooms
        .append(&batch)
        .await
        .unwrap()
        .into_iter()
        .map(|outcome| match outcome {
            AppendOutcome::Appended { position, .. } => Ok(position.offset),
            AppendOutcome::Refused(code) => Err(code),
            AppendOutcome::Duplicate(position) => panic!("no duplicate was sent: {position:?}"),
        })
        .collect();
    let invalid = Err(ErrorCode::RoomNameInvalid);
    assert_eq!(codes, [Ok(1), Err(ErrorCode::NotFound), invalid, invalid, invalid, Ok(2)]);
    assert_eq!(stores.rooms.find(&named("nowhere")).await.unwrap(), None);
    assert_eq!(stores.rooms.find(&room.name).await.unwrap().unwrap().top, 2);
}

pub(crate) async fn a_given_message_id_is_appended_once_per_room_and_sender(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_room(&stores, &new_room("a")).await;
    create_room(&stores, &new_room("b")).await;
    let user = |id: &str, event| NewEvent { sender: Actor::User(id.parse().unwrap()), ..event };
    let first = user("1", with_id(event("a", "1"), "m"));
    let elsewhere = user("1", with_id(event("b", "1"), "m"));
    let somebody = user("2", with_id(event("a", "2"), "m"));
    assert_eq!(append(&stores, &[first.clone(), elsewhere, somebody]).await, [1, 1, 2]);
    let stored = stores.rooms.history(&named("a"), 0, 1).await.unwrap().unwrap();
    assert_eq!((stored.events[0].msg_id.as_str(), stored.events[0].sender.as_str()), ("m", "user:1"));

    let again = user("1", with_id(event("a", r#""other""#), "m"));
    let fresh = user("1", with_id(event("a", "3"), "n"));
    let outcomes = stores.rooms.append(&[again, fresh.clone(), fresh]).await.unwrap();
    let [AppendOutcome::Duplicate(known), AppendOutcome::Appended { position, .. }, AppendOutcome::Duplicate(folded)] =
        outcomes.as_slice()
    else {
        panic!("duplicate, appended, duplicate expected; found {outcomes:?}")
    };
    assert_eq!((known.offset, position.offset, folded), (1, 3, position));
    assert_eq!(known.epoch, position.epoch);
    assert_eq!(offsets(&stores, "a").await, [1, 2, 3]);
    assert_eq!(offsets(&stores, "b").await, [1]);
}

pub(crate) async fn events_without_a_given_id_are_never_duplicates(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_room(&stores, &new_room("a")).await;
    let same = event("a", "1");
    assert_eq!(append(&stores, &[same.clone(), event("a", "1")]).await, [1, 2]);
    let page = stores.rooms.history(&named("a"), 0, 10).await.unwrap().unwrap();
    assert_eq!(page.events[0].msg_id, same.msg_id.to_string());
    assert_ne!(page.events[0].msg_id, page.events[1].msg_id);
}

pub(crate) async fn history_pages_follow_each_other(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_room(&stores, &new_room("a")).await;
    append(&stores, &notes("a", 7)).await;
    let mut after = 0;
    for expected in [vec![1, 2, 3], vec![4, 5, 6], vec![7], vec![]] {
        let page = stores.rooms.history(&named("a"), after, 3).await.unwrap().unwrap();
        assert_eq!((page.top, page.first_kept), (7, 1));
        assert_eq!(page.events.iter().map(|event| event.offset).collect::<Vec<_>>(), expected);
        after = page.events.last().map_or(after, |event| event.offset);
    }
    let ahead = stores.rooms.history(&named("a"), 99, 3).await.unwrap().unwrap();
    assert_eq!((ahead.top, ahead.events), (7, vec![]));
    assert_eq!(stores.rooms.history(&named("b"), 0, 3).await.unwrap(), None);
}

pub(crate) async fn history_pages_are_bounded_in_bytes(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_room(&stores, &new_room("a")).await;
    let payload = format!("\"{}\"", "é".repeat(30_000));
    let large: Vec<_> = (0..40).map(|_| event("a", &payload)).collect();
    append(&stores, &large).await;
    let mut found = Vec::new();
    let mut pages = 0;
    while found.len() < 40 {
        let after = i64::try_from(found.len()).unwrap();
        let page = stores.rooms.history(&named("a"), after, 500).await.unwrap().unwrap();
        let bytes: usize = page.events.iter().map(|event| event.payload.as_str().len()).sum();
        assert!(!page.events.is_empty(), "a page makes progress");
        assert!(i64::try_from(bytes).unwrap() <= HISTORY_BYTES + 60_002, "{bytes} bytes in a page");
        found.extend(page.events.iter().map(|event| event.offset));
        pages += 1;
    }
    assert_eq!(found, (1..=40).collect::<Vec<_>>());
    assert!(pages >= 2, "2.4 MB are more than one page");
}

pub(crate) async fn retention_by_count_keeps_the_newest(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let retention = Retention { max_count: 3, ..Retention::default() };
    create_room(&stores, &NewRoom { retention, ..new_room("a") }).await;
    create_room(&stores, &new_room("b")).await;
    append(&stores, &notes("a", 10)).await;
    append(&stores, &notes("b", 10)).await;
    assert_eq!(stores.rooms.sweep(10).await.unwrap(), 7);
    let page = stores.rooms.history(&named("a"), 0, 10).await.unwrap().unwrap();
    assert_eq!((page.top, page.first_kept), (10, 8));
    assert_eq!(page.events.iter().map(|event| event.offset).collect::<Vec<_>>(), [8, 9, 10]);
    assert_eq!(stores.rooms.find(&named("a")).await.unwrap().unwrap().first_kept, 8);
    assert_eq!(offsets(&stores, "b").await, (1..=10).collect::<Vec<_>>());
    assert_eq!(stores.rooms.sweep(10).await.unwrap(), 0);
    assert_eq!(append(&stores, &notes("a", 1)).await, [11], "positions go on");
}

pub(crate) async fn retention_by_bytes_keeps_what_fits(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let retention = Retention { max_bytes: 250, ..Retention::default() };
    create_room(&stores, &NewRoom { retention, ..new_room("a") }).await;
    let hundred_bytes = format!("\"{}\"", "x".repeat(98));
    let batch: Vec<_> = (0..5).map(|_| event("a", &hundred_bytes)).collect();
    append(&stores, &batch).await;
    assert_eq!(stores.rooms.sweep(10).await.unwrap(), 3);
    assert_eq!(offsets(&stores, "a").await, [4, 5]);
}

pub(crate) async fn retention_by_age_can_empty_a_room(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let retention = Retention { max_age: Span::from_millis(1), ..Retention::default() };
    create_room(&stores, &NewRoom { retention, ..new_room("a") }).await;
    append(&stores, &notes("a", 4)).await;
    until(|| async { stores.rooms.sweep(10).await.unwrap() }, |deleted| *deleted == 4).await;
    let page = stores.rooms.history(&named("a"), 0, 10).await.unwrap().unwrap();
    assert_eq!((page.top, page.first_kept, page.events), (4, 5, vec![]));
    assert_eq!(append(&stores, &notes("a", 1)).await, [5]);
}

pub(crate) async fn tops_leave_out_missing_rooms(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let room = create_room(&stores, &new_room("a")).await;
    let empty = create_room(&stores, &new_room("b")).await;
    append(&stores, &notes("a", 3)).await;
    let mut tops = stores.rooms.tops(&[named("b"), named("missing"), named("a")]).await.unwrap();
    tops.sort_by(|a, b| a.room.cmp(&b.room));
    assert_eq!(
        tops,
        [
            RoomTop { room: named("a"), epoch: room.epoch, top: 3 },
            RoomTop { room: named("b"), epoch: empty.epoch, top: 0 },
        ]
    );
    assert_eq!(stores.rooms.tops(&[]).await.unwrap(), []);
}

pub(crate) async fn a_room_that_is_made_again_has_another_epoch(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let old = create_room(&stores, &new_room("a")).await;
    append(&stores, &[with_id(event("a", "1"), "m"), event("a", "2")]).await;
    assert!(stores.rooms.delete(&system(), &old.name).await.unwrap());
    assert!(!stores.rooms.delete(&system(), &old.name).await.unwrap());
    assert_eq!(stores.rooms.find(&old.name).await.unwrap(), None);
    assert_eq!(stores.rooms.history(&old.name, 0, 10).await.unwrap(), None);
    assert_eq!(stores.rooms.list(&ALL).await.unwrap().items, []);
    let outcomes = stores.rooms.append(&[event("a", "3")]).await.unwrap();
    assert_eq!(outcomes, [AppendOutcome::Refused(ErrorCode::NotFound)]);

    let new = create_room(&stores, &new_room("a")).await;
    assert_ne!(new.epoch, old.epoch);
    assert_eq!(append(&stores, &[with_id(event("a", "1"), "m")]).await, [1], "nothing of the old room is left");
    assert_eq!(offsets(&stores, "a").await, [1]);
}

pub(crate) async fn replicas_agree_on_the_epoch(backend: &dyn Backend) {
    let [one, two] = [backend.stores().await, backend.stores().await];
    let room = create_room(&one, &new_room("a")).await;
    assert_eq!(two.rooms.find(&room.name).await.unwrap(), Some(room.clone()));
    append(&two, &notes("a", 1)).await;
    let page = one.rooms.history(&room.name, 0, 10).await.unwrap().unwrap();
    assert_eq!(page.epoch, room.epoch);
    assert!(page.events[0].at <= database_time(&one).await);
}
