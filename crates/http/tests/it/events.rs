//! Publishing and history over HTTP.

use serde_json::{Value, json};
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;

use crate::harness::Replica;

async fn lobby() -> Replica {
    let replica = Replica::boot().await;
    assert_eq!(replica.ask("POST", "/api/v1/rooms", r#"{"name":"lobby"}"#).await.status, 201);
    replica
}

const EVENTS: &str = "/api/v1/rooms/lobby/events";

#[tokio::test]
async fn what_is_published_is_read_back_verbatim() {
    let replica = lobby().await;
    let published = replica.ask("POST", EVENTS, r#"{"event":"tick","payload":{"a" : "\ud800"}}"#).await;
    assert_eq!(published.status, 201);
    assert_eq!(published.json()["position"]["offset"], json!(1));
    let page = replica.ask("GET", EVENTS, "").await;
    assert!(page.text().contains(r#""payload":{"a" : "\ud800"}"#), "{}", page.text());
    let page = replica.ask("GET", &format!("{EVENTS}?after=1&limit=5"), "").await.json();
    assert_eq!((&page["top"], &page["events"]), (&json!(1), &json!([])));
}

#[tokio::test]
async fn a_batch_says_what_became_of_each_event() {
    let replica = lobby().await;
    let big = "x".repeat(61 * 1024);
    let batch = json!({"events": [
        {"event": "a", "payload": 1},
        {"event": "run.started", "payload": 2},
        {"event": "b", "payload": big},
        {"event": "c", "payload": 3, "ephemeral": true},
        {"event": "d", "payload": 4},
    ]});
    let answer = replica.ask("POST", EVENTS, &batch.to_string()).await;
    assert_eq!(answer.status, 201);
    let items = answer.json()["items"].clone();
    assert_eq!(items[0]["ok"]["position"]["offset"], json!(1));
    assert_eq!(items[1]["error"]["code"], json!("forbidden"));
    assert_eq!(items[2]["error"]["code"], json!("payload_too_large"));
    assert_eq!(items[3]["ok"].get("position"), None);
    assert_eq!(items[4]["ok"]["position"]["offset"], json!(2));
}

#[tokio::test]
async fn a_repeated_publish_is_answered_byte_for_byte() {
    let replica = lobby().await;
    let post = async |path: &str, body: &str, key: &str| {
        replica.ask_with("POST", path, body, &[("idempotency-key", key)]).await
    };
    let single = r#"{"event":"a","payload":1}"#;
    let given = r#"{"event":"a","payload":1,"msg_id":"own"}"#;
    let batch = r#"{"events":[{"event":"a","payload":1},{"event":"sb.x","payload":2},{"event":"b","payload":3}]}"#;
    for (path, body, key) in [
        (EVENTS, single, "k"),
        (EVENTS, batch, "k-2"),
        (EVENTS, given, "k-3"),
        ("/api/v1/users/ann/events", single, "k"),
        ("/api/v1/users/ann/events", batch, "k-2"),
    ] {
        let first = post(path, body, key).await;
        assert_eq!(first.status, 201, "{}", first.text());
        assert_eq!(first.header("content-type"), Some("application/json"));
        let again = post(path, body, key).await;
        assert_eq!((again.status, again.text()), (201, first.text()));
        let other = post(path, r#"{"event":"a","payload":4}"#, key).await.problem();
        assert_eq!((other.status, other.code), (422, ErrorCode::IdempotencyMismatch));
    }
    assert_eq!(replica.ask("GET", EVENTS, "").await.json()["top"], json!(4));
    assert_eq!(replica.ask("GET", "/api/v1/rooms/user:ann", "").await.json()["top"], json!(3));
}

#[tokio::test]
async fn a_key_is_taken_by_ephemeral_events_and_left_by_refused_ones() {
    let replica = lobby().await;
    let post = async |body: &str, key: &str| replica.ask_with("POST", EVENTS, body, &[("idempotency-key", key)]).await;
    let typing = r#"{"event":"typing","payload":1,"ephemeral":true}"#;
    let first = post(typing, "k").await;
    assert_eq!((first.status, post(typing, "k").await.text()), (201, first.text()));
    assert_eq!(post(r#"{"event":"a","payload":1}"#, "k").await.problem().code, ErrorCode::IdempotencyMismatch);

    assert_eq!(post(r#"{"event":"sb.x","payload":1}"#, "k-2").await.problem().code, ErrorCode::Forbidden);
    let large = json!({"event": "a", "payload": "x".repeat(61 * 1024)}).to_string();
    assert_eq!(post(&large, "k-2").await.problem().code, ErrorCode::PayloadTooLarge);
    assert_eq!(post(r#"{"event":"a","payload":1}"#, "k-2").await.status, 201);
}

#[tokio::test]
async fn a_message_id_is_recognised_without_a_key() {
    let replica = lobby().await;
    let post =
        async || -> Value { replica.ask("POST", EVENTS, r#"{"event":"a","payload":1,"msg_id":"own"}"#).await.json() };
    let first = post().await;
    assert_eq!((&first["msg_id"], &first["duplicate"]), (&json!("own"), &json!(false)));
    let again = post().await;
    assert_eq!((&again["duplicate"], &again["position"]), (&json!(true), &first["position"]));
}

#[tokio::test]
async fn refused_events_have_the_status_of_their_code() {
    let replica = lobby().await;
    let refused = async |room: &str, body: Value| {
        let problem = replica.ask("POST", &format!("/api/v1/rooms/{room}/events"), &body.to_string()).await.problem();
        (problem.status, problem.code)
    };
    let tick = json!({"event": "tick", "payload": 1});
    assert_eq!(refused("lobby", json!({"event": "sb.x", "payload": 1})).await, (403, ErrorCode::Forbidden));
    assert_eq!(refused("nowhere", tick.clone()).await, (404, ErrorCode::NotFound));
    assert_eq!(refused("dm:b:a", tick).await, (422, ErrorCode::RoomNameInvalid));
    let big = json!({"event": "tick", "payload": "x".repeat(61 * 1024)});
    assert_eq!(refused("lobby", big).await, (413, ErrorCode::PayloadTooLarge));
}

#[tokio::test]
async fn users_are_reached_by_whoever_may() {
    let replica = Replica::boot().await;
    for (scope, status) in [
        (Scope::Users, 201),
        (Scope::Publish("user:".into()), 201),
        (Scope::Publish("user:ann".into()), 201),
        (Scope::Publish("user:bob".into()), 403),
        (Scope::RoomsWrite, 403),
    ] {
        let bearer = format!("Bearer {}", replica.key(std::slice::from_ref(&scope)).await);
        let body = r#"{"event":"note","payload":null}"#;
        let answer = replica.send("POST", "/api/v1/users/ann/events", body, &[("authorization", &bearer)]).await;
        assert_eq!(answer.status, status, "{scope}: {}", answer.text());
    }
    assert_eq!(replica.ask("GET", "/api/v1/rooms/user:ann", "").await.json()["top"], json!(3));
}
