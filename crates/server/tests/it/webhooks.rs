//! Webhooks from outside: whatever is delivered again, or dies in between, makes one run.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use switchboard_client::{Client, Triggered, WebhookDelivery};
use switchboard_model::json_text::JsonText;
use switchboard_model::run::{RunState, Trigger};
use switchboard_model::secret_text::SecretText;
use switchboard_model::task::Task;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::op::Since;
use switchboard_model::wire::rest::{TriggerRequest, WebhookSecretRequest};
use switchboard_testkit::{Cluster, ClusterBuilder};

use crate::fixtures::{
    cluster, create_room, create_task, ended, event_task, next_event, on_every_database, room, runs, slow_task,
};

const BODY: &str = r#"{"invoice" : "\ud800"}"#;

on_every_database! {
    a_delivery_runs_the_task_with_its_body,
    equal_deliveries_make_one_run,
    a_trigger_waits_for_the_end,
}

/// Makes a task that is reached by webhooks, and the secret for them.
async fn hooked(client: &Client, name: &str) -> (Task, SecretText) {
    let task = create_task(client, event_task(name, "lobby")).await;
    let made = client.create_webhook_secret(task.id, &WebhookSecretRequest::default()).await.unwrap();
    (task, SecretText::from_presented(made.secret))
}

fn delivery(id: &str) -> WebhookDelivery {
    WebhookDelivery::of_json(id, &JsonText::parse(BODY).unwrap())
}

async fn a_delivery_runs_the_task_with_its_body(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let mut socket = cluster.socket(0, "ann").await;
    socket.handle().join(&room("lobby"), Since::default()).await.unwrap();
    let (task, secret) = hooked(cluster.any(), "paid").await;
    let sent = cluster.any().send_webhook(&task.spec.name, &secret, &delivery("msg_1")).await.unwrap();
    assert_eq!(next_event(&mut socket).await.payload.as_str(), BODY);
    let run = ended(cluster.any(), sent.run_id).await;
    assert_eq!((run.state, run.trigger), (RunState::Succeeded, Trigger::Webhook));

    let mut old = delivery("msg_2");
    old.timestamp -= 400;
    let stranger = SecretText::from_presented(format!("whsec_{}", "A".repeat(32)));
    let nothing = "nothing".parse().unwrap();
    for (name, secret, delivery) in [
        (&task.spec.name, &secret, &old),
        (&task.spec.name, &stranger, &delivery("msg_2")),
        (&nothing, &secret, &delivery("msg_2")),
    ] {
        let refused = cluster.any().send_webhook(name, secret, delivery).await.unwrap_err();
        assert_eq!((refused.status(), refused.code()), (Some(401), Some(ErrorCode::Unauthorized)));
    }
    assert_eq!(runs(cluster.any(), task.id).await.len(), 1);
    assert_eq!(cluster.any().list_webhook_secrets(task.id).await.unwrap().len(), 1);
}

async fn equal_deliveries_make_one_run(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let (task, secret) = hooked(cluster.any(), "paid").await;
    let delivery = delivery("msg_1");
    let send = |index: usize| cluster.client(index % cluster.size()).send_webhook(&task.spec.name, &secret, &delivery);
    let answers = join_all((0..20).map(send)).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    let made: BTreeSet<_> = answers.iter().map(|answer| answer.run_id).collect();
    assert_eq!(made.len(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| !answer.duplicate).count(), 1);
    let runs = runs(cluster.any(), task.id).await;
    assert_eq!(runs.iter().map(|run| run.id).collect::<Vec<_>>(), made.into_iter().collect::<Vec<_>>());

    let mut other = delivery.clone();
    other.body = b"{}".to_vec();
    let refused = cluster.any().send_webhook(&task.spec.name, &secret, &other).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::IdempotencyMismatch));
}

async fn a_trigger_waits_for_the_end(cluster: Cluster) {
    let task = create_task(cluster.any(), slow_task("slow")).await;
    let request = TriggerRequest::default();
    let long = cluster.any().trigger_and_wait(task.id, &request, "20s".parse().unwrap()).await.unwrap();
    assert!(matches!(&long, Triggered::Ended(run) if run.state == RunState::Succeeded), "{long:?}");
    let short = cluster.any().trigger_and_wait(task.id, &request, "100ms".parse().unwrap()).await.unwrap();
    let Triggered::Pending(pending) = short else { panic!("the run takes longer: {short:?}") };
    assert_eq!(ended(cluster.any(), pending.run_id).await.state, RunState::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_waits_for_a_run_on_another_replica() {
    let cluster = cluster(2).env_of(0, "SWITCHBOARD_ROLES", "api").await;
    let task = create_task(cluster.client(0), slow_task("slow")).await;
    let request = TriggerRequest::default();
    let waited = cluster.client(0).trigger_and_wait(task.id, &request, "20s".parse().unwrap()).await.unwrap();
    let Triggered::Ended(run) = waited else { panic!("the run has an end: {waited:?}") };
    assert!(run.leased_by.is_some_and(|by| by.as_str().starts_with("b-")));
}

/// The replica dies at a fail point while it takes a delivery; the same delivery is made again after its restart.
async fn a_delivery_survives(builder: ClusterBuilder, point: &str, is_known_after: bool) {
    let mut cluster = builder.fail_point(0, point).await;
    create_room(cluster.client(0), "lobby").await;
    let (task, secret) = hooked(cluster.client(0), "paid").await;
    let delivery = delivery("msg_1");
    let lost = cluster.client(0).send_webhook(&task.spec.name, &secret, &delivery).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(!cluster.ended(0).await.success());
    cluster.restart(0).await;
    let client = cluster.client(0);
    let first = client.send_webhook(&task.spec.name, &secret, &delivery).await.unwrap();
    assert_eq!(first.duplicate, is_known_after);
    let again = client.send_webhook(&task.spec.name, &secret, &delivery).await.unwrap();
    assert_eq!((again.run_id, again.duplicate), (first.run_id, true));
    assert_eq!(ended(client, first.run_id).await.state, RunState::Succeeded);
    assert_eq!(runs(client, task.id).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_before_a_delivery_is_committed_burns_nothing_on_sqlite() {
    a_delivery_survives(cluster(1).sqlite(), "before_trigger_commit", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_after_a_delivery_was_committed_repeats_nothing_on_sqlite() {
    a_delivery_survives(cluster(1).sqlite(), "after_trigger_commit", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_before_a_delivery_is_committed_burns_nothing_on_postgres() {
    a_delivery_survives(cluster(1), "before_trigger_commit", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dying_after_a_delivery_was_committed_repeats_nothing_on_postgres() {
    a_delivery_survives(cluster(1), "after_trigger_commit", true).await;
}
