//! Triggers from the transactions of an application that shares the database.

use std::time::{Duration, Instant};

use serde_json::json;
use switchboard_model::page::PageRequest;
use switchboard_model::run::{RunState, Trigger};
use switchboard_testkit::wait_until;

use crate::fixtures::{cluster, create_room, create_task, err, event_task, out, room, succeeded, switchboard};

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_of_an_application_is_carried_out_soon() {
    let cluster = cluster(2).await;
    create_room(cluster.any(), "lobby").await;
    let task = create_task(cluster.any(), event_task("greet", "lobby")).await;
    let called = Instant::now();
    cluster.database().execute(r#"SELECT switchboard.trigger('greet', '{"to": "\u0000 \ud800"}', 'once')"#).await;
    let runs = succeeded(cluster.any(), task.id, 1).await;
    // Usually less than a second, on any machine.
    assert!(called.elapsed() < Duration::from_secs(20), "it took {:?}", called.elapsed());
    assert_eq!((runs.len(), runs[0].trigger, runs[0].state), (1, Trigger::Sql, RunState::Succeeded));
    let history = cluster.any().history(&room("lobby"), 0, 10).await.unwrap();
    assert_eq!(history.events.len(), 1);
    assert_eq!(history.events[0].payload.as_str(), r#"{"to": "\u0000 \ud800"}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_take_effect_is_listed() {
    let cluster = cluster(1).await;
    let mut value = event_task("busy", "lobby");
    value["overlap"] = json!("skip");
    value["pool"] = json!("elsewhere");
    create_task(cluster.any(), value).await;
    cluster.database().execute("SELECT switchboard.trigger('busy'), switchboard.trigger('busy')").await;
    let failed = wait_until("an entry that failed", async || {
        let page =
            cluster.any().list_failed_entries(PageRequest::default()).await.map_err(|error| error.to_string())?;
        if page.items.is_empty() { Err("none".to_owned()) } else { Ok(page.items) }
    })
    .await;
    assert_eq!((failed.len(), failed[0].subject.as_str()), (1, "busy"));
    let url = &cluster.base_urls()[0];
    let env = [("SWITCHBOARD_URL", url.as_str()), ("SWITCHBOARD_API_KEY", cluster.key().expose())];
    let listed = switchboard(&["outbox", "failed"], &env);
    assert!(out(&listed).contains("overlap policy is skip"), "{} {}", out(&listed), err(&listed));
}
