//! The outer edge: addresses of requests, browsers of other origins, slow bodies.

use std::time::Duration;

use switchboard_model::wire::code::ErrorCode;

use crate::harness::{Answer, ORIGIN, Replica};

#[tokio::test]
async fn control_characters_are_refused_wherever_they_stand() {
    let replica = Replica::boot().await;
    for path in [
        "/api/v1/tasks?cursor=%00",
        "/api/v1/runs?cursor=a%0Ab",
        "/api/v1/instances?cursor=%7f",
        "/api/v1/rooms?cursor=%C2%80",
        "/api/v1/tasks/by-name/a%00b",
        "/api/v1/rooms/lobby%00",
        "/ws?ticket=sbt_%00",
        "/nowhere%00",
    ] {
        let problem = replica.ask("GET", path, "").await.problem();
        assert_eq!((problem.status, problem.code), (400, ErrorCode::BadRequest), "{path}");
    }
    for body in [
        r#"{"user_id":"ann","origin":"https://a\u0000.example"}"#,
        r#"{"user_id":"ann","origin":"https://a.example\n"}"#,
        r#"{"user_id":"ann","origin":""}"#,
        r#"{"user_id":"ann","grants":{"join":["a\u0000"]}}"#,
    ] {
        let problem = replica.ask("POST", "/api/v1/ws/ticket", body).await.problem();
        assert_eq!((problem.status, problem.code), (422, ErrorCode::ValidationFailed), "{body}");
    }
}

#[tokio::test]
async fn addresses_are_bounded() {
    let replica = Replica::boot().await;
    let long = format!("/api/v1/tasks?cursor={}", "x".repeat(8 * 1024));
    assert_eq!(replica.ask("GET", &long, "").await.problem().status, 414);
}

/// The names of the headers by which an answer speaks of other origins.
fn cross_origin(answer: &Answer) -> Vec<String> {
    let mut names: Vec<_> = answer.headers.keys().map(ToString::to_string).collect();
    names.retain(|name| name.starts_with("access-control-"));
    names.sort();
    names
}

#[tokio::test]
async fn a_preflight_is_answered_to_allowed_origins_without_a_credential() {
    let replica = Replica::boot().await;
    let headers = [
        ("origin", ORIGIN),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "authorization,content-type,idempotency-key"),
    ];
    let answer = replica.send("OPTIONS", "/api/v1/settings/fleet", "", &headers).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), Some(ORIGIN));
    assert_eq!(answer.header("access-control-max-age"), Some("600"));
    assert_eq!(answer.header("access-control-allow-credentials"), None);
    assert_eq!(answer.header("vary"), Some("origin"));
    let allowed = answer.header("access-control-allow-headers").unwrap();
    for name in ["authorization", "content-type", "idempotency-key", "last-event-id", "x-request-id", "traceparent"] {
        assert!(allowed.contains(name), "{allowed}");
    }
    assert!(answer.header("access-control-allow-methods").unwrap().contains("DELETE"));
}

#[tokio::test]
async fn pages_of_allowed_origins_read_answers_and_errors() {
    let replica = Replica::boot().await;
    let made = replica.ask_with("POST", "/api/v1/rooms", r#"{"name":"lobby"}"#, &[("origin", ORIGIN)]).await;
    let refused = replica.send("GET", "/api/v1/tasks", "", &[("origin", ORIGIN)]).await;
    assert_eq!((made.status, refused.status), (201, 401));
    for answer in [made, refused] {
        assert_eq!(answer.header("access-control-allow-origin"), Some(ORIGIN));
        let exposed = answer.header("access-control-expose-headers").unwrap();
        for name in ["ratelimit", "ratelimit-policy", "retry-after", "x-request-id", "location"] {
            assert!(exposed.split(',').any(|listed| listed == name), "{exposed}");
        }
    }
}

#[tokio::test]
async fn foreign_origins_get_no_headers() {
    let replica = Replica::boot().await;
    for origin in ["https://evil.example", "https://app.example.evil.example", "null", "http://app.example", "*"] {
        let preflight = [("origin", origin), ("access-control-request-method", "GET")];
        for answer in [
            replica.send("OPTIONS", "/api/v1/tasks", "", &preflight).await,
            replica.ask_with("GET", "/api/v1/tasks", "", &[("origin", origin)]).await,
        ] {
            assert_eq!(cross_origin(&answer), [""; 0], "{origin}");
            assert_eq!(answer.header("vary"), Some("origin"), "caches must not mix the two");
        }
    }
    assert_eq!(cross_origin(&replica.ask("GET", "/api/v1/tasks", "").await), [""; 0], "programs");
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_is_a_timeout_of_the_client() {
    let replica = Replica::boot_with(|options| options.request_timeout = Duration::from_secs(2)).await;
    let answer = replica.send_endless("POST", "/api/v1/rooms").await;
    let problem = answer.problem();
    assert_eq!((problem.status, problem.code), (408, ErrorCode::BadRequest));
    assert!(problem.detail.contains("nothing was done"), "{}", problem.detail);
}
