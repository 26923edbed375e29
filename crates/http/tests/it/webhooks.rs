//! Webhooks over HTTP: who may deliver, what becomes of a delivery, and the secrets behind it.

use serde_json::{Value, json};
use switchboard_model::ids::{InstanceId, TaskId};
use switchboard_model::page::Page;
use switchboard_model::run::{Run, Trigger};
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::problem::Problem;
use switchboard_store_api::{LeaseRequest, WorkerKind};

use crate::harness::{Answer, Replica};

const BODY: &str = r#"{"a" : "\ud800"}"#;

/// A replica with a task that has a secret.
struct Hook {
    replica: Replica,
    task: String,
    secret: String,
}

impl Hook {
    async fn new(name: &str, change: Value) -> Self {
        let replica = Replica::boot().await;
        while replica.api.hub.now().is_none() {
            tokio::task::yield_now().await;
        }
        let task = create_task(&replica, name, change).await;
        let secret = create_secret(&replica, &task, "{}").await.json()["secret"].as_str().unwrap().to_owned();
        Self { replica, task, secret }
    }

    fn now(&self) -> i64 {
        self.replica.api.hub.now().unwrap().timestamp()
    }

    async fn deliver(&self, path: &str, id: &str, body: &str) -> Answer {
        let headers = signed(&self.secret, id, self.now(), body);
        self.post(path, body, &headers).await
    }

