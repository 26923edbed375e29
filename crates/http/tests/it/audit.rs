//! The audit log over HTTP: what is written down, and how it is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use switchboard_http::router;
use switchboard_model::audit::{AuditFilter, AuditOrder, AuditRecord};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::{AuditStore, StoreError, StoreResult};
use tower::ServiceExt as _;

use crate::harness::Replica;

const AUDIT: &str = "/api/v1/audit";
const EXPORT: &str = "/api/v1/audit/export";

async fn entries(replica: &Replica, path: &str) -> Vec<Value> {
    let answer = replica.ask("GET", path, "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["items"].as_array().unwrap().clone()
}

async fn ok(replica: &Replica, method: &str, path: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = replica.ask(method, path, &body).await;
    assert!((200..300).contains(&answer.status), "{method} {path}: {}", answer.text());
    if answer.body.is_empty() { Value::Null } else { answer.json() }
}

fn spec(name: &str) -> Value {
    json!({"name": name, "action": {"event": {"to": {"room": "lobby"}, "event": "tick"}}})
}

/// Makes one change of every administrative kind that this file is about, and returns what the log must say of
/// each: the action, and whether there is a state before and after.
async fn change_everything(replica: &Replica) -> Vec<(&'static str, bool, bool)> {
    let task = ok(replica, "POST", "/api/v1/tasks", spec("x")).await;
    let path = format!("/api/v1/tasks/{}", task["id"].as_str().unwrap());
    let mut edited = task["spec"].clone();
    edited["priority"] = json!(5);
    ok(replica, "PUT", &path, json!({"version": 1, "spec": edited})).await;
    edited["priority"] = json!(6);
    ok(replica, "PUT", "/api/v1/tasks/by-name/x", edited.clone()).await;
    ok(replica, "PUT", "/api/v1/tasks/by-name/x", edited).await;
    ok(replica, "PUT", "/api/v1/tasks/by-name/y", spec("y")).await;
    ok(replica, "POST", &format!("{path}/pause"), Value::Null).await;
    ok(replica, "POST", &format!("{path}/resume"), Value::Null).await;
    let secret = ok(replica, "POST", &format!("{path}/webhook-secrets"), json!({})).await;
    let secret = secret["webhook_secret"]["id"].as_str().unwrap().to_owned();
    ok(replica, "DELETE", &format!("{path}/webhook-secrets/{secret}"), Value::Null).await;
    let run = ok(replica, "POST", &format!("{path}/trigger"), json!({"input": "hush"})).await;
    let run = format!("/api/v1/runs/{}", run["run_id"].as_str().unwrap());
    ok(replica, "POST", &format!("{run}/cancel"), Value::Null).await;
    ok(replica, "POST", &format!("{run}/retry"), Value::Null).await;
    ok(replica, "DELETE", &path, Value::Null).await;
    ok(replica, "POST", "/api/v1/rooms", json!({"name": "lobby"})).await;
    ok(replica, "POST", "/api/v1/rooms/lobby/events", json!({"event": "tick", "payload": 1})).await;
    ok(replica, "DELETE", "/api/v1/rooms/lobby", Value::Null).await;
    let fleet = ok(replica, "GET", "/api/v1/settings/fleet", Value::Null).await;
    ok(replica, "PUT", "/api/v1/settings/fleet", json!({"version": fleet["version"], "value": fleet["value"]})).await;
    let value = json!({"value": "hush-hush"});
    ok(replica, "PUT", "/api/v1/secrets/crm", value.clone()).await;
    ok(replica, "PUT", "/api/v1/secrets/crm", value).await;
    ok(replica, "DELETE", "/api/v1/secrets/crm", Value::Null).await;
    let token = json!({"provider": {"token_url": "https://id.example/token"}, "refresh_token": "hush-hush"});
    ok(replica, "PUT", "/api/v1/tokens/crm", token).await;
    ok(replica, "POST", "/api/v1/tokens/crm/access", json!({})).await;
    ok(replica, "DELETE", "/api/v1/tokens/crm", Value::Null).await;
    let key = ok(replica, "POST", "/api/v1/api-keys", json!({"name": "k", "scopes": ["tasks:read"]})).await;
    let key = format!("/api/v1/api-keys/{}", key["key"]["id"].as_str().unwrap());
    ok(replica, "DELETE", &key, Value::Null).await;
    vec![
        ("task.create", false, true),
        ("task.update", true, true),
        ("task.update", true, true),
        ("task.create", false, true),
        ("task.pause", true, true),
        ("task.resume", true, true),
        ("webhook_secret.create", false, true),
        ("webhook_secret.delete", true, false),
        ("run.trigger", false, true),
        ("run.cancel", true, false),
        ("run.retry", true, false),
        ("task.delete", true, false),
        ("room.create", false, true),
        ("room.delete", true, false),
        ("setting.put", true, true),
        ("secret.put", true, true),
        ("secret.put", true, true),
        ("secret.delete", true, false),
        ("token.put", true, true),
        ("token.delete", true, false),
        ("api_key.create", false, true),
        ("api_key.revoke", false, false),
    ]
}

#[tokio::test]
async fn every_administrative_write_is_written_down_and_nothing_else() {
    let replica = Replica::boot().await;
    let expected = change_everything(&replica).await;
    let mut found = entries(&replica, AUDIT).await;
    found.reverse();
    let told: Vec<_> = found
        .iter()
        .map(|entry| (entry["action"].as_str().unwrap(), !entry["before"].is_null(), !entry["after"].is_null()))
        .collect();
    assert_eq!(told, expected);
    assert!(found.iter().all(|entry| entry["actor"].as_str().unwrap().starts_with("key:")));
    assert_eq!(found[1]["before"]["priority"], json!(0));
    assert_eq!(found[1]["after"]["priority"], json!(5));
    assert_eq!(found[9]["before"]["state"], json!("queued"));
    let text = serde_json::to_string(&found).unwrap();
    assert!(!text.contains("hush") && !text.contains("whsec_") && !text.contains("sbk_"), "{text}");
}

#[tokio::test]
async fn entries_are_filtered_and_read_page_by_page() {
    let replica = Replica::boot().await;
    change_everything(&replica).await;
    let all = entries(&replica, AUDIT).await;
    let count = async |query: &str| entries(&replica, &format!("{AUDIT}?{query}")).await.len();
    assert_eq!(count("action=task.create").await, 2);
    assert_eq!(count("action=task.").await, 7);
    assert_eq!(count("subject=lobby").await, 2);
    assert_eq!(count(&format!("actor={}", all[0]["actor"].as_str().unwrap())).await, all.len());
    assert_eq!(count("actor=user:ann").await, 0);
    let middle = all[7]["at"].as_str().unwrap();
    assert_eq!(count(&format!("from={middle}")).await + count(&format!("to={middle}")).await, all.len());

    let mut paged = Vec::new();
    let mut path = format!("{AUDIT}?limit=5");
    loop {
        let page = replica.ask("GET", &path, "").await.json();
        paged.extend(page["items"].as_array().unwrap().clone());
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("{AUDIT}?limit=5&cursor={cursor}");
    }
    assert_eq!(paged, all);
    for bad in ["cursor=x", "limit=0", "from=yesterday", "colour=red"] {
        let problem = replica.ask("GET", &format!("{AUDIT}?{bad}"), "").await.problem();
        assert!(matches!(problem.code, ErrorCode::ValidationFailed | ErrorCode::BadRequest), "{bad}");
    }
}

#[tokio::test]
async fn an_export_holds_everything_oldest_first() {
    let replica = Replica::boot().await;
    for index in 0..230 {
        ok(&replica, "POST", "/api/v1/rooms", json!({"name": format!("room:{index}")})).await;
    }
    let export = replica.ask("GET", EXPORT, "").await;
    assert_eq!(export.header("content-type"), Some("application/x-ndjson"));
    assert!(export.header("content-disposition").unwrap().starts_with("attachment; filename="));
    let text = export.text();
    assert!(text.ends_with('\n'));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let subjects: Vec<_> = lines.iter().map(|line| line["subject"].as_str().unwrap().to_owned()).collect();
    assert_eq!(subjects, (0..230).map(|index| format!("room:{index}")).collect::<Vec<_>>());
    let mut newest = entries(&replica, &format!("{AUDIT}?limit=230")).await;
    newest.reverse();
    assert_eq!(newest, lines);
    let one = replica.ask("GET", &format!("{EXPORT}?subject=room:7"), "").await.text();
    assert_eq!(one.lines().count(), 1);
    assert_eq!(replica.ask("GET", &format!("{EXPORT}?actor=nobody"), "").await.text(), "");
}

/// A log whose database goes away after some pages.
struct FailsLater {
    pages_left: AtomicU32,
    log: Arc<dyn AuditStore>,
}

#[async_trait]
impl AuditStore for FailsLater {
    async fn list(
        &self,
        filter: &AuditFilter,
        order: AuditOrder,
        page: &PageRequest,
    ) -> StoreResult<Page<AuditRecord>> {
        let left = self.pages_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(_) => self.log.list(filter, order, page).await,
            Err(_) => Err(StoreError::Unavailable("gone".into())),
        }
    }

    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        self.log.sweep(age, limit).await
    }
}

#[tokio::test]
async fn an_export_that_cannot_go_on_is_visibly_broken() {
    let replica = Replica::boot().await;
    for index in 0..150 {
        ok(&replica, "POST", "/api/v1/rooms", json!({"name": format!("room:{index}")})).await;
    }
    for (pages, is_begun) in [(0, false), (1, true), (2, true)] {
        let mut api = replica.api.clone();
        api.stores.audit =
            Arc::new(FailsLater { pages_left: AtomicU32::new(pages), log: replica.api.stores.audit.clone() });
        let request = Request::get(EXPORT).header("authorization", format!("Bearer {}", replica.admin));
        let response = router(api).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status().as_u16(), if is_begun { 200 } else { 503 });
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        assert_eq!(body.is_err(), pages == 1, "{pages} pages");
    }
}
