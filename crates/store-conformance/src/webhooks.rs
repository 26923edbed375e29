//! Secrets of webhooks: which of them work, how many there may be, and that they go with their task.

use switchboard_model::ids::{TaskId, WebhookSecretId};
use switchboard_model::span::Span;
use switchboard_model::webhook::{
    NewWebhookSecret, SealedWebhookSecret, SecretPurpose, WEBHOOK_SECRETS, WebhookSecret,
};
use switchboard_store_api::{Stores, WebhookSecretOutcome};

use crate::Backend;
use crate::accounts::new_secret;
use crate::fixtures::{LONG, SHORT, contend, create, now, replicas, spec, system, until, wait_past};

/// Adds a secret that must be accepted.
async fn add(stores: &Stores, secret: &NewWebhookSecret) -> WebhookSecret {
    match attempt(stores, secret).await {
        WebhookSecretOutcome::Added(secret) => secret,
        other => panic!("secret not added: {other:?}"),
    }
}

async fn attempt(stores: &Stores, secret: &NewWebhookSecret) -> WebhookSecretOutcome {
    now(stores.webhooks.add(&system(), secret).await.unwrap())
}

/// Reads the secrets that work for the task of this name, newest first.
async fn working(stores: &Stores, name: &str) -> Option<Vec<WebhookSecretId>> {
    let target = stores.webhooks.target(&name.parse().unwrap()).await.unwrap()?;
    Some(target.secrets.iter().map(|secret| secret.id).collect())
}

pub(crate) async fn a_task_has_secrets_newest_first(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("deploy", |_| {})).await.id;
    let other = create(&stores, &spec("other", |_| {})).await.id;
    assert_eq!(working(&stores, "deploy").await, Some(vec![]), "a task without secrets is a task");
    assert_eq!(working(&stores, "nothing").await, None);
    assert_eq!(stores.webhooks.list(task).await.unwrap(), []);

    let bytes = [vec![], vec![0, 255, 0], (0..=255).cycle().take(4_096).collect()];
    let mut made = Vec::new();
    for (sealed, ttl) in bytes.clone().into_iter().zip([None, Some(LONG), None]) {
        let new = NewWebhookSecret { sealed, ttl, ..new_secret(task) };
        let secret = add(&stores, &new).await;
        assert_eq!((secret.id, secret.task_id), (new.id, task));
        assert_eq!(secret.expires_at, ttl.map(|ttl| secret.created_at + ttl.to_delta()));
        made.push(secret);
    }
    let elsewhere = add(&stores, &new_secret(other)).await;
    let target = stores.webhooks.target(&"deploy".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(target.task_id, task);
    let expected: Vec<_> =
        made.iter().zip(bytes).rev().map(|(secret, sealed)| SealedWebhookSecret { id: secret.id, sealed }).collect();
    assert!(target.secrets == expected);
    assert_eq!(stores.webhooks.list(task).await.unwrap(), made);
    assert_eq!(stores.webhooks.list(other).await.unwrap(), [elsewhere]);
}

pub(crate) async fn a_secret_needs_a_task(backend: &dyn Backend) {
    let stores = backend.stores().await;
    assert_eq!(attempt(&stores, &new_secret(TaskId::new())).await, WebhookSecretOutcome::TaskNotFound);
    let task = create(&stores, &spec("deploy", |_| {})).await;
    add(&stores, &new_secret(task.id)).await;
    stores.tasks.delete(&system(), task.id).await.unwrap();
    assert_eq!(attempt(&stores, &new_secret(task.id)).await, WebhookSecretOutcome::TaskNotFound);
    assert_eq!(working(&stores, "deploy").await, None);
    create(&stores, &task.spec).await;
    assert_eq!(working(&stores, "deploy").await, Some(vec![]), "a task that is made again has none of the old ones");
}

pub(crate) async fn secrets_stay_with_a_task_that_is_renamed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("old", |_| {})).await;
    let secret = add(&stores, &new_secret(task.id)).await;
    stores.tasks.update(&system(), task.id, 1, &spec("new", |_| {})).await.unwrap();
    assert_eq!(working(&stores, "old").await, None);
    assert_eq!(working(&stores, "new").await, Some(vec![secret.id]));
    stores.tasks.set_active(&system(), task.id, false).await.unwrap();
    assert_eq!(working(&stores, "new").await, Some(vec![secret.id]), "a paused task can be triggered");
}

pub(crate) async fn an_expired_secret_works_no_more_but_is_listed(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("deploy", |_| {})).await.id;
    let brief = add(&stores, &NewWebhookSecret { ttl: Some(SHORT), ..new_secret(task) }).await;
    let kept = add(&stores, &new_secret(task)).await;
    let found = until(|| working(&stores, "deploy"), |ids| ids.as_ref().is_some_and(|ids| ids.len() == 1)).await;
    assert_eq!(found, Some(vec![kept.id]));
    assert_eq!(stores.webhooks.list(task).await.unwrap(), [brief, kept]);
}

