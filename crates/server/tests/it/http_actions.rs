//! Tasks that send requests: what the receiver gets, what its answer does to the run, and where nothing is sent to.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use switchboard_client::Client;
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{Run, RunState};
use switchboard_model::secret_text::SecretText;
use switchboard_model::webhook::SecretPurpose;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{TriggerRequest, WebhookSecretRequest};
use switchboard_testkit::{Cluster, ClusterBuilder};

use crate::fixtures::{cluster, create_task, ended, spec, trigger};
use crate::receiver::Receiver;

const BODY: &str = r#"{"invoice" : "\ud800"}"#;

/// Lets requests go to this machine, which they may not by default.
fn allowing(builder: ClusterBuilder) -> ClusterBuilder {
    builder.env("SWITCHBOARD_OUTBOUND__ALLOW", "127.0.0.1/32")
}

async fn sqlite() -> Cluster {
    allowing(cluster(1).sqlite()).await
}

/// A task of which an attempt that may be repeated is repeated soon.
fn task(url: &str, change: Value) -> Value {
    let mut task = json!({
        "name": "call",
        "action": {"http": {"url": url}},
        "backoff": {"base": "100ms", "cap": "200ms", "jitter": 0.0},
    });
    task.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    task
}

/// Runs a task once, to its end.
async fn run(client: &Client, url: &str, change: Value) -> Run {
    let task = create_task(client, task(url, change)).await;
    ended(client, trigger(client, task.id).await).await
}

fn status(code: u16) -> Response {
    StatusCode::from_u16(code).unwrap().into_response()
}

