//! External workers over HTTP: leases, the wait for one, heartbeats, endings and who may do that.

use std::time::Duration;

use serde_json::{Value, json};
use switchboard_model::Timestamp;
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;
use tokio::time::Instant;
use uuid::Uuid;

use crate::harness::{Answer, Replica};

/// Makes a task that waits for external workers, and returns its path.
async fn pull_task(replica: &Replica, name: &str, pool: &str) -> String {
    let spec = json!({"name": name, "action": {"pull": {}}, "pool": pool, "timeout": "1h", "max_attempts": 2});
    let made = replica.ask("POST", "/api/v1/tasks", &spec.to_string()).await;
    assert_eq!(made.status, 201, "{}", made.text());
    format!("/api/v1/tasks/{}", made.json()["id"].as_str().unwrap())
}

async fn trigger(replica: &Replica, task: &str, input: &str) -> String {
    let answer = replica.ask("POST", &format!("{task}/trigger"), &format!(r#"{{"input":{input}}}"#)).await;
    answer.json()["run_id"].as_str().unwrap().to_owned()
}

fn request(more: Value) -> String {
    let mut request = json!({"request_id": Uuid::new_v4(), "worker": "box-1/7"});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request.to_string()
}

async fn lease(replica: &Replica, pool: &str, more: Value) -> Answer {
    replica.ask("POST", &format!("/api/v1/pools/{pool}/lease"), &request(more)).await
}

/// Leases the one run that there is.
async fn lease_one(replica: &Replica, pool: &str) -> (String, i64, Value) {
    let run = lease(replica, pool, json!({})).await.json()["runs"][0].clone();
    (format!("/api/v1/runs/{}", run["id"].as_str().unwrap()), run["fence"].as_i64().unwrap(), run)
}

#[tokio::test]
async fn a_run_is_leased_kept_alive_and_finished() {
    let replica = Replica::boot().await;
    let task = pull_task(&replica, "resize", "gpu").await;
    let id = trigger(&replica, &task, r#"{"b" : 1.0e5}"#).await;
    assert_eq!(lease(&replica, "default", json!({})).await.json(), json!({"runs": []}), "it is in another pool");

    let answer = lease(&replica, "gpu", json!({"max": 5, "lease": "30s"})).await;
    assert!(answer.text().contains(r#""input":{"b" : 1.0e5}"#), "{}", answer.text());
    let runs = answer.json()["runs"].as_array().unwrap().clone();
    let [run] = runs.as_slice() else { panic!("one run expected: {runs:?}") };
    assert_eq!((&run["id"], &run["task_name"], &run["attempt"]), (&json!(id), &json!("resize"), &json!(1)));
    assert_eq!((&run["max_attempts"], &run["reclaimed"], &run["timeout"]), (&json!(2), &json!(false), &json!("1h")));
    assert!(run["deadline_at"].is_string() && run["lease_until"].is_string());

    let path = format!("/api/v1/runs/{id}");
    let shown = replica.ask("GET", &path, "").await.json();
    assert_eq!((&shown["state"], &shown["leased_by"]), (&json!("running"), &json!("worker:box-1/7")));
    let beat = replica.ask("POST", &format!("{path}/heartbeat"), &json!({"fence": run["fence"]}).to_string()).await;
    assert_eq!((beat.status, &beat.json()["cancel_requested"]), (200, &json!(false)));
    let stale = json!({"fence": run["fence"].as_i64().unwrap() - 1}).to_string();
    for report in ["heartbeat", "finish", "release"] {
        let problem = replica.ask("POST", &format!("{path}/{report}"), &stale).await.problem();
        assert_eq!((problem.status, problem.code), (409, ErrorCode::Fenced), "{report}");
    }

    let end = json!({"fence": run["fence"], "result": {"size": 3}}).to_string();
    let finished = replica.ask("POST", &format!("{path}/finish"), &end).await;
    assert_eq!((finished.status, finished.json()), (200, json!({"state": "succeeded"})));
    let shown = replica.ask("GET", &path, "").await.json();
    assert_eq!((&shown["state"], &shown["result"]), (&json!("succeeded"), &json!({"size": 3})));
    let beat = replica.ask("POST", &format!("{path}/heartbeat"), &json!({"fence": run["fence"]}).to_string()).await;
    assert_eq!(beat.problem().code, ErrorCode::Fenced);
}

#[tokio::test]
async fn a_repeated_finish_is_answered_as_the_first_one_was() {
    let replica = Replica::boot().await;
    let task = pull_task(&replica, "t", "default").await;
    trigger(&replica, &task, "1").await;
    let (path, fence, _) = lease_one(&replica, "default").await;
    for _ in 0..2 {
        let answer = replica.ask("POST", &format!("{path}/finish"), &json!({"fence": fence}).to_string()).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"state": "succeeded"})));
    }
}

#[tokio::test]
async fn a_lease_that_is_asked_for_twice_gives_the_same_runs() {
    let replica = Replica::boot().await;
    let task = pull_task(&replica, "t", "default").await;
    for input in ["1", "2", "3"] {
        trigger(&replica, &task, input).await;
    }
    let body = request(json!({"max": 2}));
    let ask = async |pool: &str| {
        let answer = replica.ask("POST", &format!("/api/v1/pools/{pool}/lease"), &body).await.json();
        let runs = answer["runs"].as_array().unwrap().iter();
        runs.map(|run| (run["id"].to_string(), run["fence"].as_i64())).collect::<Vec<_>>()
    };
    let (first, again) = (ask("default").await, ask("default").await);
    assert_eq!((first.len(), &first), (2, &again));
    assert_eq!(ask("other").await, [], "a request is one to its pool");
    let third = lease(&replica, "default", json!({"max": 2})).await.json();
    assert_eq!(third["runs"].as_array().unwrap().len(), 1, "another request gets what is left");
}

#[tokio::test]
async fn failed_attempts_are_tried_again_until_none_is_left() {
    let replica = Replica::boot().await;
    let task = pull_task(&replica, "t", "default").await;
    trigger(&replica, &task, "1").await;
    let (path, fence, _) = lease_one(&replica, "default").await;
    let fail = async |body: Value| replica.ask("POST", &format!("{path}/fail"), &body.to_string()).await;
    let refused = fail(json!({"fence": fence, "error": "x", "kind": "permanent", "delay": "1s"})).await.problem();
    assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, "delay"));
    let failed = fail(json!({"fence": fence, "error": "disk\u{7}full", "delay": "1h"})).await;
    assert_eq!(failed.json(), json!({"state": "scheduled"}));
    let run = replica.ask("GET", &path, "").await.json();
    assert_eq!((&run["error"], &run["attempt"]), (&json!("disk full"), &json!(1)));

    trigger(&replica, &task, "2").await;
    let (path, fence, _) = lease_one(&replica, "default").await;
    let body = json!({"fence": fence, "error": "no such file", "kind": "permanent"}).to_string();
    let failed = replica.ask("POST", &format!("{path}/fail"), &body).await;
    assert_eq!(failed.json(), json!({"state": "failed"}));

    trigger(&replica, &task, "3").await;
    let (path, fence, run) = lease_one(&replica, "default").await;
    let released = replica.ask("POST", &format!("{path}/release"), &json!({"fence": fence}).to_string()).await;
    assert_eq!((&released.json()["state"], &run["attempt"]), (&json!("queued"), &json!(1)));
    let (same, later, run) = lease_one(&replica, "default").await;
    assert_eq!((&same, &run["attempt"]), (&path, &json!(1)), "the released attempt does not count");
    assert!(later > fence);
}

