//! Idempotency keys from outside: equal requests at the same time have one effect and one answer.

use std::fmt::Debug;

use futures_util::future::join_all;
use switchboard_client::{Client, ClientError, RunQuery};
use switchboard_model::page::{MAX_PAGE, PageRequest};
use switchboard_model::room::{Retention, RoomKind};
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::op::Since;
use switchboard_model::wire::rest::{ApiKeyRequest, PublishRequest, RoomRequest, TriggerRequest, WebhookSecretRequest};
use switchboard_testkit::Cluster;

use crate::fixtures::{create_room, create_task, event, event_task, next_event, on_every_database, room, runs, spec};

on_every_database! {
    equal_creations_have_one_effect_and_one_answer,
    equal_publishes_have_one_effect_and_one_answer,
    equal_requests_for_secrets_make_one,
    ephemeral_events_under_a_key_are_sent_once,
}

/// How many requests are made at the same time.
const REQUESTS: usize = 20;

/// Makes the same request many times at once, over all replicas, under one key.
async fn all<T>(
    cluster: &Cluster,
    key: &str,
    ask: impl AsyncFn(Client) -> Result<T, ClientError>,
) -> Vec<Result<T, ClientError>> {
    let key: switchboard_model::identity::ClientKey = key.parse().unwrap();
    let client = |index: usize| cluster.client(index % cluster.size()).with_idempotency_key(key.clone());
    join_all((0..REQUESTS).map(|index| ask(client(index)))).await
}

/// As [`all`], for requests whose answers are all the same.
async fn same<T: Debug + PartialEq>(
    cluster: &Cluster,
    key: &str,
    ask: impl AsyncFn(Client) -> Result<T, ClientError>,
) -> T {
    let mut answers: Vec<T> = all(cluster, key, ask).await.into_iter().map(Result::unwrap).collect();
    let last = answers.pop().unwrap();
    assert!(answers.iter().all(|answer| *answer == last), "{answers:?}");
    last
}

/// Makes another request under a key that is taken.
async fn refused<T: Debug>(cluster: &Cluster, key: &str, ask: impl AsyncFn(Client) -> Result<T, ClientError>) {
    let client = cluster.any().with_idempotency_key(key.parse().unwrap());
    assert_eq!(ask(client).await.unwrap_err().code(), Some(ErrorCode::IdempotencyMismatch));
}

async fn equal_creations_have_one_effect_and_one_answer(cluster: Cluster) {
    let lobby = |kind| RoomRequest { name: room("lobby"), kind, retention: Retention::default() };
    let (public, private) = (lobby(RoomKind::Public), lobby(RoomKind::Private));
    same(&cluster, "k", async |client| client.create_room(&public).await).await;
    refused(&cluster, "k", async |client| client.create_room(&private).await).await;

    let (note, other) = (spec(event_task("note", "lobby")), spec(event_task("other", "lobby")));
    let task = same(&cluster, "k", async |client| client.create_task(&note).await).await;
    refused(&cluster, "k", async |client| client.create_task(&other).await).await;
    assert!(cluster.any().find_task(&other.name).await.is_err());

    let request = TriggerRequest::default();
    let run = same(&cluster, "k", async |client| client.trigger_task(task.id, &request).await).await;
    let delayed = TriggerRequest { delay: Some("1h".parse().unwrap()), ..TriggerRequest::default() };
    refused(&cluster, "k", async |client| client.trigger_task(task.id, &delayed).await).await;
    assert_eq!(runs(cluster.any(), task.id).await.iter().map(|run| run.id).collect::<Vec<_>>(), [run.run_id]);
}

