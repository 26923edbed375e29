//! Rooms that somebody else holds, and retention beside them.

use switchboard_model::identity::Actor;
use switchboard_model::ids::RoomId;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{MessageId, NewEvent, NewRoom, Retention, RoomKind};
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::{AppendOutcome, Stores, WriteContext};
use switchboard_store_conformance::Backend as _;

use crate::backend::PgBackend;

pub(crate) async fn create(stores: &Stores, name: &str, retention: Retention) {
    let room = NewRoom { id: RoomId::new(), name: name.parse().unwrap(), kind: RoomKind::Public, retention };
    stores.rooms.create(&WriteContext::system("test"), &room).await.unwrap();
}

pub(crate) fn event(room: &str, payload: JsonText) -> NewEvent {
    NewEvent {
        room: room.parse().unwrap(),
        event: "note".parse().unwrap(),
        payload,
        msg_id: MessageId::given_or_new(None),
        sender: Actor::System("test"),
    }
}

fn offset(outcome: &Option<AppendOutcome>) -> Option<i64> {
    match outcome {
        Some(AppendOutcome::Appended { position, .. }) => Some(position.offset),
        _ => None,
    }
}

#[tokio::test]
async fn a_room_that_somebody_holds_is_passed_over_with_all_its_events() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    for name in ["busy", "free"] {
        create(&stores, name, Retention::default()).await;
    }
    let mut holder = backend.database.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM switchboard.rooms WHERE name = 'busy' FOR UPDATE").execute(&mut *holder).await.unwrap();
    let batch =
        ["busy", "free", "nowhere", "user:ann", "busy", "run:x", "free"].map(|room| event(room, JsonText::null()));
    let outcomes = stores.rooms.append_unless_busy(&batch).await.unwrap();
    let offsets: Vec<_> = outcomes.iter().map(offset).collect();
    assert_eq!(offsets, [None, Some(1), None, Some(1), None, None, Some(2)]);
    let refused = |code| Some(AppendOutcome::Refused(code));
    assert_eq!((&outcomes[0], &outcomes[4]), (&None, &None), "left alone");
    assert_eq!((&outcomes[2], &outcomes[5]), (&refused(ErrorCode::NotFound), &refused(ErrorCode::RoomNameInvalid)));
    holder.rollback().await.unwrap();
    let outcomes = stores.rooms.append_unless_busy(&batch).await.unwrap();
    assert_eq!(
        outcomes.iter().map(offset).collect::<Vec<_>>(),
        [Some(1), Some(3), None, Some(2), Some(2), None, Some(4)]
    );
    backend.close().await;
}

#[tokio::test]
async fn retention_deletes_no_more_than_its_share_at_once_and_all_in_the_end() {
    let backend = PgBackend::create().await;
    let stores = backend.stores().await;
    let keeps = |max_count| Retention { max_count, ..Retention::default() };
    for (name, max_count) in [("large", 10), ("small", 50)] {
        create(&stores, name, keeps(max_count)).await;
    }
    sqlx::query(
        "WITH grown AS (UPDATE switchboard.rooms SET top = 24000, bytes_total = 24000 RETURNING id)
         INSERT INTO switchboard.room_events (room_id, pos, msg_id, event, payload, sender, bytes_total, at)
         SELECT id, pos, pos::text, 'note', '1', 'system:test', pos, clock_timestamp()
         FROM grown CROSS JOIN generate_series(1, 24000) AS pos",
    )
    .execute(backend.database.pool())
    .await
    .unwrap();
    let mut passes = 0;
    loop {
        let deleted = stores.rooms.sweep(100).await.unwrap();
        assert!(deleted <= 10_000, "{deleted}");
        if deleted == 0 {
            break;
        }
        passes += 1;
        // Readers never see a hole: what is announced as kept is there.
        for name in ["large", "small"] {
            let page = stores.rooms.history(&name.parse().unwrap(), 0, 1).await.unwrap().unwrap();
            assert_eq!(page.events[0].offset, page.first_kept);
        }
    }
    assert!((5..=6).contains(&passes), "{passes}");
    for (name, first_kept) in [("large", 23_991), ("small", 23_951)] {
        let page = stores.rooms.history(&name.parse().unwrap(), 0, 1).await.unwrap().unwrap();
        assert_eq!(page.first_kept, first_kept);
    }
    backend.close().await;
}
