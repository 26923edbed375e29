//! Streams over HTTP: what producers and readers are told, and who may be one.

use serde_json::{Value, json};
use switchboard_model::scope::Scope;
use switchboard_model::user::UserRole;
use switchboard_model::wire::code::ErrorCode;

use crate::harness::{Answer, Replica};

const EVENTS: (&str, &str) = ("accept", "text/event-stream");

/// Opens a stream; returns its path and its fence.
async fn open(replica: &Replica, request: Value) -> (String, i64) {
    let answer = replica.ask("POST", "/api/v1/streams", &request.to_string()).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let opened = answer.json();
    let path = format!("/api/v1/streams/{}", opened["stream"]["id"].as_str().unwrap());
    assert_eq!(answer.header("location"), Some(path.as_str()));
    (path, opened["fence"].as_i64().unwrap())
}

async fn append(replica: &Replica, path: &str, request: Value) -> Answer {
    replica.ask("POST", &format!("{path}/chunks"), &request.to_string()).await
}

/// Asks for events and returns the whole answer, which must end by itself.
async fn events(replica: &Replica, path: &str, last_id: Option<&str>) -> Answer {
    let mut headers = vec![EVENTS];
    headers.extend(last_id.map(|id| ("last-event-id", id)));
    replica.ask_with("GET", &format!("{path}/chunks"), "", &headers).await
}

