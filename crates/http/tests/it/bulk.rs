//! Many tasks and runs in one request, and runs that are queued again.

use serde_json::{Value, json};
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::limits::BULK_ITEMS;

use crate::harness::Replica;

fn pull(name: &str) -> Value {
    json!({"name": name, "action": {"pull": {}}})
}

async fn bulk(replica: &Replica, what: &str, items: &[Value]) -> Vec<Value> {
    let answer = replica.ask("POST", &format!("/api/v1/{what}/bulk"), &json!({what: items}).to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn each_task_has_an_outcome_of_its_own() {
    let replica = Replica::boot().await;
    let mut never = pull("never");
    never["schedule"] = json!({"cron": {"expression": "0 0 30 2 *"}});
    let items = bulk(&replica, "tasks", &[pull("a"), pull("a"), never, pull("b")]).await;
    let code = |item: &Value| item["error"]["code"].as_str().map(str::to_owned);
    let codes: Vec<_> = items.iter().map(code).collect();
    assert_eq!(codes, [None, Some("duplicate".to_owned()), Some("schedule_never_fires".to_owned()), None]);
    for (index, name) in [(0, "a"), (3, "b")] {
        let path = format!("/api/v1/tasks/{}", items[index]["ok"]["id"].as_str().unwrap());
        assert_eq!(replica.ask("GET", &path, "").await.json()["spec"]["name"], name);
    }
    let log = replica.ask("GET", "/api/v1/audit", "").await.json();
    let entries = log["items"].as_array().unwrap();
    let made: Vec<_> = entries.iter().filter(|entry| entry["action"] == "task.create_many").collect();
    assert_eq!(made.len(), 1, "{entries:?}");
    assert_eq!(made[0]["after"]["count"], 4);
}

#[tokio::test]
async fn each_run_has_an_outcome_of_its_own() {
    let replica = Replica::boot().await;
    let task = bulk(&replica, "tasks", &[pull("a")]).await[0]["ok"]["id"].clone();
    let runs = [
        json!({"task": "a", "input": {"n": 1}}),
        json!({"task": task, "dedupe_key": "k", "delay": "1h"}),
        json!({"task": "a", "dedupe_key": "k"}),
        json!({"task": "nobody"}),
    ];
    let items = bulk(&replica, "runs", &runs).await;
    assert_eq!(items[0]["ok"]["duplicate"], false);
    assert_eq!(items[2]["ok"], json!({"run_id": items[1]["ok"]["run_id"], "duplicate": true}));
    assert_eq!(items[3]["error"]["code"], "not_found");
    let run = replica.ask("GET", &format!("/api/v1/runs/{}", items[0]["ok"]["run_id"].as_str().unwrap()), "").await;
    assert_eq!(run.json()["input"], json!({"n": 1}));
}

#[tokio::test]
async fn a_repeated_bulk_request_is_answered_as_the_first_one_was() {
    let replica = Replica::boot().await;
    for (path, body, other) in [
        ("/api/v1/tasks/bulk", json!({"tasks": [pull("a"), pull("b")]}), json!({"tasks": [pull("c")]})),
        (
            "/api/v1/runs/bulk",
            json!({"runs": [{"task": "a"}, {"task": "nobody"}, {"task": "b"}]}),
            json!({"runs": [{"task": "a"}]}),
        ),
    ] {
        let ask =
            async |body: &Value| replica.ask_with("POST", path, &body.to_string(), &[("idempotency-key", "k")]).await;
        let (first, again) = (ask(&body).await, ask(&body).await);
        assert_eq!((first.status, first.json()), (200, again.json()), "{path}");
        assert_eq!(ask(&other).await.problem().code, ErrorCode::IdempotencyMismatch, "{path}");
    }
    let runs = replica.ask("GET", "/api/v1/runs", "").await.json();
    assert_eq!(runs["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn bulk_requests_have_bounds_of_their_own() {
    let replica = Replica::boot().await;
    let too_many: Vec<Value> = (0..=BULK_ITEMS).map(|_| json!({"task": "a"})).collect();
    for (path, body) in [
        ("/api/v1/tasks/bulk", json!({"tasks": []})),
        ("/api/v1/runs/bulk", json!({"runs": []})),
        ("/api/v1/runs/bulk", json!({"runs": too_many})),
    ] {
        assert_eq!(replica.ask("POST", path, &body.to_string()).await.problem().code, ErrorCode::ValidationFailed);
    }
    let large = json!({"runs": [{"task": "nobody", "input": "x".repeat(2 * 1024 * 1024)}]}).to_string();
    assert_eq!(replica.ask("POST", "/api/v1/runs/bulk", &large).await.status, 200, "above the usual limit");
    assert_eq!(replica.ask("POST", "/api/v1/tasks", &large).await.problem().code, ErrorCode::PayloadTooLarge);
    let huge = json!({"runs": [{"task": "a", "input": "x".repeat(17 * 1024 * 1024)}]}).to_string();
    assert_eq!(replica.ask("POST", "/api/v1/runs/bulk", &huge).await.problem().code, ErrorCode::PayloadTooLarge);
}

#[tokio::test]
async fn tasks_made_in_bulk_do_no_more_than_their_maker_may() {
    let replica = Replica::boot().await;
    let key = replica.key(&[Scope::TasksWrite]).await;
    let event = json!({"name": "e", "action": {"event": {"to": {"room": "lobby"}, "event": "tick"}}});
    let body = json!({"tasks": [pull("a"), event]}).to_string();
    let refused = replica.ask_as(&key, "POST", "/api/v1/tasks/bulk", &body).await.problem();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    assert_eq!(replica.ask("GET", "/api/v1/tasks/by-name/a", "").await.status, 404);
}

#[tokio::test]
async fn ended_runs_are_queued_again_page_by_page() {
    let replica = Replica::boot().await;
    bulk(&replica, "tasks", &[pull("a"), pull("b")]).await;
    let runs: Vec<Value> = (0..5).map(|n| json!({"task": if n < 3 { "a" } else { "b" }})).collect();
    let made = bulk(&replica, "runs", &runs).await;
    for item in &made {
        let path = format!("/api/v1/runs/{}/cancel", item["ok"]["run_id"].as_str().unwrap());
        assert_eq!(replica.ask("POST", &path, "").await.status, 202);
    }
    let task = replica.ask("GET", "/api/v1/tasks/by-name/a", "").await.json()["id"].clone();
    let redrive = async |body: Value| replica.ask("POST", "/api/v1/runs/redrive", &body.to_string()).await;
    let first = redrive(json!({"task_id": task, "state": "cancelled", "limit": 2})).await.json();
    assert_eq!((&first["queued"], &first["refused"]), (&json!(2), &json!(0)));
    assert_eq!(first["after"], made[1]["ok"]["run_id"], "oldest first");
    let rest = redrive(json!({"state": "cancelled", "after": first["after"]})).await.json();
    assert_eq!((&rest["queued"], &rest["after"]), (&json!(3), &Value::Null));
    let left = redrive(json!({"state": "dead"})).await.json();
    assert_eq!(left["queued"], 0);
    let queued = replica.ask("GET", "/api/v1/runs?state=queued", "").await.json();
    assert_eq!(queued["items"].as_array().unwrap().len(), 5);
    for bad in [json!({"state": "succeeded"}), json!({"state": "running"}), json!({"state": "dead", "limit": 1001})] {
        assert_eq!(redrive(bad).await.problem().code, ErrorCode::ValidationFailed);
    }
}