    async fn post(&self, path: &str, body: &str, headers: &[(&'static str, String)]) -> Answer {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.replica.send("POST", path, body, &headers).await
    }

    async fn runs(&self) -> Vec<Run> {
        let path = format!("/api/v1/runs?task_id={}", self.task);
        self.replica.ask("GET", &path, "").await.read::<Page<Run>>().items
    }
}

async fn create_task(replica: &Replica, name: &str, change: Value) -> String {
    let mut spec = json!({"name": name, "action": {"event": {"to": {"room": "lobby"}, "event": "hook"}}});
    spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let answer = replica.ask("POST", "/api/v1/tasks", &spec.to_string()).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()["id"].as_str().unwrap().to_owned()
}

fn secrets_of(task: &str) -> String {
    format!("/api/v1/tasks/{task}/webhook-secrets")
}

async fn create_secret(replica: &Replica, task: &str, body: &str) -> Answer {
    replica.ask("POST", &secrets_of(task), body).await
}

/// Signs by the reference library.
fn signed(secret: &str, id: &str, timestamp: i64, body: &str) -> Vec<(&'static str, String)> {
    let signature = standardwebhooks::Webhook::new(secret).unwrap().sign(id, timestamp, body.as_bytes()).unwrap();
    vec![("webhook-id", id.to_owned()), ("webhook-timestamp", timestamp.to_string()), ("webhook-signature", signature)]
}

#[tokio::test]
async fn a_signed_delivery_makes_one_run_with_the_body_verbatim() {
    let hook = Hook::new("billing/paid:eu", json!({})).await;
    let first = hook.deliver("/hooks/billing/paid:eu", "msg_1", BODY).await;
    assert_eq!(first.status, 202, "{}", first.text());
    let run = first.json()["run_id"].clone();
    assert_eq!(first.json(), json!({"run_id": run, "duplicate": false, "adopted": false}));
    let read: Run = hook.replica.ask("GET", &format!("/api/v1/runs/{}", run.as_str().unwrap()), "").await.read();
    assert_eq!((read.trigger, read.input.unwrap().as_str()), (Trigger::Webhook, BODY));

    let again = hook.deliver("/hooks/billing%2Fpaid%3Aeu", "msg_1", BODY).await;
    assert_eq!((again.status, again.json()), (202, json!({"run_id": run, "duplicate": true, "adopted": false})));
    let other = hook.deliver("/hooks/billing/paid:eu", "msg_1", "{}").await.problem();
    assert_eq!((other.status, other.code), (422, ErrorCode::IdempotencyMismatch));
    assert_eq!(hook.runs().await.len(), 1);
    let next = hook.deliver("/hooks/billing/paid:eu", "msg_2", BODY).await.json();
    assert_ne!(next["run_id"], run);
}

#[tokio::test]
async fn the_headers_of_the_older_family_are_taken_too() {
    let hook = Hook::new("x", json!({})).await;
    let names = ["svix-id", "svix-timestamp", "svix-signature"];
    let headers = signed(&hook.secret, "msg_1", hook.now(), BODY);
    let headers: Vec<_> = names.into_iter().zip(headers).map(|(name, (_, value))| (name, value)).collect();
    assert_eq!(hook.post("/hooks/x", BODY, &headers).await.status, 202);
    assert_eq!(hook.deliver("/hooks/x", "msg_1", BODY).await.json()["duplicate"], json!(true));
}

#[tokio::test]
async fn whoever_cannot_sign_gets_one_answer_whatever_the_reason() {
    let hook = Hook::new("x", json!({})).await;
    create_task(&hook.replica, "bare", json!({})).await;
    let now = hook.now();
    let good = signed(&hook.secret, "msg_1", now, BODY);
    let without = |name: &str| good.iter().filter(|(other, _)| *other != name).cloned().collect::<Vec<_>>();
    let stranger = format!("whsec_{}", "A".repeat(32));
    let cases = [
        ("an unknown task", "/hooks/nothing", BODY, good.clone()),
        ("no task name at all", "/hooks/%20", BODY, good.clone()),
        ("a task without a secret", "/hooks/bare", BODY, good.clone()),
        ("a changed body", "/hooks/x", "{}", good.clone()),
        ("the secret of somebody else", "/hooks/x", BODY, signed(&stranger, "msg_1", now, BODY)),
        ("an old timestamp", "/hooks/x", BODY, signed(&hook.secret, "msg_1", now - 301, BODY)),
        ("a timestamp of the future", "/hooks/x", BODY, signed(&hook.secret, "msg_1", now + 330, BODY)),
        ("no id", "/hooks/x", BODY, without("webhook-id")),
        ("no timestamp", "/hooks/x", BODY, without("webhook-timestamp")),
        ("no signature", "/hooks/x", BODY, without("webhook-signature")),
        ("no headers", "/hooks/x", BODY, Vec::new()),
    ];
    let mut answers: Vec<Problem> = Vec::new();
    for (reason, path, body, headers) in cases {
        let mut problem = hook.post(path, body, &headers).await.problem();
        assert_eq!((problem.status, problem.code), (401, ErrorCode::Unauthorized), "{reason}");
        problem.request_id = String::new();
        answers.push(problem);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert!(hook.runs().await.is_empty());
    assert_eq!(hook.post("/hooks/x", BODY, &good).await.status, 202, "nothing was burned");
}

#[tokio::test]
async fn a_body_has_at_most_one_mebibyte() {
    let hook = Hook::new("x", json!({})).await;
    let body = |length: usize| format!("\"{}\"", "x".repeat(length - 2));
    assert_eq!(hook.deliver("/hooks/x", "msg_1", &body(1024 * 1024)).await.status, 202);
    let problem = hook.deliver("/hooks/x", "msg_2", &body(1024 * 1024 + 1)).await.problem();
    assert_eq!((problem.status, problem.code), (413, ErrorCode::PayloadTooLarge));
}

#[tokio::test]
async fn overlap_policies_adopt_or_ask_to_deliver_again() {
    let hook = Hook::new("x", json!({"overlap": "skip"})).await;
    let first = hook.deliver("/hooks/x", "msg_1", BODY).await.json();
    let adopted = hook.deliver("/hooks/x", "msg_2", BODY).await;
    let run = first["run_id"].clone();
    assert_eq!((adopted.status, adopted.json()), (202, json!({"run_id": run, "duplicate": false, "adopted": true})));
    let again = hook.deliver("/hooks/x", "msg_2", BODY).await.json();
    assert_eq!((&again["run_id"], &again["duplicate"]), (&run, &json!(true)));

    let request = LeaseRequest {
        holder: InstanceId::boot("worker"),
        kind: WorkerKind::Replica,
        pools: vec!["default".parse().unwrap()],
        limit: 1,
        lease: Span::from_secs(60),
        request: None,
    };
    assert_eq!(hook.replica.api.stores.runs.lease(&request).await.unwrap().runs.len(), 1);
    let refused = hook.deliver("/hooks/x", "msg_3", BODY).await.problem();
    assert_eq!((refused.status, refused.code), (409, ErrorCode::Conflict));

    let hook = Hook::new("x", json!({"overlap": "queue", "queue_max": 1})).await;
    assert_eq!(hook.deliver("/hooks/x", "msg_1", BODY).await.status, 202);
    let refused = hook.deliver("/hooks/x", "msg_2", BODY).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert!(refused.problem().detail.contains("queue_max"));
}

#[tokio::test]
async fn every_secret_that_works_may_sign_and_no_other() {
    let hook = Hook::new("x", json!({})).await;
    let given = format!("whsec_{}", "B".repeat(32));
    let made = create_secret(&hook.replica, &hook.task, &json!({"secret": given}).to_string()).await;
    assert_eq!((made.status, &made.json()["secret"]), (201, &json!(given)));
    let short = create_secret(&hook.replica, &hook.task, r#"{"ttl":"10ms"}"#).await.json();
    let short = short["secret"].as_str().unwrap();
    let sign = |secret: &str, id: &str| signed(secret, id, hook.now(), BODY);
    assert_eq!(hook.post("/hooks/x", BODY, &sign(&given, "msg_1")).await.status, 202);
    let mut both = sign(&given, "msg_2");
    both[2].1 = format!("v1a,AAAA {} {}", sign(&hook.secret, "msg_2")[2].1, both[2].1);
    assert_eq!(hook.post("/hooks/x", BODY, &both).await.status, 202);
    // An expired secret works until the database says otherwise; from then on it does not.
    for index in 0.. {
        let answer = hook.post("/hooks/x", BODY, &sign(short, &format!("short_{index}"))).await;
        if answer.status == 401 {
            break;
        }
    }
    let path = format!("{}/{}", secrets_of(&hook.task), made.json()["webhook_secret"]["id"].as_str().unwrap());
    assert_eq!(hook.replica.ask("DELETE", &path, "").await.status, 204);
    assert_eq!(hook.post("/hooks/x", BODY, &sign(&given, "msg_3")).await.status, 401);
    assert_eq!(hook.replica.ask("DELETE", &path, "").await.problem().status, 404);
    assert_eq!(hook.deliver("/hooks/x", "msg_4", BODY).await.status, 202);
}

#[tokio::test]
async fn secrets_are_shown_once_and_stored_sealed() {
    let hook = Hook::new("a/b", json!({})).await;
    let key = [("idempotency-key", "k")];
    let given = json!({"secret": format!("whsec_{}", "C".repeat(32)), "ttl": "1h"}).to_string();
    let made = hook.replica.ask_with("POST", &secrets_of(&hook.task), &given, &key).await;
    assert_eq!((made.status, &made.json()["url"]), (201, &json!("/hooks/a/b")));
    let again = hook.replica.ask_with("POST", &secrets_of(&hook.task), &given, &key).await.problem();
    assert_eq!((again.status, again.code), (409, ErrorCode::Duplicate));
    let listed = hook.replica.ask("GET", &secrets_of(&hook.task), "").await;
    assert_eq!(listed.json()["items"].as_array().unwrap().len(), 2);
    let log = hook.replica.ask("GET", "/api/v1/audit?action=webhook_secret.", "").await;
    assert_eq!(log.json()["items"].as_array().unwrap().len(), 2);
    for text in [listed.text(), log.text(), again.detail] {
        assert!(!text.contains("CCCC") && !text.contains("whsec_"), "{text}");
    }
    let target = hook.replica.api.stores.webhooks.target(&"a/b".parse().unwrap()).await.unwrap().unwrap();
    let plain = [8, 32, 130, 8, 32, 130];
    assert!(target.secrets.iter().all(|secret| !secret.sealed.windows(6).any(|bytes| bytes == plain)));

    let other = create_task(&hook.replica, "other", json!({})).await;
    let id = made.json()["webhook_secret"]["id"].as_str().unwrap().to_owned();
    let foreign = hook.replica.ask("DELETE", &format!("{}/{id}", secrets_of(&other)), "").await.problem();
    assert_eq!(foreign.status, 404, "a secret belongs to its task");
    let nowhere = secrets_of(&TaskId::new().to_string());
    for (method, path) in [("POST", nowhere.clone()), ("GET", nowhere.clone()), ("DELETE", format!("{nowhere}/{id}"))] {
        assert_eq!(hook.replica.ask(method, &path, "").await.problem().status, 404, "{method}");
    }
    for (body, field) in [(r#"{"secret":"hunter2"}"#, "secret"), (r#"{"ttl":"0s"}"#, "ttl"), (r#"{"x":1}"#, "x")] {
        let problem = create_secret(&hook.replica, &hook.task, body).await.problem();
        assert_eq!((problem.status, problem.errors[0].field.as_str()), (422, field));
        assert!(!problem.detail.contains("hunter2"));
    }
    for _ in 2..10 {
        assert_eq!(create_secret(&hook.replica, &hook.task, "").await.status, 201);
    }
    assert_eq!(create_secret(&hook.replica, &hook.task, "").await.problem().code, ErrorCode::Conflict);
}

#[tokio::test]
async fn a_secret_that_signs_verifies_nothing() {
    let hook = Hook::new("x", json!({})).await;
    let made = create_secret(&hook.replica, &hook.task, r#"{"purpose":"sign"}"#).await;
    let made = made.json();
    assert_eq!((&made["webhook_secret"]["purpose"], made.get("url")), (&json!("sign"), None));
    let signs = made["secret"].as_str().unwrap();
    let headers = signed(signs, "msg_1", hook.now(), BODY);
    assert_eq!(hook.post("/hooks/x", BODY, &headers).await.status, 401);
    let listed = hook.replica.ask("GET", &secrets_of(&hook.task), "").await.json();
    let purposes: Vec<_> = listed["items"].as_array().unwrap().iter().map(|secret| &secret["purpose"]).collect();
    assert_eq!(purposes, ["receive", "sign"]);
    let odd = create_secret(&hook.replica, &hook.task, r#"{"purpose":"both"}"#).await.problem();
    assert_eq!((odd.status, odd.errors[0].field.as_str()), (422, "purpose"));
}
