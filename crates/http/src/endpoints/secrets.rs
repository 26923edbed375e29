//! Named secrets: set, listed and deleted. No answer shows a value.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::json;
use switchboard_model::identity::SecretName;
use switchboard_model::ids::SecretId;
use switchboard_model::page::Page;
use switchboard_model::sealed::SealedTable;
use switchboard_model::secret::{NewSecret, SecretValue, StoredSecret};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::secret::{Secret, SecretRequest};
use switchboard_store_api::SecretPutOutcome;

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{Json, PageQuery, Path, Query};
use crate::sealing::{SealError, SealPlace};
use crate::{ApiResult, App, AppState};

/// How often a put that collides with others starts over.
const TRIES: u32 = 5;

/// Sets a secret.
pub(crate) async fn put(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<SecretName>,
    Json(request): Json<SecretRequest>,
) -> ApiResult<Body<Secret>> {
    check("value", &request.value)?;
    for _ in 0..TRIES {
        let found = find(&app, &name).await?;
        let id = found.as_ref().map_or_else(SecretId::new, |secret| secret.id);
        let place = SealPlace::of(SealedTable::Secrets, id.as_uuid());
        let sealed =
            app.options.sealer.seal(&place, request.value.expose().as_bytes()).map_err(|error| unsealed(&error))?;
        let before = found.map_or(0, |secret| secret.version);
        let change = caller.change("secret.put", &name).before(&json!({"version": before}))?;
        let context = change.after(&json!({"id": id, "key_id": sealed.key_id()}))?.context();
        let secret = NewSecret { id, name: name.clone(), sealed };
        match app.stores.secrets.put(&context, &secret, request.version).await? {
            SecretPutOutcome::Set(secret) => return Ok(Body(shown(secret))),
            SecretPutOutcome::VersionMismatch(version) => {
                let detail = format!("the secret has version {version} now; 0 means that it does not exist");
                return Err(ApiError::new(ErrorCode::VersionMismatch, detail));
            }
            SecretPutOutcome::Moved => {}
        }
    }
    Err(ApiError::unavailable("the secret was set and deleted by others again and again; repeat the request"))
}

/// Lists secrets by name, without their values.
pub(crate) async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> ApiResult<Body<Page<Secret>>> {
    Ok(Body(app.stores.secrets.list(&query.page()?).await?.map(shown)))
}

/// Returns a secret without its value.
pub(crate) async fn get(State(app): State<App>, Path(name): Path<SecretName>) -> ApiResult<Body<Secret>> {
    let secret = find(&app, &name).await?.ok_or_else(|| ApiError::not_found("secret"))?;
    Ok(Body(shown(secret)))
}

/// Deletes a secret; whatever names it fails from now on.
pub(crate) async fn delete(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<SecretName>,
) -> ApiResult<StatusCode> {
    let secret = find(&app, &name).await?.ok_or_else(|| ApiError::not_found("secret"))?;
    let before = json!({"id": secret.id, "version": secret.version});
    let context = caller.change("secret.delete", &name).before(&before)?.context();
    if app.stores.secrets.delete(&context, &name).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("secret"))
    }
}

/// Refuses a value that is too short or too long.
///
/// # Errors
/// `validation_failed` names the field.
pub(super) fn check(field: &str, value: &SecretValue) -> ApiResult<()> {
    if value.has_allowed_length() {
        return Ok(());
    }
    let (least, most) = (SecretValue::SHORTEST, SecretValue::LONGEST);
    Err(ApiError::field(ErrorCode::ValidationFailed, field, format!("must have {least} to {most} bytes")))
}

/// Says that nothing can be encrypted.
pub(crate) fn unsealed(error: &SealError) -> ApiError {
    tracing::error!(%error, "a secret cannot be sealed");
    ApiError::unavailable("secrets cannot be stored: the operator has to look at secrets.keys")
}

async fn find(app: &AppState, name: &SecretName) -> ApiResult<Option<StoredSecret>> {
    Ok(app.stores.secrets.find(std::slice::from_ref(name)).await?.pop())
}

fn shown(secret: StoredSecret) -> Secret {
    let StoredSecret { id, name, version, sealed, created_at, updated_at } = secret;
    Secret { id, name, version, key_id: sealed.key_id().unwrap_or_default().to_owned(), created_at, updated_at }
}