#[tokio::test]
async fn a_worker_learns_that_it_is_to_stop() {
    let replica = Replica::boot().await;
    let task = pull_task(&replica, "t", "default").await;
    trigger(&replica, &task, "1").await;
    let (path, fence, _) = lease_one(&replica, "default").await;
    assert_eq!(replica.ask("POST", &format!("{path}/cancel"), "").await.json()["outcome"], "requested");
    let body = json!({"fence": fence}).to_string();
    let beat = replica.ask("POST", &format!("{path}/heartbeat"), &body).await;
    assert_eq!(beat.json()["cancel_requested"], true);
    let released = replica.ask("POST", &format!("{path}/release"), &body).await;
    assert_eq!(released.json(), json!({"state": "cancelled"}));
}

#[tokio::test]
async fn heartbeats_prolong_no_lease_beyond_the_time_of_the_attempt() {
    let replica = Replica::boot().await;
    let spec = json!({"name": "brief", "action": {"pull": {}}, "timeout": "2s"}).to_string();
    let made = replica.ask("POST", "/api/v1/tasks", &spec).await.json();
    trigger(&replica, &format!("/api/v1/tasks/{}", made["id"].as_str().unwrap()), "1").await;
    let (path, fence, run) = lease_one(&replica, "default").await;
    let instant = |text: &Value| text.as_str().unwrap().parse::<Timestamp>().unwrap();
    let deadline = instant(&run["deadline_at"]);
    let body = json!({"fence": fence, "lease": "10m"}).to_string();
    let ask = async || replica.ask("POST", &format!("{path}/heartbeat"), &body).await;
    let started = Instant::now();
    loop {
        let beat = ask().await;
        if beat.status == 409 {
            assert_eq!(beat.problem().code, ErrorCode::Fenced);
            return;
        }
        assert!(instant(&beat.json()["lease_until"]) <= deadline, "{}", beat.text());
        assert!(started.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn whoever_waits_gets_a_run_as_soon_as_there_is_one() {
    let replica = Replica::boot().await;
    let task = pull_task(&replica, "t", "default").await;
    let started = Instant::now();
    let wait = lease(&replica, "default", json!({"wait": "20s"}));
    let (answer, id) = tokio::join!(wait, trigger(&replica, &task, "1"));
    assert_eq!(answer.json()["runs"][0]["id"], json!(id));
    assert!(started.elapsed() < Duration::from_secs(15));

    let empty = lease(&replica, "default", json!({"wait": "50ms"})).await;
    assert_eq!((empty.status, empty.json()), (200, json!({"runs": []})));
}

#[tokio::test]
async fn all_who_wait_share_what_comes() {
    let replica = Replica::boot().await;
    let task = pull_task(&replica, "t", "default").await;
    let waits = futures_util::future::join_all((0..4).map(|_| lease(&replica, "default", json!({"wait": "20s"}))));
    let triggers = async {
        for input in ["1", "2", "3", "4"] {
            trigger(&replica, &task, input).await;
        }
    };
    let started = Instant::now();
    let (answers, ()) = tokio::join!(waits, triggers);
    let mut ids: Vec<_> = answers.iter().map(|answer| answer.json()["runs"][0]["id"].to_string()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "{ids:?}");
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[tokio::test]
async fn a_replica_that_stops_lets_nobody_wait() {
    let replica = Replica::boot().await;
    let started = Instant::now();
    let stop = async {
        tokio::task::yield_now().await;
        replica.api.lifecycle.start_draining();
    };
    let (answer, ()) = tokio::join!(lease(&replica, "default", json!({"wait": "20s"})), stop);
    assert_eq!((answer.status, answer.json()), (200, json!({"runs": []})));
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[tokio::test]
async fn leases_have_bounds() {
    let replica = Replica::boot().await;
    for (more, field) in [
        (json!({"max": 0}), "max"),
        (json!({"max": 101}), "max"),
        (json!({"lease": "999ms"}), "lease"),
        (json!({"lease": "11m"}), "lease"),
        (json!({"wait": "29s"}), "wait"),
        (json!({"worker": "a b"}), "worker"),
        (json!({"worker": "x".repeat(129)}), "worker"),
        (json!({"request_id": "7"}), "request_id"),
        (json!({"colour": "red"}), "colour"),
    ] {
        let problem = lease(&replica, "default", more.clone()).await.problem();
        assert_eq!((problem.status, problem.errors[0].field.as_str()), (422, field), "{more}");
    }
    assert_eq!(lease(&replica, "Gpu", json!({})).await.problem().code, ErrorCode::BadRequest);
}

#[tokio::test]
async fn runs_of_other_pools_are_not_there() {
    let replica = Replica::boot().await;
    let task = pull_task(&replica, "t", "gpu").await;
    trigger(&replica, &task, "1").await;
    let (path, fence, _) = lease_one(&replica, "gpu").await;
    let own = replica.key(&[Scope::work_on(&"gpu".parse().unwrap())]).await;
    let every = replica.key(&[Scope::Work(None)]).await;
    let foreign = replica.key(&[Scope::work_on(&"cpu".parse().unwrap()), Scope::RunsWrite]).await;
    let none = replica.key(&[Scope::RunsWrite]).await;
    let body = json!({"fence": fence, "error": "x"}).to_string();
    let beat = json!({"fence": fence}).to_string();
    for (report, body) in [("heartbeat", &beat), ("finish", &beat), ("release", &beat), ("fail", &body)] {
        let path = format!("{path}/{report}");
        let problem = replica.ask_as(&foreign, "POST", &path, body).await.problem();
        assert_eq!((problem.status, problem.code), (404, ErrorCode::NotFound), "{report}");
        assert_eq!(replica.ask_as(&none, "POST", &path, body).await.problem().code, ErrorCode::Forbidden);
    }
    for key in [&own, &every] {
        assert_eq!(replica.ask_as(key, "POST", &format!("{path}/heartbeat"), &beat).await.status, 200);
    }
    let lease =
        async |key: &str| replica.ask_as(key, "POST", "/api/v1/pools/gpu/lease", &request(json!({}))).await.status;
    assert_eq!((lease(&own).await, lease(&every).await, lease(&foreign).await), (200, 200, 403));
}

#[tokio::test]
async fn what_a_worker_writes_is_kept_without_the_secrets_of_the_run() {
    let replica = Replica::boot().await;
    let task = pull_task(&replica, "resize", "gpu").await;
    trigger(&replica, &task, r#"{"password": "correct-horse", "size": 3}"#).await;
    let (path, fence, _) = lease_one(&replica, "gpu").await;
    let chunks = json!(["signed in by correct-horse\n", "Authorization: Bearer abcdefghijklmnop\n", "size 3\n"]);
    let request = json!({"fence": fence, "first": 1, "chunks": chunks}).to_string();
    for _ in 0..2 {
        let answer = replica.ask("POST", &format!("{path}/output"), &request).await;
        assert_eq!(answer.json()["tail"], 3, "{}", answer.text());
    }
    let read = replica.ask("GET", &format!("{path}/output"), "").await.json();
    let texts: Vec<&str> =
        read["chunks"].as_array().unwrap().iter().map(|chunk| chunk["data"].as_str().unwrap()).collect();
    assert_eq!(texts[0], "signed in by [redacted]\n");
    assert!(texts[1].contains("[redacted]") && !texts[1].contains("abcdefghijklmnop"), "{texts:?}");
    assert_eq!(texts[2], "size 3\n");
    let failure = json!({"fence": fence, "error": "no entry for correct-horse"}).to_string();
    assert_eq!(replica.ask("POST", &format!("{path}/fail"), &failure).await.status, 200);
    let shown = replica.ask("GET", &path, "").await.json();
    assert_eq!(shown["error"], "no entry for [redacted]");
}

#[tokio::test]
async fn a_reader_waits_for_the_first_word_of_a_run_and_for_its_silent_end() {
    let replica = Replica::boot().await;
    let task = pull_task(&replica, "resize", "gpu").await;
    for writes in [true, false] {
        trigger(&replica, &task, "1").await;
        let (path, fence, _) = lease_one(&replica, "gpu").await;
        let url = format!("{path}/output?wait=20s");
        let working = async {
            if writes {
                let request = json!({"fence": fence, "chunks": ["a"]}).to_string();
                assert_eq!(replica.ask("POST", &format!("{path}/output"), &request).await.status, 200);
            }
            let end = json!({"fence": fence}).to_string();
            assert_eq!(replica.ask("POST", &format!("{path}/finish"), &end).await.status, 200);
        };
        let (read, ()) = tokio::join!(replica.ask("GET", &url, ""), working);
        let read = read.json();
        let chunks = read["chunks"].as_array().unwrap().len();
        assert_eq!((chunks, &read["ended"]), (usize::from(writes), &json!(!writes)).to_owned());
    }
    // Who does not wait is told at once that there is nothing.
    trigger(&replica, &task, "1").await;
    let (path, ..) = lease_one(&replica, "gpu").await;
    let read = replica.ask("GET", &format!("{path}/output"), "").await.json();
    assert_eq!((&read["chunks"], &read["ended"]), (&json!([]), &json!(false)));
}
