//! The surface as an application sees it: the same cases on one SQLite process and on two PostgreSQL replicas.

use futures_util::future::join_all;
use switchboard_client::{Client, SocketOptions};
use switchboard_model::page::PageRequest;
use switchboard_model::room::Position;
use switchboard_model::run::{RunState, Trigger};
use switchboard_model::schedule::{Remark, Schedule};
use switchboard_model::ticket::Grants;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::op::{Publish, Since, SinceEnd};
use switchboard_model::wire::rest::{PreviewRequest, TaskUpdate, TriggerRequest};
use switchboard_testkit::{Cluster, ledger, wait_until};

use crate::fixtures::{
    create_room, create_task, ended, event, event_task, json, next_event, next_events, on_every_database, room, runs,
    spec, succeeded, trigger,
};

on_every_database! {
    a_task_is_created_edited_paused_and_deleted,
    a_scheduled_task_fires_and_its_events_arrive_in_order,
    a_triggered_run_carries_its_input,
    a_run_that_succeeded_publishes_again_when_it_is_retried,
    a_run_without_a_future_fails_with_its_reason,
    events_are_published_read_back_and_deduplicated,
    a_socket_resumes_where_it_stopped,
    a_targeted_event_reaches_only_its_user,
    an_ephemeral_event_reaches_whoever_is_connected,
    a_ticket_opens_one_socket,
    a_waiting_run_is_cancelled_and_retried,
    errors_say_what_to_do,
    payloads_arrive_byte_for_byte,
    a_calendar_is_previewed_and_fires,
}

async fn a_task_is_created_edited_paused_and_deleted(cluster: Cluster) {
    let client = cluster.any();
    let mut value = event_task("edit", "lobby");
    value["schedule"] = serde_json::json!({"every": {"interval": "1h"}});
    let task = create_task(client, value.clone()).await;
    assert_eq!(task.version, 1);
    assert!(task.next_run_at.is_some());
    let taken = client.create_task(&task.spec).await.unwrap_err();
    assert_eq!(taken.code(), Some(ErrorCode::Duplicate));

    value["priority"] = 7.into();
    let update = TaskUpdate { version: 1, spec: spec(value.clone()) };
    let edited = cluster.any().update_task(task.id, &update).await.unwrap();
    assert_eq!((edited.version, edited.spec.priority), (2, 7));
    assert_eq!(edited.next_run_at, task.next_run_at, "an edit of the priority does not move the schedule");
    let stale = cluster.any().update_task(task.id, &update).await.unwrap_err();
    assert_eq!(stale.code(), Some(ErrorCode::VersionMismatch));

    let paused = cluster.any().pause_task(task.id).await.unwrap();
    assert_eq!((paused.spec.is_active, paused.next_run_at), (false, None));
    let resumed = cluster.any().resume_task(task.id).await.unwrap();
    assert!(resumed.spec.is_active && resumed.next_run_at.is_some());

    let listed = cluster.any().list_tasks(PageRequest::default()).await.unwrap().items;
    assert!(listed.iter().any(|listed| listed.id == task.id));
    cluster.any().delete_task(task.id).await.unwrap();
    assert_eq!(cluster.any().get_task(task.id).await.unwrap_err().code(), Some(ErrorCode::NotFound));
}

async fn a_scheduled_task_fires_and_its_events_arrive_in_order(cluster: Cluster) {
    let client = cluster.any();
    create_room(client, "lobby").await;
    let mut socket = cluster.socket(cluster.size() - 1, "ann").await;
    socket.handle().join(&room("lobby"), Since::default()).await.unwrap();
    let mut value = event_task("tick", "lobby");
    value["schedule"] = serde_json::json!({"every": {"interval": "200ms"}});
    let task = create_task(client, value).await;
    let events = next_events(&mut socket, 10).await;
    ledger::positions(&events, 1..=10).unwrap();
    let runs = succeeded(client, task.id, 10).await;
    assert!(runs.iter().all(|run| run.trigger == Trigger::Schedule && run.scheduled_for.is_some()));
}