async fn equal_publishes_have_one_effect_and_one_answer(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let (lobby, ann) = (room("lobby"), "ann".parse().unwrap());
    let note = event("note", serde_json::json!(1));
    let other = event("note", serde_json::json!(2));
    let batch: Vec<PublishRequest> = (0..10).map(|n| event("note", serde_json::json!(n))).collect();

    let published = same(&cluster, "single", async |client| client.publish(&lobby, &note).await).await;
    assert_eq!((published.position.map(|position| position.offset), published.duplicate), (Some(1), false));
    refused(&cluster, "single", async |client| client.publish(&lobby, &other).await).await;

    let items = same(&cluster, "batch", async |client| client.publish_batch(&lobby, batch.clone()).await).await;
    assert_eq!(items.len(), 10);
    refused(&cluster, "batch", async |client| client.publish_batch(&lobby, vec![other.clone()]).await).await;
    let history = cluster.any().history(&lobby, 0, 500).await.unwrap();
    assert_eq!((history.top, history.events.len()), (11, 11));

    same(&cluster, "single", async |client| client.publish_to_user(&ann, &note).await).await;
    refused(&cluster, "single", async |client| client.publish_to_user(&ann, &other).await).await;
    assert_eq!(cluster.any().history(&room("user:ann"), 0, 500).await.unwrap().top, 1);
}

/// What is shown once is answered with its identity to all but one.
fn one_made<T: Debug>(answers: Vec<Result<T, ClientError>>) {
    let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (1, REQUESTS - 1));
    assert!(refused.into_iter().all(|refused| refused.unwrap_err().code() == Some(ErrorCode::Duplicate)));
}

async fn equal_requests_for_secrets_make_one(cluster: Cluster) {
    let task = create_task(cluster.any(), event_task("note", "lobby")).await;
    let request = WebhookSecretRequest::default();
    let answers = all(&cluster, "k", async |client| {
        client.create_webhook_secret(task.id, &request).await.map(|made| made.webhook_secret)
    });
    one_made(answers.await);
    assert_eq!(cluster.any().list_webhook_secrets(task.id).await.unwrap().len(), 1);
    let other = WebhookSecretRequest { ttl: Some("1h".parse().unwrap()), ..WebhookSecretRequest::default() };
    refused(&cluster, "k", async |client| {
        client.create_webhook_secret(task.id, &other).await.map(|made| made.webhook_secret)
    })
    .await;

    let key = |name: &str| ApiKeyRequest { name: name.to_owned(), scopes: vec![Scope::TasksRead], ttl: None };
    let (mine, other) = (key("mine"), key("other"));
    one_made(all(&cluster, "k", async |client| client.create_api_key(&mine).await.map(|made| made.key)).await);
    refused(&cluster, "k", async |client| client.create_api_key(&other).await.map(|made| made.key)).await;
    let page = PageRequest { after: None, limit: MAX_PAGE };
    let keys = cluster.any().list_api_keys(page).await.unwrap().items;
    assert_eq!(keys.iter().filter(|key| key.name == "mine").count(), 1);
    assert_eq!(
        cluster
            .any()
            .list_runs(RunQuery { task_id: Some(task.id), state: None }, PageRequest::default())
            .await
            .unwrap()
            .items
            .len(),
        0
    );
}

async fn ephemeral_events_under_a_key_are_sent_once(cluster: Cluster) {
    create_room(cluster.any(), "lobby").await;
    let lobby = room("lobby");
    let mut socket = cluster.socket(cluster.size() - 1, "ann").await;
    socket.handle().join(&lobby, Since::default()).await.unwrap();
    let typing = PublishRequest { ephemeral: true, ..event("typing", serde_json::json!(1)) };
    let note = event("note", serde_json::json!(2));
    same(&cluster, "alone", async |client| client.publish(&lobby, &typing).await).await;
    let batch = vec![typing.clone(), note.clone()];
    same(&cluster, "mixed", async |client| client.publish_batch(&lobby, batch.clone()).await).await;
    cluster
        .any()
        .publish(&lobby, &PublishRequest { ephemeral: true, ..event("end", serde_json::json!(3)) })
        .await
        .unwrap();
    let mut names: Vec<String> = Vec::new();
    // What is stored and what is not arrive in an order of their own each.
    while !["note", "end"].iter().all(|last| names.iter().any(|name| name == last)) {
        names.push(next_event(&mut socket).await.event.to_string());
    }
    assert_eq!(names.iter().filter(|name| *name == "typing").count(), 2, "{names:?}");
    assert_eq!(names.iter().filter(|name| *name == "note").count(), 1, "{names:?}");
}
