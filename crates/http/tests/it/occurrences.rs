//! The occurrences of a task over HTTP: which ran, and why the others did not.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use switchboard_model::wire::code::ErrorCode;

use crate::harness::Replica;

async fn task(replica: &Replica, spec: Value) -> String {
    let made = replica.ask("POST", "/api/v1/tasks", &spec.to_string()).await;
    assert_eq!(made.status, 201, "{}", made.text());
    format!("/api/v1/tasks/{}/occurrences", made.json()["id"].as_str().unwrap())
}

fn brief(page: &Value) -> Vec<(&str, &str)> {
    let items = page["items"].as_array().unwrap().iter();
    items.map(|item| (item["at"].as_str().unwrap(), item["outcome"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn what_is_to_come_is_shown_when_the_range_ends_in_the_future() {
    let replica = Replica::boot().await;
    let schedule = json!({"cron": {"expression": "30 2 * * *", "zone": "America/New_York", "dst_gap": "skip"}});
    let path = task(&replica, json!({"name": "t", "schedule": schedule, "action": {"pull": {}}})).await;
    let answer = replica.ask("GET", &format!("{path}?from=2027-03-13T00:00:00Z&to=2027-03-15T12:00:00Z"), "").await;
    let expected = [
        ("2027-03-15T06:30:00Z", "upcoming"),
        ("2027-03-14T07:00:00Z", "upcoming"),
        ("2027-03-13T07:30:00Z", "upcoming"),
    ];
    assert_eq!((answer.status, brief(&answer.json())), (200, expected.to_vec()));
    assert_eq!(answer.json()["items"][1]["remark"], "skipped_in_gap");
    assert_eq!(brief(&replica.ask("GET", &path, "").await.json()), [], "nothing was due yet");
}

#[tokio::test]
async fn a_paused_second_says_so_and_pages_follow_each_other() {
    let replica = Replica::boot().await;
    let path =
        task(&replica, json!({"name": "t", "schedule": {"every": {"interval": "1s"}}, "action": {"pull": {}}})).await;
    // Nobody fires here, so that what is due stays due.
    let started = Instant::now();
    let all = loop {
        let page = replica.ask("GET", &path, "").await.json();
        if page["items"].as_array().unwrap().len() >= 2 {
            break page;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{page}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(brief(&all).iter().all(|(_, outcome)| *outcome == "due"), "{all}");
    let to = brief(&all)[0].0;
    let first = replica.ask("GET", &format!("{path}?to={to}&limit=1"), "").await.json();
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = replica.ask("GET", &format!("{path}?to={to}&limit=1&cursor={cursor}"), "").await.json();
    assert_eq!([brief(&first), brief(&second)].concat(), brief(&all)[..2]);
}

#[tokio::test]
async fn ranges_are_checked() {
    let replica = Replica::boot().await;
    let path = task(&replica, json!({"name": "t", "action": {"pull": {}}})).await;
    let ask = async |query: &str| replica.ask("GET", &format!("{path}?{query}"), "").await.problem();
    let refused = ask("from=2027-01-02T00:00:00Z&to=2027-01-01T00:00:00Z").await;
    assert_eq!((refused.status, refused.errors[0].field.as_str()), (422, "from"));
    assert_eq!(ask("limit=501").await.code, ErrorCode::ValidationFailed);
    assert_eq!(ask("from=yesterday").await.code, ErrorCode::BadRequest);
    let missing = "/api/v1/tasks/0190a0b0-0000-7000-8000-000000000000/occurrences";
    assert_eq!(replica.ask("GET", missing, "").await.problem().code, ErrorCode::NotFound);
}
