//! Leases, once-keys and shared state over HTTP: what callers are told, and what is refused.

use serde_json::{Value, json};
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;

use crate::harness::{Answer, Replica};

async fn post(replica: &Replica, path: &str, body: Value) -> Answer {
    replica.ask("POST", &format!("/api/v1/{path}"), &body.to_string()).await
}

async fn put(replica: &Replica, path: &str, body: Value) -> Answer {
    replica.ask("PUT", &format!("/api/v1/state/{path}"), &body.to_string()).await
}

async fn get(replica: &Replica, path: &str) -> Answer {
    replica.ask("GET", &format!("/api/v1/{path}"), "").await
}

fn refusal(answer: &Answer) -> (u16, ErrorCode) {
    let problem = answer.problem();
    (problem.status, problem.code)
}

#[tokio::test]
async fn a_lease_is_acquired_renewed_released_and_seized() {
    let replica = Replica::boot().await;
    let wanted = json!({"holder": "one", "ttl": "1h", "meta": {"host": "a"}});
    let first = post(&replica, "leases/job%2F1/acquire", wanted.clone()).await.json();
    assert_eq!((&first["acquired"], &first["lease"]["key"]), (&json!(true), &json!("job/1")));
    assert!((3_500_000..=3_600_000).contains(&first["remaining_ms"].as_u64().unwrap()), "{first}");
    let other = post(&replica, "leases/job%2F1/acquire", json!({"ttl": "1h"})).await.json();
    assert_eq!((&other["acquired"], &other["lease"]), (&json!(false), &first["lease"]), "who holds it, and until when");

    let hold = json!({"holder": "one", "fence": first["lease"]["fence"]});
    let renewed = post(&replica, "leases/job%2F1/renew", json!({"holder": "one", "fence": hold["fence"], "ttl": "2h"}));
    assert!(renewed.await.json()["expires_at"].as_str() > first["lease"]["expires_at"].as_str());
    assert_eq!(get(&replica, "leases").await.json()["items"][0]["meta"], json!({"host": "a"}));
    let seized = post(&replica, "leases/job%2F1/seize", json!({"holder": "two", "ttl": "1h"})).await.json();
    assert!(seized["fence"].as_i64() > hold["fence"].as_i64());
    for operation in ["renew", "release"] {
        let answer = post(&replica, &format!("leases/job%2F1/{operation}"), hold.clone()).await;
        assert_eq!(refusal(&answer), (409, ErrorCode::Fenced));
    }
    let audit = get(&replica, "audit?action=lease.seize").await.json();
    assert_eq!(
        (&audit["items"][0]["subject"], &audit["items"][0]["before"]["holder"]),
        (&json!("job/1"), &json!("one"))
    );
    let hold = json!({"holder": "two", "fence": seized["fence"]});
    assert_eq!(post(&replica, "leases/job%2F1/release", hold).await.status, 204);
    assert_eq!(refusal(&get(&replica, "leases/job%2F1").await), (404, ErrorCode::NotFound));
}

#[tokio::test]
async fn what_no_lease_can_be_is_refused() {
    let replica = Replica::boot().await;
    for (body, field) in [
        (json!({"ttl": "99ms"}), "ttl"),
        (json!({"ttl": "25h"}), "ttl"),
        (json!({"holder": "a b"}), "holder"),
        (json!({"colour": 1}), "colour"),
    ] {
        let problem = post(&replica, "leases/k/acquire", body.clone()).await.problem();
        assert_eq!((problem.status, problem.code), (422, ErrorCode::ValidationFailed), "{body}");
        assert!(problem.detail.contains(field), "{}", problem.detail);
    }
    let large = post(&replica, "leases/k/seize", json!({"meta": "x".repeat(4_095)})).await;
    assert_eq!(refusal(&large), (413, ErrorCode::PayloadTooLarge));
    assert_eq!(refusal(&post(&replica, "leases/a%20b/acquire", json!({})).await), (400, ErrorCode::BadRequest));
    let own = replica.key(&[Scope::Coordination]).await;
    assert_eq!(replica.ask_as(&own, "POST", "/api/v1/leases/k/acquire", "").await.status, 200, "defaults will do");
}