pub(crate) async fn only_so_many_secrets_work_at_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("deploy", |_| {})).await.id;
    let brief = add(&stores, &NewWebhookSecret { ttl: Some(SHORT), ..new_secret(task) }).await;
    wait_past(&stores, brief.expires_at.unwrap()).await;
    let mut made = Vec::new();
    for _ in 0..WEBHOOK_SECRETS {
        made.push(add(&stores, &new_secret(task)).await.id);
    }
    let surplus = new_secret(task);
    assert_eq!(attempt(&stores, &surplus).await, WebhookSecretOutcome::TooMany);
    let other = create(&stores, &spec("other", |_| {})).await.id;
    add(&stores, &new_secret(other)).await;
    made.reverse();
    assert_eq!(working(&stores, "deploy").await.as_ref(), Some(&made));
    assert!(stores.webhooks.delete(&system(), task, made[3]).await.unwrap());
    add(&stores, &surplus).await;
}

pub(crate) async fn a_deleted_secret_works_no_more(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("deploy", |_| {})).await.id;
    let other = create(&stores, &spec("other", |_| {})).await.id;
    let [secret, kept] = [add(&stores, &new_secret(task)).await, add(&stores, &new_secret(task)).await];
    assert!(!stores.webhooks.delete(&system(), other, secret.id).await.unwrap(), "it belongs to another task");
    assert!(!stores.webhooks.delete(&system(), task, WebhookSecretId::new()).await.unwrap());
    assert_eq!(working(&stores, "deploy").await, Some(vec![kept.id, secret.id]));
    assert!(stores.webhooks.delete(&system(), task, secret.id).await.unwrap());
    assert!(!stores.webhooks.delete(&system(), task, secret.id).await.unwrap());
    assert_eq!(working(&stores, "deploy").await, Some(vec![kept.id]));
    assert_eq!(stores.webhooks.list(task).await.unwrap(), [kept]);
}

pub(crate) async fn sweep_deletes_expired_secrets_and_those_of_deleted_tasks(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("deploy", |_| {})).await.id;
    let doomed = create(&stores, &spec("doomed", |_| {})).await.id;
    let kept = add(&stores, &NewWebhookSecret { ttl: Some(LONG), ..new_secret(task) }).await;
    for _ in 0..2 {
        add(&stores, &new_secret(doomed)).await;
    }
    let mut last = None;
    for _ in 0..3 {
        last = add(&stores, &NewWebhookSecret { ttl: Some(Span::from_millis(1)), ..new_secret(task) }).await.expires_at;
    }
    wait_past(&stores, last.unwrap()).await;
    stores.tasks.delete(&system(), doomed).await.unwrap();
    let mut swept = 0;
    loop {
        let deleted = stores.webhooks.sweep(2).await.unwrap();
        assert!(deleted <= 2);
        swept += deleted;
        if deleted == 0 {
            break;
        }
    }
    assert!((3..=5).contains(&swept), "{swept} swept; those of a deleted task may go with it");
    assert_eq!(stores.webhooks.list(doomed).await.unwrap(), []);
    assert_eq!(stores.webhooks.list(task).await.unwrap(), [kept]);
}

pub(crate) async fn racing_additions_keep_the_maximum(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let task = create(&stores[0], &spec("deploy", |_| {})).await.id;
    let outcomes = contend(&stores, 20, |stores, _| async move { attempt(&stores, &new_secret(task)).await }).await;
    let added = outcomes.iter().filter(|outcome| matches!(outcome, WebhookSecretOutcome::Added(_))).count();
    let refused = outcomes.iter().filter(|outcome| **outcome == WebhookSecretOutcome::TooMany).count();
    assert_eq!((added, refused), (10, 10));
    assert_eq!(stores[1].webhooks.list(task).await.unwrap().len(), 10);
}

pub(crate) async fn a_secret_serves_its_own_purpose_only(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("deploy", |_| {})).await.id;
    let other = create(&stores, &spec("other", |_| {})).await.id;
    let new = |purpose, ttl| NewWebhookSecret { purpose, ttl, ..new_secret(task) };
    let signing =
        async |task| stores.webhooks.signing(task).await.unwrap().into_iter().map(|secret| secret.id).collect();
    let none: Vec<WebhookSecretId> = signing(task).await;
    assert_eq!(none, []);
    let brief = add(&stores, &new(SecretPurpose::Sign, Some(SHORT))).await;
    wait_past(&stores, brief.expires_at.unwrap()).await;
    let receives = add(&stores, &new(SecretPurpose::Receive, None)).await;
    // Each purpose has a maximum of its own.
    let mut signs = Vec::new();
    for _ in 0..WEBHOOK_SECRETS {
        signs.push(add(&stores, &new(SecretPurpose::Sign, None)).await);
    }
    assert_eq!(attempt(&stores, &new(SecretPurpose::Sign, None)).await, WebhookSecretOutcome::TooMany);
    assert_eq!(working(&stores, "deploy").await, Some(vec![receives.id]));
    let newest_first: Vec<_> = signs.iter().rev().map(|secret| secret.id).collect();
    assert_eq!(signing(task).await, newest_first);
    assert_eq!(signing(other).await, none);
    let listed = stores.webhooks.list(task).await.unwrap();
    assert_eq!(listed, [vec![brief, receives], signs.clone()].concat());
    let sealed = &stores.webhooks.signing(task).await.unwrap()[0];
    assert_eq!(sealed.sealed, sealed.id.as_uuid().as_bytes());
    for secret in signs {
        assert!(stores.webhooks.delete(&system(), task, secret.id).await.unwrap());
    }
    assert_eq!(signing(task).await, none);
    stores.tasks.delete(&system(), task).await.unwrap();
    assert_eq!(signing(task).await, none);
}
