//! Rate limits: the endpoint, requests as such, and sign-in.

use serde_json::{Value, json};
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;

use crate::harness::{Answer, Replica};

async fn take(replica: &Replica, key: &str, body: Value) -> Answer {
    replica.ask("POST", &format!("/api/v1/limits/{key}/take"), &body.to_string()).await
}

#[tokio::test]
async fn units_are_taken_until_none_are_left_and_a_denial_is_an_answer() {
    let replica = Replica::boot().await;
    let body = json!({"rate": "2/1h", "cost": 1});
    for remaining in [1, 0] {
        let answer = take(&replica, "mail", body.clone()).await;
        assert_eq!((answer.status, &answer.json()["allowed"]), (200, &json!(true)), "{}", answer.text());
        assert_eq!(answer.json()["remaining"], json!(remaining));
        assert_eq!(answer.json()["retry_after_ms"], json!(0));
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""mail";q=2;w=3600"#));
        assert!(answer.header("ratelimit").unwrap().starts_with(&format!(r#""mail";r={remaining};t="#)));
    }
    let denied = take(&replica, "mail", body.clone()).await;
    assert_eq!((denied.status, &denied.json()["allowed"]), (200, &json!(false)));
    let (retry, reset) = (&denied.json()["retry_after_ms"], &denied.json()["reset_after_ms"]);
    assert!((1_700_000..=1_800_000).contains(&retry.as_u64().unwrap()), "{retry}");
    assert!((3_500_000..=3_600_000).contains(&reset.as_u64().unwrap()), "{reset}");
    assert_eq!(take(&replica, "other", body).await.json()["allowed"], json!(true), "keys have limits of their own");
}

#[tokio::test]
async fn what_can_never_be_allowed_is_refused() {
    let replica = Replica::boot().await;
    let cases = [
        (json!({"rate": "2/1h", "cost": 3}), "cost"),
        (json!({"rate": "2/1h", "cost": 0}), "cost"),
        (json!({"rate": "0/1h"}), "rate"),
        (json!({"rate": "often"}), "rate"),
        (json!({"rate": "2/1h", "outage": "panic"}), "outage"),
        (json!({"rate": "2/1h", "colour": 1}), "colour"),
        (json!({}), "rate"),
    ];
    for (body, part) in cases {
        let problem = take(&replica, "k", body.clone()).await.problem();
        assert_eq!((problem.status, problem.code), (422, ErrorCode::ValidationFailed), "{body}");
        assert!(problem.detail.contains(part), "{}", problem.detail);
    }
    let problem = take(&replica, "a%20b", json!({"rate": "1/1s"})).await.problem();
    assert_eq!((problem.status, problem.code), (400, ErrorCode::BadRequest));
}

fn limited(rate: &str) -> impl FnOnce(&mut switchboard_http::HttpOptions) {
    let rate = rate.parse().unwrap();
    move |options| options.limits.requests = Some(rate)
}

#[tokio::test]
async fn each_credential_has_its_requests() {
    let replica = Replica::boot_with(limited("3/1h")).await;
    let other = format!("Bearer {}", replica.key(&[Scope::TasksRead]).await);
    for left in [2, 1, 0] {
        let answer = replica.ask("GET", "/api/v1/tasks", "").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""requests";q=3;w=3600"#));
        assert!(answer.header("ratelimit").unwrap().starts_with(&format!(r#""requests";r={left};t="#)));
    }
    let denied = replica.ask("GET", "/api/v1/tasks", "").await;
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1_100..=1_200).contains(&wait), "{wait}");
    assert!(denied.header("ratelimit").unwrap().starts_with(r#""requests";r=0;t="#));
    let problem = denied.problem();
    assert_eq!((problem.status, problem.code), (429, ErrorCode::RateLimited));
    assert!(problem.detail.contains(&format!("try again in {wait} seconds")), "{}", problem.detail);
    // The same credential written in another way is the same credential.
    let again = format!("bearer   {} ", replica.admin);
    assert_eq!(replica.send("GET", "/api/v1/tasks", "", &[("authorization", &again)]).await.status, 429);
    assert_eq!(replica.send("GET", "/api/v1/tasks", "", &[("authorization", &other)]).await.status, 200);
    // Probes, and routes that do not exist, are not limited.
    for _ in 0..10 {
        assert_eq!(replica.ask("GET", "/healthz/live", "").await.status, 200);
        assert_eq!(replica.ask("GET", "/nowhere", "").await.status, 404);
    }
}

#[tokio::test]
async fn credentials_that_are_made_up_are_no_way_around() {
    let replica = Replica::boot_with(limited("3/1h")).await;
    let mut statuses = Vec::new();
    for n in 0..40 {
        let made_up = format!("Bearer sbk_{n}");
        statuses.push(replica.send("GET", "/api/v1/tasks", "", &[("authorization", &made_up)]).await.status);
    }
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 30, "{statuses:?}");
    assert!(statuses[30..].iter().all(|status| *status == 429), "{statuses:?}");
    let nobody = replica.send("GET", "/api/v1/tasks", "", &[]).await;
    assert_eq!(nobody.status, 429, "the address has used up what it has");
}