async fn a_run_that_succeeded_publishes_again_when_it_is_retried(cluster: Cluster) {
    let client = cluster.any();
    create_room(client, "lobby").await;
    let task = create_task(client, event_task("note", "lobby")).await;
    let run = trigger(client, task.id).await;
    for retries in 1..=2 {
        assert_eq!(ended(client, run).await.state, RunState::Succeeded);
        let events = client.history(&room("lobby"), 0, 500).await.unwrap().events;
        assert_eq!(events.len(), retries, "each retry publishes once");
        client.retry_run(run).await.unwrap();
    }
    ended(client, run).await;
    let events = client.history(&room("lobby"), 0, 500).await.unwrap().events;
    let ids: Vec<&str> = events.iter().map(|event| event.msg_id.as_str()).collect();
    assert_eq!(ids, [run.to_string(), format!("{run}.1"), format!("{run}.2")]);
}

async fn a_triggered_run_carries_its_input(cluster: Cluster) {
    let client = cluster.any();
    create_room(client, "lobby").await;
    let mut socket = cluster.socket(0, "ann").await;
    socket.handle().join(&room("lobby"), Since::default()).await.unwrap();
    let task = create_task(client, event_task("hello", "lobby")).await;
    let request = TriggerRequest {
        input: Some(json(serde_json::json!({"name": "world"}))),
        dedupe_key: Some("once".parse().unwrap()),
        ..TriggerRequest::default()
    };
    let run = client.trigger_task(task.id, &request).await.unwrap().run_id;
    let event = next_event(&mut socket).await;
    assert_eq!(event.payload.as_str(), r#"{"name":"world"}"#);
    assert_eq!(event.msg_id, run.to_string());
    let run = ended(client, run).await;
    assert_eq!((run.state, run.trigger, run.attempt), (RunState::Succeeded, Trigger::Manual, 1));
}

async fn a_run_without_a_future_fails_with_its_reason(cluster: Cluster) {
    let client = cluster.any();
    let task = create_task(client, event_task("lost", "nowhere")).await;
    let run = ended(client, trigger(client, task.id).await).await;
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(run.error.as_deref(), Some("there is no room nowhere; create it first"));
}

async fn events_are_published_read_back_and_deduplicated(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let lobby = room("lobby");
    let mut request = event("note", serde_json::json!({"n": 1}));
    request.msg_id = Some("m-1".parse().unwrap());
    let first = cluster.any().publish(&lobby, &request).await.unwrap();
    let again = cluster.any().publish(&lobby, &request).await.unwrap();
    assert_eq!(first.position, again.position);
    assert!(!first.duplicate && again.duplicate);
    let batch: Vec<_> = (2..=20).map(|n| event("note", serde_json::json!({"n": n}))).collect();
    cluster.any().publish_batch(&lobby, batch).await.unwrap();
    let page = cluster.any().history(&lobby, 0, 500).await.unwrap();
    let offsets: Vec<i64> = page.events.iter().map(|event| event.offset).collect();
    assert_eq!(offsets, (1..=20).collect::<Vec<_>>());
    assert_eq!((page.top, page.first_kept), (20, 1));
    assert_eq!(page.events[19].payload.as_str(), r#"{"n":20}"#);
    assert_eq!(cluster.any().history(&lobby, 18, 500).await.unwrap().events.len(), 2);
}

async fn a_socket_resumes_where_it_stopped(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let lobby = room("lobby");
    let mut position: Option<Position> = None;
    let mut events = Vec::new();
    for round in 0..6 {
        let mut socket = cluster.socket(round % cluster.size(), "ann").await;
        let since = position.clone().map_or(Since::End(SinceEnd::Earliest), Since::Position);
        for n in 0..50 {
            cluster.any().publish(&lobby, &event("note", serde_json::json!({"n": n}))).await.unwrap();
        }
        let joined = socket.handle().join(&lobby, since).await.unwrap();
        assert!(joined.recovered, "round {round}: {joined:?}");
        events.extend(next_events(&mut socket, 50).await);
        position = events.last().and_then(|event| event.position());
    }
    ledger::positions(&events, 1..=300).unwrap();

    let socket = cluster.socket(0, "ann").await;
    let mut future = position.unwrap();
    future.offset += 1;
    let joined = socket.handle().join(&lobby, Since::Position(future)).await.unwrap();
    assert_eq!((joined.recovered, joined.offset), (false, 300));
    socket.handle().leave(&lobby).await.unwrap();
    let twice = socket.handle().leave(&lobby).await.unwrap_err();
    assert_eq!(twice.code(), Some(ErrorCode::NotJoined));
}

async fn a_targeted_event_reaches_only_its_user(cluster: Cluster) {
    let last = cluster.size() - 1;
    let mut ann = cluster.socket(0, "ann").await;
    let mut ann_elsewhere = cluster.socket(last, "ann").await;
    let mut bob = cluster.socket(last, "bob").await;
    let client = cluster.any();
    client.publish_to_user(&"ann".parse().unwrap(), &event("secret", serde_json::json!(1))).await.unwrap();
    client.publish_to_user(&"bob".parse().unwrap(), &event("other", serde_json::json!(2))).await.unwrap();
    for socket in [&mut ann, &mut ann_elsewhere] {
        let event = next_event(socket).await;
        assert_eq!((event.event.as_str(), event.room.as_str(), event.offset), ("secret", "user:ann", Some(1)));
    }
    // Bob's first event is his own: the earlier one never came to him.
    assert_eq!(next_event(&mut bob).await.event.as_str(), "other");
}

async fn an_ephemeral_event_reaches_whoever_is_connected(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let lobby = room("lobby");
    let mut here = cluster.socket(0, "ann").await;
    let mut there = cluster.socket(cluster.size() - 1, "bob").await;
    here.handle().join(&lobby, Since::default()).await.unwrap();
    there.handle().join(&lobby, Since::default()).await.unwrap();
    let typing = Publish {
        room: lobby.clone(),
        event: "typing".parse().unwrap(),
        payload: json(serde_json::json!({})),
        msg_id: Some("t-1".parse().unwrap()),
        ephemeral: true,
    };
    here.handle().publish(typing).await.unwrap();
    for socket in [&mut here, &mut there] {
        let event = next_event(socket).await;
        assert_eq!((event.event.as_str(), event.msg_id.as_str(), event.offset), ("typing", "t-1", None));
        assert!(event.ts > 1_600_000_000_000);
    }
    assert_eq!(cluster.any().history(&lobby, 0, 10).await.unwrap().top, 0, "nothing was stored");
}

async fn a_ticket_opens_one_socket(cluster: Cluster) {
    let ticket = cluster.ticket_for("ann", Grants::default()).await;
    let there = cluster.client(cluster.size() - 1);
    let tries = join_all((0..20).map(|_| there.connect(SocketOptions::ticket(ticket.clone())))).await;
    let (opened, refused): (Vec<_>, Vec<_>) = tries.into_iter().partition(Result::is_ok);
    assert_eq!(opened.len(), 1);
    assert!(refused.into_iter().all(|refused| refused.err().and_then(|error| error.status()) == Some(401)));
    let socket = opened.into_iter().next().unwrap().unwrap();
    assert_eq!(socket.hello().user_id.as_str(), "ann");
    socket.handle().ping().await.unwrap();
}

async fn a_waiting_run_is_cancelled_and_retried(cluster: Cluster) {
    let client = cluster.any();
    create_room(client, "lobby").await;
    let task = create_task(client, event_task("later", "lobby")).await;
    let request = TriggerRequest { delay: Some("1h".parse().unwrap()), ..TriggerRequest::default() };
    let run = client.trigger_task(task.id, &request).await.unwrap().run_id;
    assert_eq!(client.get_run(run).await.unwrap().state, RunState::Scheduled);
    client.cancel_run(run).await.unwrap();
    assert_eq!(client.get_run(run).await.unwrap().state, RunState::Cancelled);
    assert_eq!(client.cancel_run(run).await.unwrap_err().code(), Some(ErrorCode::RunEnded));
    client.retry_run(run).await.unwrap();
    assert_eq!(ended(client, run).await.state, RunState::Succeeded);
    assert_eq!(runs(client, task.id).await.len(), 1);
}

async fn errors_say_what_to_do(cluster: Cluster) {
    let client = cluster.any();
    let anonymous = client.with_credential(None);
    let refused = anonymous.list_tasks(PageRequest::default()).await.unwrap_err();
    assert_eq!((refused.status(), refused.code()), (Some(401), Some(ErrorCode::Unauthorized)));
    let missing = client.publish(&room("nowhere"), &event("note", serde_json::json!(1))).await.unwrap_err();
    assert_eq!((missing.status(), missing.code()), (Some(404), Some(ErrorCode::NotFound)));
    let mut short = event_task("short", "lobby");
    short["schedule"] = serde_json::json!({"every": {"interval": "1ms"}});
    let refused = client.create_task(&spec(short)).await.unwrap_err();
    assert_eq!((refused.status(), refused.code()), (Some(422), Some(ErrorCode::ValidationFailed)));
    assert!(refused.to_string().contains("at least 100ms"), "{refused}");

    let reserved = client.create_task(&spec(event_task("run.finished", "lobby"))).await.unwrap_err();
    assert_eq!(reserved.code(), Some(ErrorCode::ValidationFailed));

    let text = reqwest_get(client, "/api/v1/nothing").await;
    assert!(text.contains("\"code\":\"not_found\"") && text.contains("\"request_id\":"), "{text}");
}

async fn reqwest_get(client: &Client, path: &str) -> String {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let base = client.base_url().trim_end_matches('/').to_owned();
    reqwest::get(format!("{base}{path}")).await.unwrap().text().await.unwrap()
}

async fn payloads_arrive_byte_for_byte(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let lobby = room("lobby");
    let mut socket = cluster.socket(cluster.size() - 1, "ann").await;
    socket.handle().join(&lobby, Since::default()).await.unwrap();
    let long = format!("\"{}\"", "é€😀".repeat(6_000));
    for text in [r#"{"a":"\u0000", "b" : "\ud800"}"#, "1.0e5", long.as_str()] {
        let mut request = event("note", serde_json::json!(null));
        request.payload = switchboard_model::json_text::JsonText::parse(text).unwrap();
        cluster.any().publish(&lobby, &request).await.unwrap();
        assert_eq!(next_event(&mut socket).await.payload.as_str(), text);
    }
    let mut request = event("note", serde_json::json!(null));
    request.payload = switchboard_model::json_text::JsonText::parse(format!("\"{}\"", "x".repeat(61_440))).unwrap();
    let refused = cluster.any().publish(&lobby, &request).await.unwrap_err();
    assert_eq!((refused.status(), refused.code()), (Some(413), Some(ErrorCode::PayloadTooLarge)));
    wait_until("an unchanged top", async || {
        let top = cluster.any().history(&lobby, 0, 1).await.unwrap().top;
        (top == 3).then_some(())
    })
    .await;
}

async fn a_calendar_is_previewed_and_fires(cluster: Cluster) {
    let client = cluster.any();
    let schedule = |expression: &str, zone: &str| {
        let text = serde_json::json!({"cron": {"expression": expression, "zone": zone}}).to_string();
        serde_json::from_str::<Schedule>(&text).unwrap()
    };
    let from = Some("2027-03-13T12:00:00Z".parse().unwrap());
    let night = PreviewRequest { schedule: schedule("30 2 * * *", "America/New_York"), from, count: 2 };
    let shown = client.preview_schedule(&night).await.unwrap().items;
    assert_eq!(shown[0].at.to_rfc3339(), "2027-03-14T07:00:00+00:00");
    assert_eq!(shown[0].remark, Some(Remark::MovedAfterGap));
    assert_eq!(shown[1].at.to_rfc3339(), "2027-03-15T06:30:00+00:00");
    let nowhere = PreviewRequest { schedule: schedule("@daily", "Mars/Olympus"), from, count: 2 };
    assert_eq!(client.preview_schedule(&nowhere).await.unwrap_err().code(), Some(ErrorCode::ZoneUnknown));
    let never = PreviewRequest { schedule: schedule("0 0 30 2 *", "UTC"), from, count: 2 };
    assert_eq!(client.preview_schedule(&never).await.unwrap_err().code(), Some(ErrorCode::ScheduleNeverFires));

    create_room(client, "lobby").await;
    let mut value = event_task("second", "lobby");
    value["schedule"] = serde_json::json!({"cron": {"expression": "* * * * * *", "zone": "Europe/Kiev"}});
    let task = create_task(client, value).await;
    let runs = succeeded(client, task.id, 3).await;
    assert!(runs.iter().all(|run| run.scheduled_for.is_some_and(|at| at.timestamp_subsec_micros() == 0)));
}
