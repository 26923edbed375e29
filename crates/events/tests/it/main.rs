//! The bus over a real SQLite database: order, slow readers, and histories that cannot be continued.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod presence;
mod revocation;
mod sockets;
mod streams;

use switchboard_model::json_text::JsonText;
use switchboard_model::wire::frame::{NoticeFrame, ServerFrame};

use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::AppendOutcome::{Appended, Refused};

use bench::Bench;

#[tokio::test(flavor = "multi_thread")]
async fn local_and_foreign_events_arrive_in_one_order() {
    let bench = Bench::new().await;
    bench.create_room("lobby").await;
    let ann = bench.connect("ann").await;
    bench.send(&ann, r#"{"id":1,"op":"join","room":"lobby"}"#).await;
    let here = async {
        for _ in 0..15 {
            bench.publish_here("lobby", 10).await;
        }
    };
    // As another replica does: past the publisher of this one.
    let elsewhere = async {
        for _ in 0..15 {
            bench.publish_elsewhere("lobby", 10).await;
        }
    };
    tokio::join!(here, elsewhere);
    assert_eq!(bench.offsets(&ann, 300).await, (1..=300).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_slept_gets_everything_and_is_told() {
    let bench = Bench::new().await;
    bench.create_room("lobby").await;
    let slow = bench.connect("slow").await;
    let quick = bench.connect("quick").await;
    for session in [&slow, &quick] {
        bench.send(session, r#"{"id":1,"op":"join","room":"lobby"}"#).await;
    }
    for round in 1..=20 {
        bench.publish_here("lobby", 100).await;
        assert_eq!(bench.offsets(&quick, 100).await.last(), Some(&(round * 100)), "others are not delayed");
    }
    let frames = bench.frames_until(&slow, |frame| bench::offset(frame) == Some(2_000)).await;
    let offsets: Vec<i64> = frames.iter().filter_map(bench::offset).collect();
    assert_eq!(offsets, (1..=2_000).collect::<Vec<_>>());
    let is_told = |frame: &ServerFrame| matches!(frame, ServerFrame::Notice(NoticeFrame::Lag(_)));
    assert!(frames.iter().any(is_told));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_that_was_made_again_is_another_room() {
    let bench = Bench::new().await;
    bench.create_room("lobby").await;
    let ann = bench.connect("ann").await;
    bench.send(&ann, r#"{"id":1,"op":"join","room":"lobby"}"#).await;
    bench.publish_here("lobby", 5).await;
    assert_eq!(bench.offsets(&ann, 5).await, [1, 2, 3, 4, 5]);
    bench.delete_room("lobby").await;
    bench.create_private_room("lobby").await;
    let is_desync = |frame: &ServerFrame| matches!(frame, ServerFrame::Notice(NoticeFrame::Desync(_)));
    bench.frames_until(&ann, is_desync).await;
    bench.publish_here("lobby", 3).await;
    bench.publish_elsewhere("lobby", 3).await;
    // Nothing of the new room reaches who had joined the old one, and nobody joins it without a grant.
    bench.refused(&ann, r#"{"id":2,"op":"history","room":"lobby"}"#, ErrorCode::NotJoined).await;
    bench.refused(&ann, r#"{"id":3,"op":"join","room":"lobby"}"#, ErrorCode::NotFound).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_behind_retention_is_answered_honestly() {
    let bench = Bench::new().await;
    bench.create_room_keeping("lobby", 10).await;
    bench.publish_here("lobby", 100).await;
    while bench.stores.rooms.sweep(1_000).await.unwrap() > 0 {}
    let page = bench.stores.rooms.history(&"lobby".parse().unwrap(), 0, 1).await.unwrap().unwrap();
    assert_eq!((page.first_kept, page.top), (91, 100));
    let join = |offset: i64| {
        let since = serde_json::json!({"epoch": page.epoch, "offset": offset});
        serde_json::json!({"id": 1, "op": "join", "room": "lobby", "since": since}).to_string()
    };
    for (offset, is_recovered, replayed) in [(90, true, 10), (89, false, 0), (101, false, 0)] {
        let ann = bench.connect("ann").await;
        let reply = bench.send(&ann, &join(offset)).await;
        let joined: switchboard_model::wire::frame::Joined = reply.decode().unwrap();
        assert_eq!((joined.recovered, joined.replayed), (is_recovered, replayed), "after {offset}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_keeps_its_order_around_a_refused_event() {
    let bench = Bench::new().await;
    bench.create_room("lobby").await;
    let large = JsonText::parse(format!("\"{}\"", "x".repeat(61_440))).unwrap();
    let outcomes = bench.publish_with("lobby", vec![JsonText::null(), large, JsonText::null()]).await;
    assert!(matches!(&outcomes[0], Appended { position, .. } if position.offset == 1));
    assert_eq!(outcomes[1], Refused(ErrorCode::PayloadTooLarge));
    assert!(matches!(&outcomes[2], Appended { position, .. } if position.offset == 2));
}