#[tokio::test]
async fn a_once_key_is_claimed_completed_and_consumed() {
    let replica = Replica::boot().await;
    let request = json!({"request": {"to": "ann"}});
    let new = post(&replica, "once/mail/m-1/claim", request.clone()).await.json();
    assert_eq!(new["outcome"], "new");
    let again = post(&replica, "once/mail/m-1/claim", request.clone()).await;
    assert_eq!(refusal(&again), (409, ErrorCode::InProgress));
    let other = post(&replica, "once/mail/m-1/claim", json!({"request": {"to": "bob"}})).await;
    assert_eq!(refusal(&other), (422, ErrorCode::IdempotencyMismatch));
    assert_eq!(refusal(&post(&replica, "once/mail/m-1/consume", json!({})).await), (409, ErrorCode::InProgress));
    assert_eq!(get(&replica, "once/mail/m-1").await.json()["state"], "in_flight");

    let complete = json!({"fence": new["fence"], "result": {"sent": true}});
    for _ in 0..2 {
        assert_eq!(post(&replica, "once/mail/m-1/complete", complete.clone()).await.status, 204);
    }
    let done = post(&replica, "once/mail/m-1/claim", request).await.json();
    assert_eq!((&done["outcome"], &done["result"]), (&json!("done"), &json!({"sent": true})));
    let late = post(&replica, "once/mail/m-1/abandon", json!({"fence": new["fence"]})).await;
    assert_eq!(refusal(&late), (409, ErrorCode::Fenced));
    let consumed = post(&replica, "once/mail/m-1/consume", json!({})).await.json();
    assert_eq!(consumed["result"], json!({"sent": true}));
    assert_eq!(refusal(&post(&replica, "once/mail/m-1/consume", json!({})).await), (404, ErrorCode::NotFound));
    assert_eq!(refusal(&get(&replica, "once/mail/m-1").await), (404, ErrorCode::NotFound));
}

#[tokio::test]
async fn a_lost_claim_is_unknown_until_it_is_taken_over_or_given_up() {
    let replica = Replica::boot().await;
    let claim = json!({"lease": "1ms"});
    let lost = post(&replica, "once/mail/m/claim", claim.clone()).await.json();
    let unknown = loop {
        let answer = post(&replica, "once/mail/m/claim", claim.clone()).await;
        if answer.status == 200 {
            break answer.json();
        }
        assert_eq!(refusal(&answer), (409, ErrorCode::InProgress));
    };
    assert_eq!((&unknown["outcome"], &unknown["fence"]), (&json!("unknown"), &lost["fence"]));
    let taken = json!({"fence": lost["fence"], "lease": "1h"});
    let new = post(&replica, "once/mail/m/take-over", taken.clone()).await.json();
    assert_eq!(new["outcome"], "new");
    assert_eq!(refusal(&post(&replica, "once/mail/m/take-over", taken).await), (409, ErrorCode::Fenced));
    let early = post(&replica, "once/mail/m/take-over", json!({"fence": new["fence"]})).await;
    assert_eq!(refusal(&early), (409, ErrorCode::InProgress));
    let late = post(&replica, "once/mail/m/complete", json!({"fence": lost["fence"]})).await;
    assert_eq!(refusal(&late), (409, ErrorCode::Fenced));
    assert_eq!(post(&replica, "once/mail/m/abandon", json!({"fence": new["fence"]})).await.status, 204);
    assert_eq!(post(&replica, "once/mail/m/claim", json!({})).await.json()["outcome"], "new");
    for action in ["once.take_over", "once.abandon"] {
        let audit = get(&replica, &format!("audit?action={action}")).await.json();
        assert_eq!(audit["items"][0]["subject"], "mail/m", "{action}");
    }
    for (body, field) in [
        (json!({"ttl": "0s"}), "ttl"),
        (json!({"ttl": "401days"}), "ttl"),
        (json!({"lease": "0s"}), "lease"),
        (json!({"lease": "2h", "ttl": "1h"}), "lease"),
    ] {
        let problem = post(&replica, "once/mail/x/claim", body.clone()).await.problem();
        assert_eq!((problem.status, problem.code), (422, ErrorCode::ValidationFailed), "{body}");
        assert!(problem.detail.contains(field), "{}", problem.detail);
    }
}

