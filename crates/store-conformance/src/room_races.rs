//! Races of publishers: positions without holes, and a feed that skips nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::Rng as _;
use rand::rngs::StdRng;
use switchboard_model::feed::SignalKind;
use switchboard_model::room::NewEvent;
use switchboard_store_api::{AppendOutcome, StoreResult, Stores};

use crate::Backend;
use crate::fixtures::{
    Patience, Reader, abandoned, append, create_room, event, eventually, named, new_room, random, replicas, together,
    with_id,
};

const ROOMS: [&str; 4] = ["a", "b", "user:7", "dm:x:y"];
const PUBLISHERS: usize = 50;
const BATCHES: usize = 8;

/// Where each message was said to stand.
type Placed = BTreeMap<(String, String), i64>;

/// Appends a batch; goes away in the middle some times, and repeats until there is an answer.
async fn insist(stores: &Stores, batch: &[NewEvent], random: &mut StdRng) -> Vec<AppendOutcome> {
    loop {
        let polls = if random.random_bool(0.3) { random.random_range(1..6) } else { u32::MAX };
        let answer: Option<StoreResult<_>> = abandoned(stores.rooms.append(batch), polls).await;
        match answer {
            Some(Ok(outcomes)) => return outcomes,
            Some(Err(error)) => assert!(error.is_transient(), "{error:?}"),
            None => {}
        }
    }
}

/// Publishes batches of events to random rooms, every one with a message id of its own.
async fn publish(stores: Stores, publisher: usize, mut random: StdRng) -> Placed {
    let mut placed = Placed::new();
    for number in 0..BATCHES {
        for _ in 0..random.random_range(0..3) {
            tokio::task::yield_now().await;
        }
        let size = random.random_range(1..=5);
        let batch: Vec<_> = (0..size)
            .map(|n| {
                let room = ROOMS[random.random_range(0..ROOMS.len())];
                with_id(event(room, &n.to_string()), &format!("{publisher}-{number}-{n}"))
            })
            .collect();
        let outcomes = insist(&stores, &batch, &mut random).await;
        assert_eq!(outcomes.len(), batch.len());
        let mut last = BTreeMap::new();
        for (event, outcome) in batch.iter().zip(outcomes) {
            let (AppendOutcome::Appended { position, .. } | AppendOutcome::Duplicate(position)) = outcome else {
                panic!("refused: {outcome:?}")
            };
            let before = last.insert(event.room.clone(), position.offset);
            assert!(before < Some(position.offset), "a batch keeps its order in each room");
            placed.insert((event.room.to_string(), event.msg_id.to_string()), position.offset);
        }
    }
    placed
}

/// Follows the feed and reads the rooms up to what it says, until that is all there is. A tick that
/// skipped something leaves it behind for ever.
async fn follow(stores: Stores, mut reader: Reader, done: Arc<AtomicBool>) -> BTreeMap<String, i64> {
    let mut read: BTreeMap<String, i64> = ROOMS.map(|room| (room.to_owned(), 0)).into();
    let mut patience = Patience::new();
    loop {
        let is_last = done.load(Ordering::SeqCst);
        let signals = reader.tick().await.signals;
        if !signals.is_empty() {
            patience = Patience::new();
        }
        for signal in signals.iter().filter(|signal| signal.kind == SignalKind::RoomEvents) {
            let cursor = read.get_mut(&signal.key).expect("a room of the case");
            read_to(&stores, &signal.key, cursor, signal.pos).await;
        }
        if is_last && read == tops(&stores).await {
            return read;
        }
        patience.wait(&read).await;
    }
}

async fn tops(stores: &Stores) -> BTreeMap<String, i64> {
    let tops = stores.rooms.tops(&ROOMS.map(named)).await.unwrap();
    tops.into_iter().map(|top| (top.room.to_string(), top.top)).collect()
}

/// Reads a room from `cursor` to `top`, which must be there.
async fn read_to(stores: &Stores, room: &str, cursor: &mut i64, top: i64) {
    while *cursor < top {
        let page = stores.rooms.history(&named(room), *cursor, 100).await.unwrap().unwrap();
        assert!(page.top >= top, "{room} was signalled up to {top} and ends at {}", page.top);
        for event in page.events {
            assert_eq!(event.offset, *cursor + 1, "a hole in {room}");
            *cursor = event.offset;
        }
    }
}

