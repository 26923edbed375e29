//! Calls over HTTP: how long a request waits, and what it is told when nobody answers.

use std::time::Duration;

use serde_json::{Value, json};
use switchboard_model::wire::code::ErrorCode;

use crate::harness::{Answer, Replica};

/// A replica whose requests may wait for a second.
async fn hasty() -> Replica {
    Replica::boot_with(|options| options.request_timeout = Duration::from_secs(3)).await
}

/// Asks a client of a user who has none yet.
async fn call(replica: &Replica, more: Value) -> Answer {
    let mut request = json!({"event": "tool.reverse", "payload": "hello", "when_absent": "wait"});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    replica.ask("POST", "/api/v1/users/ann/calls", &request.to_string()).await
}

#[tokio::test]
async fn a_request_that_says_nothing_of_time_is_told_how_its_call_ended() {
    let replica = hasty().await;
    let problem = call(&replica, json!({})).await.problem();
    assert_eq!((problem.status, problem.code), (504, ErrorCode::CallTimeout));
}

#[tokio::test]
async fn a_request_that_waits_less_than_its_call_is_given_the_open_call() {
    let replica = hasty().await;
    for more in [json!({"wait": "0s"}), json!({"wait": "1s"}), json!({"timeout": "30s"})] {
        let answer = call(&replica, more.clone()).await;
        let open = answer.json();
        assert_eq!((answer.status, &open["state"]), (202, &json!("offered")), "{more}");
        let path = format!("/api/v1/calls/{}", open["id"].as_str().unwrap());
        assert_eq!(answer.header("location"), Some(path.as_str()));
        assert_eq!(replica.ask("GET", &path, "").await.json()["state"], "offered");
    }
    let problem = call(&replica, json!({"wait": "2s"})).await.problem();
    assert_eq!((problem.status, problem.code), (422, ErrorCode::ValidationFailed));
}
