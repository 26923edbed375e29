//! Secrets of webhooks, received and sent: made or taken over, listed and deleted by operators.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::json;
use switchboard_model::identity::TaskName;
use switchboard_model::ids::{TaskId, WebhookSecretId};
use switchboard_model::page::Page;
use switchboard_model::sealed::SealedTable;
use switchboard_model::webhook::{
    NewWebhookSecret, SealedWebhookSecret, SecretPurpose, WEBHOOK_SECRETS, WebhookSecret,
};
use switchboard_model::webhook_signature::WebhookKey;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{WebhookSecretRequest, WebhookSecretResponse};
use switchboard_store_api::{WebhookSecretOutcome, WriteContext, Written};

use crate::access::Caller;
use crate::answer::absolute;
use crate::endpoints::secrets::unsealed;
use crate::endpoints::tasks::existing;
use crate::error::ApiError;
use crate::extract::{Path, PathPair};
use crate::once::Once;
use crate::sealing::{SealPlace, Sealer};
use crate::{ApiResult, App};

/// Adds a secret to a task and shows it, this one time.
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    Path(task_id): Path<TaskId>,
    request: Once<WebhookSecretRequest>,
) -> ApiResult<(StatusCode, Body<WebhookSecretResponse>)> {
    let task = existing(&app, task_id).await?;
    let key = key(request.value.secret.as_deref())?;
    let WebhookSecretRequest { purpose, ttl, .. } = request.value;
    if ttl.is_some_and(|ttl| ttl.as_millis() == 0) {
        return Err(ApiError::field(ErrorCode::ValidationFailed, "ttl", "must be longer than 0s"));
    }
    let id = WebhookSecretId::new();
    let sealed = app.options.sealer.seal(&seal_place(id), key.as_bytes()).map_err(|error| unsealed(&error))?;
    let after = json!({"task_id": task_id, "purpose": purpose, "ttl": ttl});
    let context = caller.change("webhook_secret.create", id).after(&after)?.context();
    let context = WriteContext { once: request.claim, ..context };
    let secret = NewWebhookSecret { id, task_id, purpose, sealed: sealed.0, ttl };
    match app.stores.webhooks.add(&context, &secret).await? {
        Written::Now(WebhookSecretOutcome::Added(webhook_secret)) => {
            let is_received = purpose == SecretPurpose::Receive;
            let url = is_received.then(|| absolute(&app.options, &hook_path(&task.spec.name)));
            let response = WebhookSecretResponse { webhook_secret, secret: key.expose(), url };
            Ok((StatusCode::CREATED, Body(response)))
        }
        Written::Now(WebhookSecretOutcome::TooMany) => Err(ApiError::new(
            ErrorCode::Conflict,
            format!("the task has {WEBHOOK_SECRETS} secrets of the purpose {purpose} that work; delete one first"),
        )),
        Written::Now(WebhookSecretOutcome::TaskNotFound) => Err(ApiError::not_found("task")),
        Written::Replayed(record) => Err(ApiError::new(
            ErrorCode::Duplicate,
            format!(
                "this idempotency key made the webhook secret {} and it is shown once; delete it and make another",
                record.result_id
            ),
        )),
        Written::Mismatch => Err(ApiError::idempotency_mismatch()),
    }
}

/// Lists the secrets of a task, without what is secret about them.
pub(crate) async fn list(State(app): State<App>, Path(task): Path<TaskId>) -> ApiResult<Body<Page<WebhookSecret>>> {
    existing(&app, task).await?;
    Ok(Body(Page { items: app.stores.webhooks.list(task).await?, next_cursor: None }))
}

/// Deletes a secret; deliveries that it signs are refused from now on, and requests are signed by it no more.
pub(crate) async fn delete(
    State(app): State<App>,
    caller: Caller,
    PathPair(task, id): PathPair<TaskId, WebhookSecretId>,
) -> ApiResult<StatusCode> {
    let context = caller.change("webhook_secret.delete", id).before(&json!({"task_id": task}))?.context();
    if app.stores.webhooks.delete(&context, task, id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("webhook secret"))
    }
}

/// Decrypts secrets of a task. One that does not open is left out: the others still work.
pub fn open_webhook_keys(sealer: &Sealer, secrets: &[SealedWebhookSecret]) -> Vec<WebhookKey> {
    let open = |secret: &SealedWebhookSecret| {
        let opened = sealer.open(&seal_place(secret.id), &secret.sealed);
        let bytes = opened.inspect_err(
            |error| tracing::error!(%error, webhook_secret = %secret.id, "a webhook secret cannot be read"),
        );
        WebhookKey::from_bytes(bytes.ok()?).ok()
    };
    secrets.iter().filter_map(open).collect()
}

/// Names the place where a secret is stored.
fn seal_place(id: WebhookSecretId) -> SealPlace {
    SealPlace::of(SealedTable::WebhookSecrets, id.as_uuid())
}

fn key(given: Option<&str>) -> ApiResult<WebhookKey> {
    match given {
        Some(text) => text.parse().map_err(|error: switchboard_model::webhook_signature::WebhookKeyError| {
            ApiError::field(ErrorCode::ValidationFailed, "secret", error.to_string())
        }),
        None => WebhookKey::generate().map_err(|error| {
            tracing::error!(%error, "there are no random bytes for a webhook secret");
            ApiError::internal()
        }),
    }
}

/// Returns the path to which deliveries for a task are posted. Names need no escapes, except where clients would
/// take a part of them for a step up the path, or shorten it.
fn hook_path(task: &TaskName) -> String {
    let is_special = |segment: &str| matches!(segment, "" | "." | "..");
    let name = task.as_str();
    if name.split('/').any(is_special) {
        format!("/hooks/{}", name.replace('/', "%2F"))
    } else {
        format!("/hooks/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_clients_that_normalise_them() {
        let path = |name: &str| hook_path(&name.parse().unwrap());
        assert_eq!(path("billing/paid:eu"), "/hooks/billing/paid:eu");
        assert_eq!(path("a/../b"), "/hooks/a%2F..%2Fb");
        assert_eq!(path("a//b/"), "/hooks/a%2F%2Fb%2F");
    }
}