async fn publish_and_follow(backend: &dyn Backend, stores: Vec<Stores>) {
    for room in &ROOMS[..2] {
        create_room(&stores[0], &new_room(room)).await;
    }
    let done = Arc::new(AtomicBool::new(false));
    let mut seeds = random();
    let mut followers = Vec::new();
    for stores in &stores[..2] {
        followers.push(follow(stores.clone(), Reader::start(stores).await, done.clone()));
    }
    let publishing = async {
        let placed = together((0..PUBLISHERS).map(|n| {
            let random = rand::SeedableRng::from_rng(&mut seeds);
            publish(stores[n % stores.len()].clone(), n, random)
        }))
        .await;
        done.store(true, Ordering::SeqCst);
        placed
    };
    let (placed, read) = futures_util::future::join(publishing, together(followers)).await;

    let placed: Placed = placed.into_iter().flatten().collect();
    let reader = backend.stores().await;
    for room in ROOMS {
        let mut found = Placed::new();
        let mut after = 0;
        loop {
            let page = reader.rooms.history(&named(room), after, 500).await.unwrap().unwrap();
            let Some(last) = page.events.last() else { break };
            let last = last.offset;
            for event in page.events {
                after += 1;
                assert_eq!(event.offset, after, "positions run from 1 without holes");
                assert_eq!(found.insert((room.to_owned(), event.msg_id), event.offset), None, "appended twice");
            }
            assert_eq!(after, last);
        }
        let expected: Placed =
            placed.iter().filter(|((of, _), _)| of == room).map(|(key, offset)| (key.clone(), *offset)).collect();
        assert_eq!(found, expected);
        assert!(read.iter().all(|read| read[room] == after), "both followers read all of {room}");
    }
}

pub(crate) async fn publishers_leave_no_holes_and_the_feed_skips_nothing(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    publish_and_follow(backend, stores).await;
}

pub(crate) async fn an_idle_transaction_stalls_neither_publishers_nor_the_feed(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let idle = backend.idle_transaction().await;
    publish_and_follow(backend, stores).await;
    drop(idle);
}

pub(crate) async fn first_events_of_a_user_share_one_room(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let offsets = together((0..40).map(|n| {
        let stores = stores[n % 4].clone();
        async move { append(&stores, &[event("user:7", &n.to_string()), event("dm:a:b", "0")]).await }
    }))
    .await;
    for index in 0..2 {
        let distinct: BTreeSet<_> = offsets.iter().map(|offsets| offsets[index]).collect();
        assert_eq!(distinct, (1..=40).collect());
    }
}

pub(crate) async fn equal_message_ids_are_appended_once(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    create_room(&stores[0], &new_room("a")).await;
    let outcomes = together((0..20).map(|n| {
        let stores = stores[n % 4].clone();
        async move {
            let same = with_id(event("a", "1"), "m");
            stores.rooms.append(&[same]).await.unwrap().remove(0)
        }
    }))
    .await;
    let is_first = |outcome: &&AppendOutcome| match outcome {
        AppendOutcome::Appended { position, .. } => position.offset == 1,
        AppendOutcome::Duplicate(position) => {
            assert_eq!(position.offset, 1);
            false
        }
        AppendOutcome::Refused(code) => panic!("refused: {code:?}"),
    };
    assert_eq!(outcomes.iter().filter(is_first).count(), 1);
    assert_eq!(append(&stores[0], &[event("a", "2")]).await, [2]);
}

pub(crate) async fn rooms_in_opposite_order_do_not_block_each_other_for_ever(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let names = ["a", "b", "c", "d"];
    for name in names {
        create_room(&stores[0], &new_room(name)).await;
    }
    together((0..24).map(|n| {
        let stores = stores[n % 4].clone();
        async move {
            let mut batch = names.map(|name| event(name, "1"));
            batch.rotate_left(n % 4);
            if n % 2 == 0 {
                batch.reverse();
            }
            eventually(async || match stores.rooms.append(&batch).await {
                Ok(outcomes) => Ok(outcomes),
                Err(error) if error.is_transient() => Err(error),
                Err(error) => panic!("{error:?}"),
            })
            .await;
        }
    }))
    .await;
    let tops = stores[0].rooms.tops(&names.map(named)).await.unwrap();
    assert_eq!(tops.iter().map(|top| top.top).collect::<Vec<_>>(), [24; 4]);
}
