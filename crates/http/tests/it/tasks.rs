//! Tasks and runs over HTTP.

use serde_json::{Value, json};
use switchboard_model::wire::code::ErrorCode;

use crate::harness::{Answer, Replica};

fn spec(name: &str) -> Value {
    json!({"name": name, "action": {"event": {"to": {"room": "lobby"}, "event": "tick", "payload": {"n": 1}}}})
}

async fn create(replica: &Replica, spec: &Value) -> Value {
    let answer = replica.ask("POST", "/api/v1/tasks", &spec.to_string()).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()
}

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap()
}

#[tokio::test]
async fn a_task_is_created_found_edited_and_deleted() {
    let replica = Replica::boot().await;
    let answer = replica.ask("POST", "/api/v1/tasks", &spec("jobs/tick").to_string()).await;
    let task = answer.json();
    let path = format!("/api/v1/tasks/{}", id(&task));
    assert_eq!(answer.header("location"), Some(&*path));
    assert_eq!(replica.ask("GET", &path, "").await.json(), task);
    assert_eq!(replica.ask("GET", "/api/v1/tasks/by-name/jobs%2Ftick", "").await.json(), task);

    let mut edited = task["spec"].clone();
    edited["priority"] = json!(5);
    let update = json!({"version": task["version"], "spec": edited}).to_string();
    let after = replica.ask("PUT", &path, &update).await;
    assert_eq!((after.status, &after.json()["spec"]["priority"]), (200, &json!(5)));
    let problem = replica.ask("PUT", &path, &update).await.problem();
    assert_eq!(problem.code, ErrorCode::VersionMismatch);

    assert_eq!(replica.ask("POST", &format!("{path}/pause"), "").await.json()["spec"]["is_active"], json!(false));
    assert_eq!(replica.ask("POST", &format!("{path}/resume"), "").await.json()["spec"]["is_active"], json!(true));
    assert_eq!(replica.ask("GET", &format!("{path}/skips"), "").await.status, 200);
    assert_eq!(replica.ask("DELETE", &path, "").await.status, 204);
    assert_eq!(replica.ask("GET", &path, "").await.status, 404);
}

#[tokio::test]
async fn lists_are_read_page_by_page() {
    let replica = Replica::boot().await;
    for name in ["a", "b", "c"] {
        create(&replica, &spec(name)).await;
    }
    let first = replica.ask("GET", "/api/v1/tasks?limit=2", "").await.json();
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = replica.ask("GET", &format!("/api/v1/tasks?limit=2&cursor={cursor}"), "").await.json();
    assert_eq!(second["items"][0]["spec"]["name"], "c");
    assert_eq!(second["next_cursor"], Value::Null);
}

#[tokio::test]
async fn refused_definitions_name_the_field() {
    let replica = Replica::boot().await;
    let refused = async |change: Value| {
        let mut spec = spec("x");
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let problem = replica.ask("POST", "/api/v1/tasks", &spec.to_string()).await.problem();
        (problem.status, problem.code, problem.errors[0].field.clone())
    };
    assert_eq!(refused(json!({"max_attempts": 0})).await, (422, ErrorCode::ValidationFailed, "max_attempts".into()));
    assert_eq!(
        refused(json!({"schedule": {"at": "2001-01-01T00:00:00Z"}})).await,
        (400, ErrorCode::ScheduleNeverFires, "schedule".into())
    );
    create(&replica, &spec("x")).await;
    assert_eq!(refused(json!({})).await, (409, ErrorCode::Duplicate, "name".into()));
}

