//! Tasks as code over HTTP: put by name, however often.

use futures_util::future::join_all;
use serde_json::{Value, json};
use switchboard_model::wire::code::ErrorCode;

use crate::harness::{Answer, Replica};

fn spec(name: &str, priority: i64) -> Value {
    json!({
        "name": name,
        "priority": priority,
        "schedule": {"every": {"interval": "1h"}},
        "action": {"event": {"to": {"room": "lobby"}, "event": "tick"}},
    })
}

fn path(name: &str) -> String {
    format!("/api/v1/tasks/by-name/{name}")
}

async fn put(replica: &Replica, path: &str, spec: &Value, headers: &[(&str, &str)]) -> Answer {
    replica.ask_with("PUT", path, &spec.to_string(), headers).await
}

#[tokio::test]
async fn a_put_makes_edits_or_leaves_a_task() {
    let replica = Replica::boot().await;
    let made = put(&replica, &path("jobs/a:b"), &spec("jobs/a:b", 1), &[]).await;
    let task = made.json();
    assert_eq!((made.status, made.header("etag")), (201, Some("\"1\"")), "{}", made.text());
    assert_eq!(made.header("location"), Some(&*format!("/api/v1/tasks/{}", task["id"].as_str().unwrap())));
    for same in ["jobs/a:b", "jobs%2Fa:b", "jobs%2Fa%3Ab"] {
        let unchanged = put(&replica, &path(same), &spec("jobs/a:b", 1), &[]).await;
        assert_eq!((unchanged.status, unchanged.json()), (200, task.clone()), "{same}");
        let read = replica.ask("GET", &path(same), "").await;
        assert_eq!((read.status, read.header("etag"), read.json()), (200, Some("\"1\""), task.clone()));
    }
    let edited = put(&replica, &path("jobs/a:b"), &spec("jobs/a:b", 2), &[]).await;
    assert_eq!((edited.status, edited.header("etag")), (200, Some("\"2\"")));
    assert_eq!(edited.json()["next_run_at"], task["next_run_at"], "the schedule does not move");
    assert_eq!(replica.ask("GET", &path("jobs"), "").await.problem().status, 404);
}

#[tokio::test]
async fn conditions_are_kept() {
    let replica = Replica::boot().await;
    let x = path("x");
    let refused = async |spec: &Value, header: (&str, &str)| {
        let problem = put(&replica, &x, spec, &[header]).await.problem();
        (problem.status, problem.code)
    };
    let mismatch = (409, ErrorCode::VersionMismatch);
    assert_eq!(refused(&spec("x", 1), ("if-match", "\"1\"")).await, mismatch);
    assert_eq!(refused(&spec("x", 1), ("if-match", "*")).await, mismatch);
    assert_eq!(put(&replica, &x, &spec("x", 1), &[("if-none-match", "*")]).await.status, 201);
    assert_eq!(refused(&spec("x", 1), ("if-none-match", "*")).await, mismatch);
    assert_eq!(put(&replica, &x, &spec("x", 2), &[("if-match", "\"1\"")]).await.status, 200);
    assert_eq!(refused(&spec("x", 3), ("if-match", "\"1\"")).await, mismatch);
    assert_eq!(put(&replica, &x, &spec("x", 3), &[("if-match", "*")]).await.json()["version"], json!(3));
    assert_eq!(refused(&spec("x", 4), ("if-match", "3")).await, (422, ErrorCode::ValidationFailed));
}

#[tokio::test]
async fn the_name_of_the_path_counts_and_refusals_name_the_field() {
    let replica = Replica::boot().await;
    let problem = put(&replica, &path("x"), &spec("y", 1), &[]).await.problem();
    assert_eq!((problem.status, problem.errors[0].field.as_str()), (422, "name"));
    let mut bad = spec("x", 1);
    bad["max_attempts"] = json!(0);
    let problem = put(&replica, &path("x"), &bad, &[]).await.problem();
    assert_eq!((problem.status, problem.errors[0].field.as_str()), (422, "max_attempts"));
    assert_eq!(put(&replica, &path("x"), &spec("x", 1), &[]).await.status, 201);
    let problem = put(&replica, &path("x"), &bad, &[]).await.problem();
    assert_eq!((problem.status, problem.errors[0].field.as_str()), (422, "max_attempts"));
}

#[tokio::test]
async fn parallel_puts_make_one_task() {
    let replica = Replica::boot().await;
    let x = path("x");
    let same = spec("x", 1);
    let answers = join_all((0..10).map(|_| put(&replica, &x, &same, &[]))).await;
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(created, 1);
    assert!(answers.iter().all(|answer| answer.json() == answers[0].json()));
}
