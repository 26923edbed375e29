//! Batches of events under a once-key: one effect, and the same answer for everybody who asks with the key.

use std::sync::Arc;

use rand::Rng as _;
use switchboard_model::feed::{Signal, SignalKind};
use switchboard_model::json_text::JsonText;
use switchboard_model::room::NewEvent;
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::{
    AppendAnswer, AppendOutcome, OnceRecord, RoomCreateOutcome, StoreResult, Stores, WriteContext, Written,
};

use crate::Backend;
use crate::accounts::{audit_actions, audited};
use crate::fixtures::{
    HOUR, LONG, Reader, abandoned, append, contend, create_room, event, eventually, json, named, new_room, now, once,
    random, replicas, system, with_id,
};

/// Where each event stands, 0 for those that were refused: what the cases have remembered.
fn offsets(outcomes: &[AppendOutcome]) -> Vec<i64> {
    let offset = |outcome: &AppendOutcome| match outcome {
        AppendOutcome::Appended { position, .. } | AppendOutcome::Duplicate(position) => position.offset,
        AppendOutcome::Refused(_) => 0,
    };
    outcomes.iter().map(offset).collect()
}

fn answer() -> AppendAnswer {
    Arc::new(|outcomes| JsonText::encode(&offsets(outcomes)).unwrap())
}

async fn attempt(stores: &Stores, context: &WriteContext, events: &[NewEvent]) -> Written<Vec<AppendOutcome>> {
    stores.rooms.append_once(context, events, &answer()).await.unwrap()
}

/// Unwraps what a repeated request is answered with.
fn stored<T: std::fmt::Debug>(written: Written<T>) -> OnceRecord {
    match written {
        Written::Replayed(record) => record,
        other => panic!("expected a replay, found {other:?}"),
    }
}

async fn top(stores: &Stores, room: &str) -> Option<i64> {
    stores.rooms.find(&named(room)).await.unwrap().map(|room| room.top)
}

pub(crate) async fn a_repeated_batch_is_answered_as_the_first(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_room(&stores, &new_room("a")).await;
    let mut reader = Reader::start(&stores).await;
    let batch = [event("a", "1"), event("missing", "1"), event("user:7", "1"), event("a", "2")];
    let first = now(attempt(&stores, &once("k", 1, HOUR), &batch).await);
    assert_eq!(offsets(&first), [1, 0, 1, 2]);
    assert_eq!(first[1], AppendOutcome::Refused(ErrorCode::NotFound));
    let mut signals = reader.signals().await;
    signals.retain(|signal| signal.kind == SignalKind::RoomEvents);
    signals.sort_by(|a, b| a.key.cmp(&b.key));
    let signal = |key: &str, pos| Signal { kind: SignalKind::RoomEvents, key: key.to_owned(), pos, body: None };
    assert_eq!(signals, [signal("a", 2), signal("user:7", 1)]);

    create_room(&stores, &new_room("missing")).await;
    reader.signals().await;
    let again = stored(attempt(&stores, &once("k", 1, HOUR), &batch).await);
    assert_eq!(again.result, Some(json("[1,0,1,2]")));
    let fresh = [event("a", "1")];
    assert_eq!(stored(attempt(&stores, &once("k", 1, HOUR), &fresh).await), again, "the key alone decides");
    assert_eq!(attempt(&stores, &once("k", 2, HOUR), &fresh).await, Written::Mismatch);
    assert_eq!((top(&stores, "a").await, top(&stores, "missing").await), (Some(2), Some(0)));
    assert_eq!(reader.signals().await, []);

    let event = &stores.rooms.history(&named("a"), 0, 1).await.unwrap().unwrap().events[0];
    let AppendOutcome::Appended { event: appended, .. } = &first[0] else { panic!("not appended") };
    assert_eq!(event, appended);
}

pub(crate) async fn without_a_once_key_every_batch_is_new(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_room(&stores, &new_room("a")).await;
    for expected in 1..=2 {
        assert_eq!(offsets(&now(attempt(&stores, &system(), &[event("a", "1")]).await)), [expected]);
    }
    assert_eq!(append(&stores, &[event("a", "1")]).await, [3]);
    assert_eq!(now(attempt(&stores, &system(), &[]).await), []);
}

pub(crate) async fn a_batch_that_was_refused_as_a_whole_keeps_no_claim(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let batch = [event("late", "1"), event("dm:b:a", "1")];
    for _ in 0..2 {
        let refused = [AppendOutcome::Refused(ErrorCode::NotFound), AppendOutcome::Refused(ErrorCode::RoomNameInvalid)];
        assert_eq!(now(attempt(&stores, &once("k", 1, HOUR), &batch).await), refused);
    }
    create_room(&stores, &new_room("late")).await;
    assert_eq!(offsets(&now(attempt(&stores, &once("k", 2, HOUR), &batch).await)), [1, 0]);
    assert_eq!(stored(attempt(&stores, &once("k", 2, HOUR), &batch).await).result, Some(json("[1,0]")));
}

pub(crate) async fn a_batch_without_events_keeps_its_claim(backend: &dyn Backend) {
    let stores = backend.stores().await;
    assert_eq!(now(attempt(&stores, &once("k", 1, HOUR), &[]).await), []);
    assert_eq!(stored(attempt(&stores, &once("k", 1, HOUR), &[]).await).result, Some(json("[]")));
    assert_eq!(attempt(&stores, &once("k", 2, HOUR), &[]).await, Written::Mismatch);
}