#[tokio::test]
async fn triggers_make_runs_that_can_be_cancelled_and_retried() {
    let replica = Replica::boot().await;
    let task = create(&replica, &spec("x")).await;
    let trigger = format!("/api/v1/tasks/{}/trigger", id(&task));
    let made = replica.ask("POST", &trigger, r#"{"input":{"a":1},"dedupe_key":"k"}"#).await;
    assert_eq!(made.status, 201);
    let run = made.json()["run_id"].as_str().unwrap().to_owned();
    assert_eq!(made.header("location"), Some(&*format!("/api/v1/runs/{run}")));
    let again = replica.ask("POST", &trigger, r#"{"dedupe_key":"k"}"#).await;
    assert_eq!((again.status, again.json()), (200, json!({"run_id": run, "duplicate": true})));

    let path = format!("/api/v1/runs/{run}");
    assert_eq!(replica.ask("GET", &path, "").await.json()["input"], json!({"a": 1}));
    let list = format!("/api/v1/runs?task_id={}&state=queued", id(&task));
    assert_eq!(replica.ask("GET", &list, "").await.json()["items"].as_array().unwrap().len(), 1);

    let early = replica.ask("POST", &format!("{path}/retry"), "").await.problem();
    assert_eq!(early.code, ErrorCode::Conflict);
    let cancelled = replica.ask("POST", &format!("{path}/cancel"), "").await;
    assert_eq!((cancelled.status, cancelled.json()), (202, json!({"outcome": "cancelled"})));
    assert_eq!(replica.ask("POST", &format!("{path}/cancel"), "").await.problem().code, ErrorCode::RunEnded);
    assert_eq!(replica.ask("POST", &format!("{path}/retry"), "").await.status, 202);
}

#[tokio::test]
async fn overlap_policies_refuse_triggers_with_advice() {
    let replica = Replica::boot().await;
    for (overlap, advice) in [("skip", "policy"), ("queue", "queue_max")] {
        let mut spec = spec(overlap);
        spec["overlap"] = json!(overlap);
        spec["queue_max"] = json!(1);
        let task = create(&replica, &spec).await;
        let trigger = async || replica.ask("POST", &format!("/api/v1/tasks/{}/trigger", id(&task)), "").await;
        assert_eq!(trigger().await.status, 201);
        let refused = trigger().await;
        let problem = refused.problem();
        assert_eq!((problem.status, problem.code), (409, ErrorCode::Conflict), "{overlap}");
        assert!(problem.detail.contains(advice), "{}", problem.detail);
    }
}

#[tokio::test]
async fn a_repeated_creation_is_answered_as_the_first() {
    let replica = Replica::boot().await;
    let body = spec("x").to_string();
    let post = async |path: &str, body: &str, key: &str| -> Answer {
        replica.ask_with("POST", path, body, &[("idempotency-key", key)]).await
    };
    let first = post("/api/v1/tasks", &body, "k").await;
    let second = post("/api/v1/tasks", &body, "k").await;
    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!(first.json(), second.json());
    let other = post("/api/v1/tasks", &spec("y").to_string(), "k").await.problem();
    assert_eq!((other.status, other.code), (422, ErrorCode::IdempotencyMismatch));

    let trigger = format!("/api/v1/tasks/{}/trigger", id(&first.json()));
    let first_run = post(&trigger, "", "k").await.json();
    assert_eq!(post(&trigger, "", "k").await.json(), first_run, "another route is another scope");
    assert_ne!(post(&trigger, "", "k-2").await.json(), first_run);

    let room = post("/api/v1/rooms", r#"{"name":"lobby"}"#, "k").await.json();
    assert_eq!(post("/api/v1/rooms", r#"{"name":"lobby"}"#, "k").await.json(), room);
    assert_eq!(replica.ask("DELETE", "/api/v1/rooms/lobby", "").await.status, 204);
    let gone = post("/api/v1/rooms", r#"{"name":"lobby"}"#, "k").await.problem();
    assert_eq!(gone.code, ErrorCode::Conflict);

    let bad = post("/api/v1/rooms", r#"{"name":"x"}"#, "a b").await.problem();
    assert_eq!((bad.status, bad.errors[0].field.as_str()), (422, "idempotency-key"));
}