#[tokio::test]
async fn a_stream_is_opened_written_read_and_closed() {
    let replica = Replica::boot().await;
    let (path, fence) = open(&replica, json!({"producer": "pen/1"})).await;
    let shown = replica.ask("GET", &path, "").await.json();
    assert_eq!((&shown["state"], &shown["content"], &shown["tail"]), (&json!("open"), &json!("text"), &json!(0)));

    let chunks = json!({"fence": fence, "first": 1, "chunks": ["é\u{0}", "\r\n🦀"]});
    for _ in 0..2 {
        let answer = append(&replica, &path, chunks.clone()).await;
        assert_eq!(answer.json(), json!({"tail": 2, "stopping": false}));
    }
    let beat = append(&replica, &path, json!({"fence": fence, "first": 3})).await;
    assert_eq!(beat.json()["tail"], 2);
    let hole = append(&replica, &path, json!({"fence": fence, "first": 4, "chunks": ["x"]})).await.problem();
    assert_eq!((hole.status, hole.code), (409, ErrorCode::Conflict));
    let stale = append(&replica, &path, json!({"fence": fence - 1, "first": 3, "chunks": ["x"]})).await.problem();
    assert_eq!((stale.status, stale.code), (409, ErrorCode::Fenced));

    let read = replica.ask("GET", &format!("{path}/chunks?after=1"), "").await.json();
    assert_eq!(read["chunks"], json!([{"seq": 2, "data": "\r\n🦀"}]));
    assert_eq!((&read["next"], &read["ended"]), (&json!(2), &json!(false)));

    let close = json!({"fence": fence, "state": "failed", "reason": "no ink"});
    for _ in 0..2 {
        let answer = replica.ask("POST", &format!("{path}/close"), &close.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let late = append(&replica, &path, json!({"fence": fence, "first": 3, "chunks": ["x"]})).await.problem();
    assert_eq!(late.code, ErrorCode::Fenced);
    let read = replica.ask("GET", &format!("{path}/chunks"), "").await.json();
    assert_eq!((&read["stream"]["state"], &read["stream"]["reason"]), (&json!("failed"), &json!("no ink")));
    assert_eq!((&read["ended"], read["chunks"].as_array().unwrap().len()), (&json!(true), 2));
}

#[tokio::test]
async fn events_carry_ids_end_with_a_state_and_nothing_follows() {
    let replica = Replica::boot().await;
    let (path, fence) = open(&replica, json!({})).await;
    let end = json!({"state": "completed"});
    append(&replica, &path, json!({"fence": fence, "first": 1, "chunks": ["a\nb", "🦀"], "end": end})).await;
    let answer = events(&replica, &path, None).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    assert_eq!(answer.header("content-encoding"), None);
    let first = "id: 1\nevent: chunk\ndata: {\"seq\":1,\"data\":\"a\\nb\"}\n\n";
    let second = "id: 2\nevent: chunk\ndata: {\"seq\":2,\"data\":\"🦀\"}\n\n";
    let last = "id: 2.end\nevent: end\ndata: {\"state\":\"completed\"}\n\n";
    assert_eq!(answer.text(), format!("{first}{second}{last}"));
    assert_eq!(events(&replica, &path, Some("1")).await.text(), format!("{second}{last}"));
    assert_eq!(events(&replica, &path, Some("2")).await.text(), last, "the end was not seen");
    let over = events(&replica, &path, Some("2.end")).await;
    assert_eq!((over.status, over.text().as_str()), (204, ""));
    assert_eq!(events(&replica, &path, Some("x")).await.problem().status, 422);
}

#[tokio::test]
async fn bytes_go_as_base64() {
    let replica = Replica::boot().await;
    let (path, fence) = open(&replica, json!({"content": "binary"})).await;
    let bad = append(&replica, &path, json!({"fence": fence, "first": 1, "chunks": ["a b"]})).await.problem();
    assert_eq!((bad.status, bad.errors[0].field.as_str()), (422, "chunks[0]"));
    append(&replica, &path, json!({"fence": fence, "first": 1, "chunks": ["AP8K"]})).await;
    let read = replica.ask("GET", &format!("{path}/chunks"), "").await.json();
    assert_eq!(read["chunks"], json!([{"seq": 1, "data": "AP8K"}]));
}

#[tokio::test]
async fn a_repeated_opening_gives_the_same_stream_and_fence() {
    let replica = Replica::boot().await;
    let open = async |body: &str| replica.ask_with("POST", "/api/v1/streams", body, &[("idempotency-key", "k")]).await;
    let (first, again) = (open("{}").await, open("{}").await);
    assert_eq!((first.status, first.json()), (201, again.json()));
    assert_eq!(open(r#"{"content":"binary"}"#).await.problem().code, ErrorCode::IdempotencyMismatch);
}

#[tokio::test]
async fn a_reader_waits_for_what_comes() {
    let replica = Replica::boot().await;
    let (path, fence) = open(&replica, json!({})).await;
    let waiting = format!("{path}/chunks?wait=20s");
    let (read, _) = tokio::join!(replica.ask("GET", &waiting, ""), async {
        append(&replica, &path, json!({"fence": fence, "first": 1, "chunks": ["a"]})).await
    });
    assert_eq!(read.json()["chunks"], json!([{"seq": 1, "data": "a"}]));
    let nothing = replica.ask("GET", &format!("{path}/chunks?after=1&wait=10ms"), "").await.json();
    assert_eq!((&nothing["chunks"], &nothing["next"]), (&json!([]), &json!(1)));
    assert_eq!(replica.ask("GET", &format!("{path}/chunks?wait=1h"), "").await.problem().status, 422);
}

#[tokio::test]
async fn a_stop_is_told_to_the_producer() {
    let replica = Replica::boot().await;
    let (path, fence) = open(&replica, json!({})).await;
    assert_eq!(replica.ask("POST", &format!("{path}/stop"), "").await.status, 202);
    let answer = append(&replica, &path, json!({"fence": fence, "first": 1})).await.json();
    assert_eq!(answer["stopping"], true);
    let close = json!({"fence": fence, "state": "cancelled"}).to_string();
    replica.ask("POST", &format!("{path}/close"), &close).await;
    assert_eq!(replica.ask("POST", &format!("{path}/stop"), "").await.problem().code, ErrorCode::Conflict);
    let audited = replica.ask("GET", "/api/v1/audit?action=stream.stop", "").await.json();
    assert_eq!(audited["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_stream_is_there_for_its_user_and_for_those_with_the_scope() {
    let replica = Replica::boot().await;
    let ann = replica.user("ann", UserRole::User).await;
    let bob = replica.token("bob", UserRole::User).await;
    let operator = replica.token("olga", UserRole::Operator).await;
    let ann_token = replica.login("ann").await.access_token;
    let reader = replica.key(&[Scope::StreamsRead]).await;
    let other = replica.key(&[Scope::RoomsWrite]).await;
    let (path, fence) = open(&replica, json!({"user_id": ann.id})).await;
    let (nobodys, _) = open(&replica, json!({})).await;
    let chunks = format!("{path}/chunks");
    for (bearer, expected) in [(&ann_token, 200), (&bob, 404), (&operator, 200), (&reader, 200), (&other, 403)] {
        for path in [&path, &chunks] {
            assert_eq!(replica.ask_as(bearer, "GET", path, "").await.status, expected);
        }
    }
    for bearer in [&ann_token, &bob] {
        assert_eq!(replica.ask_as(bearer, "GET", &nobodys, "").await.status, 404);
        let body = json!({"fence": fence, "first": 1, "chunks": ["x"]}).to_string();
        assert_eq!(replica.ask_as(bearer, "POST", &chunks, &body).await.status, 403);
    }
    let stop = format!("{path}/stop");
    for (bearer, expected) in [(&bob, 404), (&reader, 403), (&ann_token, 202), (&operator, 202)] {
        assert_eq!(replica.ask_as(bearer, "POST", &stop, "").await.status, expected);
    }
    let gone = "/api/v1/streams/0190a0b0-0000-7000-8000-000000000000";
    assert_eq!(replica.ask_as(&other, "GET", gone, "").await.status, 403, "existence is not told to everybody");
}

#[tokio::test]
async fn requests_are_checked() {
    let replica = Replica::boot().await;
    let (path, fence) = open(&replica, json!({})).await;
    for bad in [
        json!({"fence": fence, "first": 0, "chunks": ["a"]}),
        json!({"fence": fence, "first": 1, "chunks": [""]}),
        json!({"fence": fence, "first": 1, "chunks": [1]}),
        json!({"fence": fence, "first": 1, "end": {"state": "open"}}),
        json!({"fence": fence, "first": 1, "stop": true}),
        json!({"fence": fence, "first": 1, "chunks": vec!["a"; 501]}),
    ] {
        assert_eq!(append(&replica, &path, bad.clone()).await.problem().status, 422, "{bad}");
    }
    let large = "x".repeat(64 * 1024 + 1);
    let answer = append(&replica, &path, json!({"fence": fence, "first": 1, "chunks": [large]})).await.problem();
    assert_eq!(answer.code, ErrorCode::PayloadTooLarge);
    let gone =
        append(&replica, "/api/v1/streams/0190a0b0-0000-7000-8000-000000000000", json!({"fence": 1, "first": 1}));
    assert_eq!(gone.await.problem().status, 404);
}

#[tokio::test]
async fn a_worker_adds_to_the_output_of_its_run() {
    let replica = Replica::boot().await;
    let spec = json!({"name": "job", "action": {"pull": {}}, "max_attempts": 2});
    let task = replica.ask("POST", "/api/v1/tasks", &spec.to_string()).await.json();
    let trigger = format!("/api/v1/tasks/{}/trigger", task["id"].as_str().unwrap());
    let id = replica.ask("POST", &trigger, "{}").await.json()["run_id"].as_str().unwrap().to_owned();
    let output = format!("/api/v1/runs/{id}/output");
    let empty = replica.ask("GET", &output, "").await.json();
    assert_eq!(empty, json!({"run_state": "queued", "chunks": [], "next": 0, "ended": false}));

    let lease = async || {
        let request = json!({"request_id": uuid::Uuid::new_v4(), "worker": "w"}).to_string();
        replica.ask("POST", "/api/v1/pools/default/lease", &request).await.json()["runs"][0]["fence"].as_i64().unwrap()
    };
    let write = async |fence: i64, text: &str| {
        replica.ask("POST", &output, &json!({"fence": fence, "chunks": [text]}).to_string()).await
    };
    let read = async || {
        let read = replica.ask("GET", &output, "").await.json();
        let text: String =
            read["chunks"].as_array().unwrap().iter().map(|chunk| chunk["data"].as_str().unwrap()).collect();
        (text, read["stream"]["state"].as_str().unwrap().to_owned())
    };
    let first = lease().await;
    assert_eq!(write(first + 1, "x").await.problem().code, ErrorCode::Fenced);
    assert_eq!(write(first, "one ").await.json()["tail"], 1);
    assert_eq!(write(first, "two ").await.json()["tail"], 2);
    let report = json!({"fence": first, "error": "no", "kind": "retry", "delay": "1ms"}).to_string();
    replica.ask("POST", &format!("/api/v1/runs/{id}/fail"), &report).await;
    assert_eq!(read().await, ("one two ".to_owned(), "failed".to_owned()));

    replica.api.stores.runs.promote(10).await.unwrap();
    let second = loop {
        let request = json!({"request_id": uuid::Uuid::new_v4(), "worker": "w"}).to_string();
        let runs = replica.ask("POST", "/api/v1/pools/default/lease", &request).await.json()["runs"].clone();
        if let Some(fence) = runs[0]["fence"].as_i64() {
            break fence;
        }
        replica.api.stores.runs.promote(10).await.unwrap();
    };
    assert!(!replica.ask("GET", &output, "").await.json()["ended"].is_null());
    assert_eq!(write(first, "late ").await.problem().code, ErrorCode::Fenced);
    assert_eq!(write(second, "three").await.json()["tail"], 3);
    let beat = json!({"fence": second}).to_string();
    assert_eq!(replica.ask("POST", &format!("/api/v1/runs/{id}/heartbeat"), &beat).await.status, 200);
    assert_eq!(read().await, ("one two three".to_owned(), "open".to_owned()));
    replica.ask("POST", &format!("/api/v1/runs/{id}/finish"), &beat).await;
    assert_eq!(read().await, ("one two three".to_owned(), "completed".to_owned()));
    let stream = replica.ask("GET", &output, "").await.json()["stream"]["id"].as_str().unwrap().to_owned();
    let stop = replica.ask("POST", &format!("/api/v1/streams/{stream}/stop"), "").await.problem();
    assert_eq!(stop.code, ErrorCode::Conflict, "a run is cancelled, its output is not stopped");
}
