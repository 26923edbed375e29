//! API keys, settings and instances over HTTP.

use serde_json::json;
use switchboard_model::wire::code::ErrorCode;

use crate::harness::Replica;

#[tokio::test]
async fn a_secret_is_shown_once() {
    let replica = Replica::boot().await;
    let body = r#"{"name":"deploy","scopes":["tasks:write","publish:chat:"],"ttl":"1h"}"#;
    let post = async || replica.ask_with("POST", "/api/v1/api-keys", body, &[("idempotency-key", "k")]).await;
    let made = post().await;
    assert_eq!(made.status, 201);
    let secret = made.json()["secret"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("sbk_"));
    let again = post().await;
    let problem = again.problem();
    assert_eq!((problem.status, problem.code), (409, ErrorCode::Duplicate));
    assert!(problem.detail.contains(made.json()["key"]["id"].as_str().unwrap()));
    let list = replica.ask("GET", "/api/v1/api-keys", "").await;
    assert_eq!(list.json()["items"].as_array().unwrap().len(), 2);
    for answer in [&again, &list] {
        assert!(!answer.text().contains(&secret));
    }
}

#[tokio::test]
async fn settings_are_compared_and_set() {
    let replica = Replica::boot().await;
    let path = "/api/v1/settings/fleet";
    let read = async || replica.ask("GET", path, "").await.json();
    assert_eq!(read().await, json!({"version": 0, "value": {"scheduler_enabled": true, "pause_all": false}}));
    let put = json!({"version": 0, "value": {"pause_all": true}}).to_string();
    let written = replica.ask("PUT", path, &put).await;
    assert_eq!((written.status, written.json()), (200, read().await));
    assert_eq!(read().await["value"]["pause_all"], json!(true));
    assert_eq!(replica.ask("PUT", path, &put).await.problem().code, ErrorCode::VersionMismatch);
    let unknown = json!({"version": 1, "value": {}, "colour": 1}).to_string();
    assert_eq!(replica.ask("PUT", path, &unknown).await.problem().code, ErrorCode::ValidationFailed);
}

#[tokio::test]
async fn instances_are_a_list() {
    let replica = Replica::boot().await;
    let list = replica.ask("GET", "/api/v1/instances?limit=10", "").await.json();
    assert_eq!((&list["items"][0]["name"], &list["next_cursor"]), (&json!("test"), &json!(null)));
    assert_eq!(list["uncovered_pools"], json!([]));
    assert!(list["items"][0].get("key_check").is_none(), "{list}");
}