async fn a_request_carries_its_run_and_is_signed_by_each_secret(cluster: Cluster) {
    let receiver = Receiver::answering(|_| r#"{"done" : "\ud800"}"#.into_response()).await;
    let client = cluster.any();
    let task = create_task(client, task(&receiver.url("/hooks?x=1"), json!({}))).await;
    let mut secrets = Vec::new();
    for purpose in [SecretPurpose::Sign, SecretPurpose::Receive, SecretPurpose::Sign] {
        let request = WebhookSecretRequest { purpose, ..WebhookSecretRequest::default() };
        let made = client.create_webhook_secret(task.id, &request).await.unwrap();
        assert_eq!((made.webhook_secret.purpose, made.url.is_some()), (purpose, purpose == SecretPurpose::Receive));
        secrets.push(made.secret);
    }
    let request = TriggerRequest { input: Some(JsonText::parse(BODY).unwrap()), ..TriggerRequest::default() };
    let id = client.trigger_task(task.id, &request).await.unwrap().run_id;
    let run = ended(client, id).await;
    assert_eq!(run.state, RunState::Succeeded, "{:?}", run.error);
    assert_eq!(run.result.unwrap().as_str(), r#"{"status":200,"body":{"done" : "\ud800"}}"#);

    let [sent] = &receiver.received()[..] else { panic!("one request: {:?}", receiver.received()) };
    assert_eq!((sent.method.as_str(), sent.path.as_str(), &sent.body[..]), ("POST", "/hooks", BODY.as_bytes()));
    let id = id.to_string();
    for (name, value) in [
        ("content-type", "application/json"),
        ("idempotency-key", id.as_str()),
        ("webhook-id", id.as_str()),
        ("switchboard-task", "call"),
        ("switchboard-attempt", "1"),
        ("switchboard-fence", &run.fence.0.to_string()),
    ] {
        assert_eq!(sent.header(name), value, "{name}");
    }
    assert!(sent.header("user-agent").starts_with("Switchboard/"));
    // The time is that of the database, which runs on this machine.
    let timestamp: i64 = sent.header("webhook-timestamp").parse().unwrap();
    let [started, finished] = [run.started_at, run.finished_at].map(|at| at.unwrap().timestamp());
    assert!((started - 1..=finished + 1).contains(&timestamp), "{timestamp} between {started} and {finished}");
    let by =
        |secret: &str| standardwebhooks::Webhook::new(secret).unwrap().sign(&id, timestamp, BODY.as_bytes()).unwrap();
    let signatures: Vec<_> = sent.header("webhook-signature").split(' ').collect();
    assert_eq!(signatures, [by(&secrets[2]), by(&secrets[0])], "those that sign, newest first");
    for secret in [&secrets[0], &secrets[2]] {
        standardwebhooks::Webhook::new(secret).unwrap().verify(&sent.body, &sent.headers).unwrap();
    }
    assert!(standardwebhooks::Webhook::new(&secrets[1]).unwrap().verify(&sent.body, &sent.headers).is_err());

    let signs = SecretText::from_presented(secrets[0].clone());
    let delivery = switchboard_client::WebhookDelivery::of_json("msg_1", &JsonText::parse(BODY).unwrap());
    let refused = client.send_webhook(&task.spec.name, &signs, &delivery).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Unauthorized), "what signs triggers nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_carries_its_run_and_is_signed_by_each_secret_on_sqlite() {
    a_request_carries_its_run_and_is_signed_by_each_secret(sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_carries_its_run_and_is_signed_by_each_secret_on_postgres() {
    a_request_carries_its_run_and_is_signed_by_each_secret(allowing(cluster(2)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_body_and_a_secret_a_request_has_neither() {
    let receiver = Receiver::answering(|_| status(204)).await;
    let cluster = sqlite().await;
    let url = receiver.url("/");
    let action = json!({"action": {"http": {"url": url, "method": "DELETE", "headers": {"User-Agent": "mine"}}}});
    let done = run(cluster.any(), &url, action).await;
    assert_eq!(done.result.unwrap().as_str(), r#"{"status":204}"#);
    let sent = receiver.first().await;
    assert_eq!((sent.method.as_str(), sent.header("user-agent"), sent.body.len()), ("DELETE", "mine", 0));
    for absent in ["content-type", "webhook-id", "webhook-timestamp", "webhook-signature", "cookie", "referer"] {
        assert!(!sent.has(absent), "{absent}");
    }
    for bad in [json!({"headers": {"host": "a"}}), json!({"url": "http://a@b"}), json!({"method": "GET", "body": 1})] {
        let mut http = json!({"url": url});
        http.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        let refused = cluster.any().create_task(&spec(json!({"name": "bad", "action": {"http": http}}))).await;
        assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::ValidationFailed), "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_failures_is_bounded_and_each_attempt_has_a_higher_fence() {
    let receiver = Receiver::answering(|_| (StatusCode::SERVICE_UNAVAILABLE, "too busy").into_response()).await;
    let cluster = sqlite().await;
    let dead = run(cluster.any(), &receiver.url("/"), json!({"max_attempts": 4})).await;
    assert_eq!((dead.state, dead.attempt), (RunState::Dead, 4));
    assert_eq!(dead.error.as_deref(), Some("the receiver answered with status 503: too busy"));
    let sent = receiver.received();
    let attempts: Vec<_> = sent.iter().map(|request| request.header("switchboard-attempt").to_owned()).collect();
    assert_eq!(attempts, ["1", "2", "3", "4"]);
    for (earlier, later) in sent.iter().zip(&sent[1..]) {
        let fence = |request: &crate::receiver::Received| request.header("switchboard-fence").parse::<i64>().unwrap();
        assert!(fence(later) > fence(earlier));
        assert_eq!(later.header("idempotency-key"), earlier.header("idempotency-key"));
        assert!(later.at - earlier.at >= Duration::from_millis(90), "{:?}", later.at - earlier.at);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_says_when_to_try_again() {
    let answer = |request: &crate::receiver::Received| match request.header("switchboard-attempt") {
        "1" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "2")]).into_response(),
        // Less than the back-off is no reason for haste.
        "2" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "0")]).into_response(),
        _ => status(200),
    };
    let receiver = Receiver::answering(answer).await;
    let cluster = sqlite().await;
    let done = run(cluster.any(), &receiver.url("/"), json!({})).await;
    assert_eq!((done.state, done.attempt), (RunState::Succeeded, 3));
    let at: Vec<_> = receiver.received().iter().map(|request| request.at).collect();
    assert!(at[1] - at[0] >= Duration::from_millis(1_990), "{:?}", at[1] - at[0]);
    assert!(at[2] - at[1] >= Duration::from_millis(190), "{:?}", at[2] - at[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_an_end() {
    let receiver = Receiver::answering(|_| (StatusCode::FOUND, [("location", "/elsewhere")]).into_response()).await;
    let cluster = sqlite().await;
    let failed = run(cluster.any(), &receiver.url("/"), json!({})).await;
    assert_eq!((failed.state, failed.attempt), (RunState::Failed, 1));
    assert_eq!(failed.error.as_deref(), Some("the receiver answered with status 302; redirects are not followed"));
    assert_eq!(receiver.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_nothing_goes_to_this_machine_and_nothing_tells_what_is_there() {
    let receiver = Receiver::answering(|_| status(200)).await;
    let cluster = cluster(1).sqlite().env("HTTP_PROXY", &receiver.url("/")).await;
    let open = receiver.port();
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let own = cluster.base_urls()[0].clone();
    let literals = ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"];
    let mut literals: Vec<_> =
        literals.iter().flat_map(|host| [open, closed].map(|port| format!("http://{host}:{port}/"))).collect();
    literals.push(own);
    let names = [open, closed].map(|port| format!("http://localhost:{port}/"));
    for (urls, state) in [(literals, RunState::Failed), (names.to_vec(), RunState::Dead)] {
        let mut errors = Vec::new();
        for (index, url) in urls.iter().enumerate() {
            let name = format!("{state}-{index}");
            let run = run(cluster.any(), url, json!({"name": name, "max_attempts": 1})).await;
            assert_eq!(run.state, state, "{url}");
            errors.push(run.error.unwrap());
        }
        errors.dedup();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(!errors[0].contains(|c: char| c.is_ascii_digit()), "{errors:?}");
    }
    assert!(receiver.received().is_empty(), "{:?}", receiver.received());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_huge_body_the_beginning_is_kept() {
    let endless = |_: &_| {
        let parts = stream::repeat_with(|| Ok::<_, std::io::Error>("x".repeat(10_000)));
        Body::from_stream(parts).into_response()
    };
    let receiver = Receiver::answering(endless).await;
    let cluster = sqlite().await;
    let done = run(cluster.any(), &receiver.url("/"), json!({})).await;
    assert_eq!(done.state, RunState::Succeeded, "{:?}", done.error);
    let result: Value = done.result.unwrap().decode().unwrap();
    assert_eq!((result["body"].as_str().unwrap().len(), &result["is_cut"]), (64 * 1024, &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_is_not_waited_for() {
    let slow = |_: &_| {
        let parts = stream::iter([Ok::<_, std::io::Error>("x")]).chain(stream::pending());
        Body::from_stream(parts).into_response()
    };
    let receiver = Receiver::answering(slow).await;
    let cluster = allowing(cluster(1).sqlite()).env("SWITCHBOARD_OUTBOUND__TIMEOUT", "500ms").await;
    let by_default = run(cluster.any(), &receiver.url("/"), json!({"max_attempts": 1})).await;
    let by_task = json!({"name": "own", "max_attempts": 1, "timeout": "700ms"});
    let by_task = run(cluster.any(), &receiver.url("/"), by_task).await;
    assert_eq!([by_default.state, by_task.state], [RunState::Dead; 2]);
    assert!(by_default.error.unwrap().starts_with("there was no answer"));
    for (run, limit) in [(by_default.id, "500ms"), (by_task.id, "700ms")] {
        let run = cluster.any().get_run(run).await.unwrap();
        let took = run.finished_at.unwrap() - run.started_at.unwrap();
        assert!(took < chrono::TimeDelta::seconds(20), "{limit} took {took}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_drops_its_request_at_once() {
    let receiver = Receiver::silent().await;
    let cluster = sqlite().await;
    let task = create_task(cluster.any(), task(&receiver.url("/"), json!({}))).await;
    let id = trigger(cluster.any(), task.id).await;
    receiver.first().await;
    let asked = Instant::now();
    cluster.any().cancel_run(id).await.unwrap();
    let waited = receiver.abandoned().await - asked;
    // Usually a few milliseconds; the request itself would go on for half a minute.
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    assert_eq!(ended(cluster.any(), id).await.state, RunState::Cancelled);
    assert_eq!(receiver.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_receiver_says_of_secrets_is_not_kept() {
    const SECRET: &str = "s3cr3t-of-the-receiver";
    let echo = |request: &crate::receiver::Received| {
        let headers: Vec<_> =
            request.headers.iter().map(|(name, value)| json!([name.as_str(), value.to_str().unwrap()])).collect();
        let code = if request.path == "/fine" { StatusCode::OK } else { StatusCode::BAD_REQUEST };
        (code, json!({"headers": headers, "password": "hunter2"}).to_string()).into_response()
    };
    let receiver = Receiver::answering(echo).await;
    let cluster = sqlite().await;
    for (name, state) in [("fine", RunState::Succeeded), ("bad", RunState::Failed)] {
        let url = receiver.url(&format!("/{name}"));
        let headers = json!({"x-api-key": SECRET, "Authorization": format!("Bearer {SECRET}"), "x-plain": "shown"});
        let change = json!({"name": name, "action": {"http": {"url": url, "headers": headers}}});
        let run = run(cluster.any(), &url, change).await;
        assert_eq!(run.state, state);
        let kept = run.result.map_or_else(|| run.error.unwrap(), |result| result.as_str().to_owned());
        assert!(kept.contains("[redacted]") && kept.contains("x-plain"), "{kept}");
        assert!(!kept.contains(SECRET) && !kept.contains("hunter2"), "{kept}");
    }
    assert!(receiver.received().iter().all(|request| request.header("x-api-key") == SECRET));
    assert!(!cluster.logs(0).contains(SECRET));
}
