//! Hosts whose clocks are wrong: the database decides what time it is.

use chrono::TimeDelta;
use switchboard_client::{SocketOptions, WebhookDelivery};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::RunState;
use switchboard_model::secret_text::SecretText;
use switchboard_model::ticket::Grants;
use switchboard_model::user::UserRole;
use switchboard_model::wire::auth::{LoginRequest, Password, UserRequest};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{TicketRequest, WebhookSecretRequest};
use switchboard_testkit::{Cluster, ledger, wait_until};

use crate::fixtures::{
    cluster, create_room, create_task, ended, event_task, gated_task, runs, skips, started, succeeded, trigger,
};

/// How long after its time a run may start on a busy machine; far less than the clocks are wrong.
const LATE: TimeDelta = TimeDelta::seconds(60);

async fn skewed() -> Cluster {
    // No replica has permits for all the long runs, and each has one left for others.
    cluster(3).env("SWITCHBOARD_SCHEDULER__PERMITS", "4").clock_offset(0, 30).clock_offset(1, -30).await
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_and_leases_go_by_database_time() {
    let cluster = skewed().await;
    create_room(cluster.any(), "lobby").await;
    let mut value = event_task("tick", "lobby");
    value["schedule"] = serde_json::json!({"every": {"interval": "1s"}});
    let task = create_task(cluster.any(), value).await;
    let gated = create_task(cluster.any(), gated_task("held")).await;
    let mut triggered = Vec::new();
    for index in 0..9 {
        triggered.push(trigger(cluster.client(index % 3), gated.id).await);
    }
    // Each lasts longer than it takes to renew its lease.
    for run in &triggered {
        let leased_until = started(cluster.any(), *run).await.lease_until;
        wait_until("a renewal", async || {
            let run = cluster.any().get_run(*run).await.unwrap();
            if run.lease_until > leased_until { Ok(()) } else { Err(run) }
        })
        .await;
    }
    cluster.open_gate();
    for run in triggered {
        let run = ended(cluster.any(), run).await;
        assert_eq!((run.state, run.attempt), (RunState::Succeeded, 1), "no lease is lost: {run:?}");
    }
    let runs_of_tick = succeeded(cluster.any(), task.id, 8).await;
    let now = cluster.database().now().await;
    let last = runs_of_tick.iter().filter_map(|run| run.scheduled_for).max().unwrap();
    assert!(last <= now && now - last < LATE, "the newest occurrence is {last} at {now}");
    for run in &runs_of_tick {
        assert!(run.attempt <= 1, "no lease is lost: {run:?}");
        if let (Some(due), Some(started)) = (run.scheduled_for, run.started_at) {
            assert!(started >= due && started - due < LATE, "neither early nor late: {run:?}");
        }
    }
    let first = runs_of_tick.iter().filter_map(|run| run.scheduled_for).min().unwrap();
    let (all, skips) = (runs(cluster.any(), task.id).await, skips(cluster.any(), task.id).await);
    assert!(skips.is_empty(), "nothing is missed: {skips:?}");
    ledger::occurrences(task.spec.schedule.as_ref().unwrap(), first..=last, &all, &skips).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_tokens_and_webhooks_work_on_every_replica() {
    let cluster = skewed().await;
    create_room(cluster.any(), "lobby").await;
    let task = create_task(cluster.any(), event_task("paid", "lobby")).await;
    let made = cluster.any().create_webhook_secret(task.id, &WebhookSecretRequest::default()).await.unwrap();
    let secret = SecretText::from_presented(made.secret);
    let user = UserRequest {
        id: None,
        name: "ann".parse().unwrap(),
        password: Some(Password::new("correct horse battery staple")),
        role: UserRole::User,
    };
    cluster.any().create_user(&user).await.unwrap();
    for here in 0..3 {
        let client = cluster.client(here);
        let body = JsonText::parse("{}").unwrap();
        let delivery = WebhookDelivery::of_json(format!("msg_{here}"), &body);
        let old = WebhookDelivery { timestamp: delivery.timestamp - 400, ..delivery.clone() };
        let refused = client.send_webhook(&task.spec.name, &secret, &old).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::Unauthorized), "replica {here}");
        let run = client.send_webhook(&task.spec.name, &secret, &delivery).await.unwrap().run_id;
        assert_eq!(ended(client, run).await.state, RunState::Succeeded);

        let login =
            LoginRequest { name: "ann".parse().unwrap(), password: Password::new("correct horse battery staple") };
        let tokens = client.with_credential(None).login(&login).await.unwrap();
        for there in 0..3 {
            let token = SecretText::from_presented(tokens.access_token.clone());
            cluster.client(there).with_credential(Some(token)).me().await.unwrap();
            let request =
                TicketRequest { user_id: Some("bob".parse().unwrap()), origin: None, grants: Grants::default() };
            let ticket = client.mint_ticket(&request).await.unwrap();
            cluster.client(there).connect(SocketOptions::ticket(ticket)).await.unwrap();
        }
    }
}