pub(crate) async fn message_ids_are_deduplicated_under_a_once_key_too(backend: &dyn Backend) {
    let stores = backend.stores().await;
    create_room(&stores, &new_room("a")).await;
    append(&stores, &[with_id(event("a", "1"), "m")]).await;
    let batch = [with_id(event("a", "1"), "m"), with_id(event("a", "2"), "n"), with_id(event("a", "2"), "n")];
    let outcomes = now(attempt(&stores, &once("k", 1, HOUR), &batch).await);
    assert_eq!(offsets(&outcomes), [1, 2, 2]);
    assert!(matches!(outcomes[0], AppendOutcome::Duplicate(_)) && matches!(outcomes[2], AppendOutcome::Duplicate(_)));
    let same = [with_id(event("a", "1"), "m")];
    assert_eq!(offsets(&now(attempt(&stores, &once("all known", 1, HOUR), &same).await)), [1]);
    let again = stored(attempt(&stores, &once("all known", 1, HOUR), &same).await);
    assert_eq!(again.result, Some(json("[1]")), "a duplicate is no refusal");
    assert_eq!(top(&stores, "a").await, Some(2));
}

pub(crate) async fn the_audit_entry_goes_with_the_events(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let context = || WriteContext { once: once("k", 1, HOUR).once, ..audited("rooms.publish") };
    now(attempt(&stores, &context(), &[event("late", "1")]).await);
    assert_eq!(audit_actions(&stores).await, [""; 0], "nothing was done");
    create_room(&stores, &new_room("late")).await;
    now(attempt(&stores, &context(), &[event("late", "1")]).await);
    assert_eq!(audit_actions(&stores).await, ["rooms.publish"]);
    stored(attempt(&stores, &context(), &[event("late", "1")]).await);
    let other_body = WriteContext { once: once("k", 2, HOUR).once, ..context() };
    assert_eq!(attempt(&stores, &other_body, &[event("late", "1")]).await, Written::Mismatch);
    assert_eq!(audit_actions(&stores).await, ["rooms.publish"]);
    now(attempt(&stores, &audited("rooms.notify"), &[event("late", "2")]).await);
    assert_eq!(audit_actions(&stores).await, ["rooms.publish", "rooms.notify"]);
}

pub(crate) async fn equal_keys_at_once_append_once(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    create_room(&stores[0], &new_room("a")).await;
    let outcomes = contend(&stores, 20, |stores, n| async move {
        let batch = [event("a", "1"), event("a", "2"), event("user:7", "3")];
        let context = WriteContext { once: once("k", 1, HOUR).once, ..audited("rooms.publish") };
        let other = once("k", 2, HOUR);
        if n == 19 {
            // Whoever comes first decides which of the two bodies the key stands for.
            return (true, attempt(&stores, &other, &batch).await);
        }
        (false, attempt(&stores, &context, &batch).await)
    })
    .await;
    let firsts: Vec<_> = outcomes.iter().filter(|(_, written)| matches!(written, Written::Now(_))).collect();
    let [(is_other, Written::Now(first))] = firsts.as_slice() else { panic!("one effect expected: {outcomes:?}") };
    assert_eq!(offsets(first), [1, 2, 1]);
    let mut records = Vec::new();
    for (other, written) in &outcomes {
        match written {
            Written::Now(_) => {}
            Written::Replayed(record) => {
                assert_eq!(other, is_other);
                records.push(record);
            }
            Written::Mismatch => assert_ne!(other, is_other),
        }
    }
    assert!(records.iter().all(|record| record == &records[0] && record.result == Some(json("[1,2,1]"))));
    assert_eq!((top(&stores[1], "a").await, top(&stores[1], "user:7").await), (Some(2), Some(1)));
    assert_eq!(audit_actions(&stores[0]).await.len(), usize::from(!is_other));
}

pub(crate) async fn an_abandoned_batch_is_appended_once_or_can_be_again(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    create_room(&stores[0], &new_room("a")).await;
    let mut random = random();
    for round in 1..=30 {
        let context = once(&format!("k{round}"), 1, LONG);
        for _ in 0..3 {
            let polls = random.random_range(1..8);
            let batch = [event("a", "1")];
            let answer = answer();
            let going = stores[0].rooms.append_once(&context, &batch, &answer);
            let outcome: Option<StoreResult<_>> = abandoned(going, polls).await;
            if let Some(Err(error)) = outcome {
                assert!(error.is_transient(), "{error:?}");
            }
        }
        let written = eventually(async || {
            let outcome = stores[1].rooms.append_once(&context, &[event("a", "1")], &answer()).await;
            outcome.map_err(|error| assert!(error.is_transient(), "{error:?}"))
        })
        .await;
        match written {
            Written::Now(outcomes) => assert_eq!(offsets(&outcomes), [round]),
            Written::Replayed(record) => assert_eq!(record.result, Some(json(&format!("[{round}]")))),
            Written::Mismatch => panic!("it is the same request"),
        }
        assert_eq!(top(&stores[0], "a").await, Some(round));
    }
}

pub(crate) async fn batches_of_rooms_in_opposite_order_do_not_block_each_other(backend: &dyn Backend) {
    let stores = replicas(backend, 4).await;
    let names = ["a", "b", "c", "d"];
    for name in names {
        let outcome = now(stores[0].rooms.create(&system(), &new_room(name)).await.unwrap());
        assert!(matches!(outcome, RoomCreateOutcome::Created(_)));
    }
    contend(&stores, 24, |stores, n| async move {
        let mut batch = names.map(|name| event(name, "1"));
        batch.rotate_left(n % 4);
        if n % 2 == 0 {
            batch.reverse();
        }
        eventually(async || match stores.rooms.append_once(&once(&n.to_string(), 1, HOUR), &batch, &answer()).await {
            Ok(written) => Ok(written),
            Err(error) if error.is_transient() => Err(error),
            Err(error) => panic!("{error:?}"),
        })
        .await;
    })
    .await;
    for name in names {
        assert_eq!(top(&stores[0], name).await, Some(24));
    }
}
