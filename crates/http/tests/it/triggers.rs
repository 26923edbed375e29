//! Triggers over HTTP whose caller waits for the end of the run.

use std::time::Duration;

use serde_json::{Value, json};
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;
use tokio::time::Instant;

use crate::harness::Replica;

async fn task(replica: &Replica) -> String {
    let spec = json!({"name": "x", "action": {"event": {"to": {"room": "lobby"}, "event": "tick"}}});
    let made = replica.ask("POST", "/api/v1/tasks", &spec.to_string()).await.json();
    format!("/api/v1/tasks/{}", made["id"].as_str().unwrap())
}

/// Waits until there is a run, and cancels it.
async fn cancel_the_run(replica: &Replica) {
    loop {
        let runs = replica.ask("GET", "/api/v1/runs", "").await.json();
        if let Some(run) = runs["items"][0]["id"].as_str() {
            assert_eq!(replica.ask("POST", &format!("/api/v1/runs/{run}/cancel"), "").await.status, 202);
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_answer_is_the_run_once_it_has_ended() {
    let replica = Replica::boot().await;
    let path = format!("{}/trigger?wait=20s", task(&replica).await);
    let started = Instant::now();
    let (answer, ()) = tokio::join!(replica.ask("POST", &path, r#"{"input":{"a" : 1}}"#), cancel_the_run(&replica));
    assert!(started.elapsed() < Duration::from_secs(15), "nobody waits longer than needed");
    assert_eq!((answer.status, &answer.json()["state"]), (200, &json!("cancelled")));
    assert!(answer.text().contains(r#""input":{"a" : 1}"#), "{}", answer.text());
}

#[tokio::test]
async fn the_answer_names_the_run_when_the_time_is_over() {
    let replica = Replica::boot().await;
    let task = task(&replica).await;
    for wait in ["50ms", "0s"] {
        let path = format!("{task}/trigger?wait={wait}");
        let answer = replica.ask_with("POST", &path, "", &[("idempotency-key", "k")]).await;
        let run = answer.json()["run_id"].as_str().unwrap().to_owned();
        assert_eq!((answer.status, answer.header("location")), (202, Some(&*format!("/api/v1/runs/{run}"))));
    }
    let runs = replica.ask("GET", "/api/v1/runs", "").await.json();
    assert_eq!(runs["items"].as_array().map(Vec::len), Some(1), "the second request waited for the run of the first");
}

#[tokio::test]
async fn a_wait_is_bounded_and_needs_the_right_to_read_runs() {
    let replica = Replica::boot().await;
    let path = task(&replica).await;
    let ask = async |query: &str| replica.ask("POST", &format!("{path}/trigger?{query}"), "").await.problem();
    let long = ask("wait=29s").await;
    assert_eq!((long.status, long.errors[0].field.as_str()), (422, "wait"));
    assert!(long.detail.contains("28s"), "{}", long.detail);
    assert_eq!(ask("wait=soon").await.code, ErrorCode::BadRequest);
    assert_eq!(ask("colour=red").await.code, ErrorCode::BadRequest);
    let bearer = format!("Bearer {}", replica.key(&[Scope::TasksWrite]).await);
    let trigger = async |query: &str| {
        replica.send("POST", &format!("{path}/trigger{query}"), "", &[("authorization", &bearer)]).await
    };
    assert_eq!(trigger("?wait=1s").await.problem().code, ErrorCode::Forbidden);
    assert_eq!(trigger("").await.status, 201);
    let runs: Value = replica.ask("GET", "/api/v1/runs", "").await.json();
    assert_eq!(runs["items"].as_array().map(Vec::len), Some(1), "a refused wait triggers nothing");
}