#[tokio::test]
async fn a_value_is_put_read_listed_and_deleted() {
    let replica = Replica::boot().await;
    let text = r#"{"value":{"a" : 1.0e5, "b":"\ud800"},"version":0}"#;
    let first = replica.ask("PUT", "/api/v1/state/box/run%2F7", text).await;
    let version = first.json()["version"].as_i64().unwrap();
    assert_eq!(first.header("etag"), Some(format!("\"{version}\"").as_str()));
    let read = get(&replica, "state/box/run%2F7").await;
    assert!(read.text().contains(r#"{"a" : 1.0e5, "b":"\ud800"}"#), "{}", read.text());
    assert_eq!(read.header("etag"), first.header("etag"));
    for version in [json!(0), json!(version + 1)] {
        let stale = put(&replica, "box/run%2F7", json!({"value": 1, "version": version})).await;
        assert_eq!(refusal(&stale), (409, ErrorCode::VersionMismatch));
    }
    assert_eq!(
        refusal(&put(&replica, "box/none", json!({"value": 1, "version": 3})).await).1,
        ErrorCode::VersionMismatch
    );
    let second = put(&replica, "box/run%2F7", json!({"value": null, "version": version, "ttl": "1h"})).await.json();
    assert!(second["version"].as_i64() > Some(version) && second["expires_at"].is_string());
    put(&replica, "box/user", json!({"value": 1})).await;
    let listed = get(&replica, "state/box?prefix=run/&limit=10").await.json();
    assert_eq!((&listed["items"][0]["key"], listed["items"].as_array().unwrap().len()), (&json!("run/7"), 1));
    assert!(listed["items"][0].get("value").is_none());

    let delete = async |query: &str| replica.ask("DELETE", &format!("/api/v1/state/box/run%2F7{query}"), "").await;
    assert_eq!(refusal(&delete(&format!("?version={version}")).await), (409, ErrorCode::VersionMismatch));
    assert_eq!(delete(&format!("?version={}", second["version"])).await.status, 204);
    assert_eq!(refusal(&delete("").await), (404, ErrorCode::NotFound));
    assert_eq!(refusal(&get(&replica, "state/box/run%2F7").await), (404, ErrorCode::NotFound));
}

#[tokio::test]
async fn what_is_too_much_or_no_value_is_refused() {
    let replica = Replica::boot().await;
    let largest = "x".repeat(1024 * 1024 - 2);
    assert_eq!(put(&replica, "box/large", json!({"value": largest})).await.status, 200);
    let larger = put(&replica, "box/large", json!({"value": format!("{largest}x")})).await;
    assert_eq!(refusal(&larger), (413, ErrorCode::PayloadTooLarge));
    for name in ["a", "b", "c", "d"] {
        assert_eq!(put(&replica, &format!("box/{name}"), json!({"value": 1})).await.status, 200);
    }
    let full = put(&replica, "box/e", json!({"value": 1})).await.problem();
    assert_eq!((full.status, full.code), (409, ErrorCode::Conflict));
    assert!(full.detail.contains("5 keys"), "{}", full.detail);
    assert_eq!(put(&replica, "other/e", json!({"value": 1})).await.status, 200, "each namespace has its own quota");
    for (path, body, field) in [
        ("box/a", json!({"value": 1, "version": -1}), "version"),
        ("box/a", json!({"value": 1, "ttl": "0s"}), "ttl"),
        ("box/a", json!({"version": 1}), "value"),
    ] {
        let problem = put(&replica, path, body).await.problem();
        assert_eq!((problem.status, problem.code), (422, ErrorCode::ValidationFailed));
        assert!(problem.detail.contains(field), "{}", problem.detail);
    }
    assert_eq!(refusal(&put(&replica, "Box/a", json!({"value": 1})).await), (400, ErrorCode::BadRequest));
    let prefix = get(&replica, "state/box?prefix=a%20b").await;
    assert_eq!(refusal(&prefix), (422, ErrorCode::ValidationFailed));
}

#[tokio::test]
async fn a_request_waits_for_a_change() {
    let replica = Replica::boot().await;
    let version = put(&replica, "box/k", json!({"value": 1})).await.json()["version"].as_i64().unwrap();
    let now = get(&replica, "state/box/k?wait=20s").await.json();
    assert_eq!(now["version"], version, "what the caller does not know is answered at once");
    let path = format!("state/box/k?wait=20s&after_version={version}");
    let (changed, written) = tokio::join!(get(&replica, &path), put(&replica, "box/k", json!({"value": 2})));
    assert_eq!(changed.json()["version"], written.json()["version"]);
    let path = format!("state/box/k?wait=20s&after_version={}", written.json()["version"]);
    let (gone, _) = tokio::join!(get(&replica, &path), replica.ask("DELETE", "/api/v1/state/box/k", ""));
    assert_eq!(refusal(&gone), (404, ErrorCode::NotFound));
    let (made, _) = tokio::join!(get(&replica, "state/box/k?wait=20s"), put(&replica, "box/k", json!({"value": 3})));
    assert_eq!(made.json()["value"], 3);
    let known = format!("state/box/k?wait=10ms&after_version={}", made.json()["version"]);
    assert_eq!(get(&replica, &known).await.json()["value"], 3, "nothing has changed");
    assert_eq!(refusal(&get(&replica, "state/box/k?wait=1h").await), (422, ErrorCode::ValidationFailed));
}
