//! Secrets that sign what a task sends: they stay with the runs of a task that was deleted.

use switchboard_model::ids::{TaskId, WebhookSecretId};
use switchboard_model::run::{Ending, RunState};
use switchboard_model::span::Span;
use switchboard_model::webhook::{NewWebhookSecret, SecretPurpose};
use switchboard_store_api::{RetryOutcome, Stores, WebhookSecretOutcome};

use crate::Backend;
use crate::accounts::new_secret;
use crate::fixtures::{
    LONG, create, database_time, finish, lease_one, new_run, now, run, spec, system, trigger, wait_past,
};

async fn add(stores: &Stores, task: TaskId, purpose: SecretPurpose) -> WebhookSecretId {
    let new = NewWebhookSecret { purpose, ..new_secret(task) };
    let outcome = now(stores.webhooks.add(&system(), &new).await.unwrap());
    assert!(matches!(outcome, WebhookSecretOutcome::Added(_)), "{outcome:?}");
    new.id
}

/// Returns the secrets that sign, and those that are there at all.
async fn secrets(stores: &Stores, task: TaskId) -> (Vec<WebhookSecretId>, Vec<WebhookSecretId>) {
    let signing = stores.webhooks.signing(task).await.unwrap();
    let all = stores.webhooks.list(task).await.unwrap();
    (signing.iter().map(|secret| secret.id).collect(), all.iter().map(|secret| secret.id).collect())
}

pub(crate) async fn runs_of_a_deleted_task_are_signed_as_long_as_there_are_any(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let task = create(&stores, &spec("notify", |_| {})).await.id;
    let signs = add(&stores, task, SecretPurpose::Sign).await;
    add(&stores, task, SecretPurpose::Receive).await;
    let id = trigger(&stores, new_run(task)).await;
    assert!(stores.tasks.delete(&system(), task).await.unwrap());
    let kept = (vec![signs], vec![signs]);
    assert_eq!(secrets(&stores, task).await, kept, "what triggers the task goes with it");
    // Queued, running, waiting for its next attempt.
    assert_eq!(stores.webhooks.sweep(10).await.unwrap(), 0);
    let leased = lease_one(&stores, LONG).await;
    assert_eq!(stores.webhooks.sweep(10).await.unwrap(), 0);
    finish(&stores, &leased, Ending::Retry { error: "no".to_owned(), delay: LONG }).await;
    assert_eq!(run(&stores, id).await.state, RunState::Scheduled);
    assert_eq!(stores.webhooks.sweep(10).await.unwrap(), 0);
    // Whoever retries a run that has ended gets it signed too.
    stores.runs.cancel(&system(), id).await.unwrap();
    assert_eq!(stores.webhooks.sweep(10).await.unwrap(), 0);
    assert_eq!(stores.runs.retry(&system(), id).await.unwrap(), RetryOutcome::Queued);
    assert_eq!(secrets(&stores, task).await, kept);

    stores.runs.cancel(&system(), id).await.unwrap();
    wait_past(&stores, database_time(&stores).await).await;
    assert_eq!(stores.runs.sweep(Span::default(), 10).await.unwrap(), 1);
    assert_eq!(stores.webhooks.sweep(10).await.unwrap(), 1);
    assert_eq!(secrets(&stores, task).await, (vec![], vec![]));
    assert_eq!(stores.webhooks.sweep(10).await.unwrap(), 0);
}

pub(crate) async fn a_task_that_has_no_runs_takes_its_secrets_along(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let [task, other] = [create(&stores, &spec("a", |_| {})).await.id, create(&stores, &spec("b", |_| {})).await.id];
    add(&stores, task, SecretPurpose::Sign).await;
    let kept = add(&stores, other, SecretPurpose::Sign).await;
    trigger(&stores, new_run(other)).await;
    assert!(stores.tasks.delete(&system(), task).await.unwrap());
    assert_eq!(secrets(&stores, task).await, (vec![], vec![]));
    assert_eq!(secrets(&stores, other).await, (vec![kept], vec![kept]));
}
