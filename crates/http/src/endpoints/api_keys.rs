//! API keys: made, listed and revoked by operators.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use switchboard_model::api_key::{API_KEY_PREFIX, ApiKey, NewApiKey};
use switchboard_model::ids::ApiKeyId;
use switchboard_model::page::Page;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{ApiKeyRequest, ApiKeyResponse};
use switchboard_store_api::{WriteContext, Written};

use crate::access::Caller;
use crate::answer::new_secret;
use crate::error::ApiError;
use crate::extract::{PageQuery, Path, Query};
use crate::once::Once;
use crate::{ApiResult, App};

/// The longest name of a key, in characters.
const NAME_CHARS: usize = 128;

/// Makes a key and shows its secret, this one time.
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    request: Once<ApiKeyRequest>,
) -> ApiResult<(StatusCode, Body<ApiKeyResponse>)> {
    let wanted = request.value;
    check(&wanted)?;
    caller.require_all(&wanted.scopes)?;
    let secret = new_secret(API_KEY_PREFIX)?;
    let id = ApiKeyId::new();
    let context = caller.change("api_key.create", id).after(&wanted)?.context();
    let context = WriteContext { once: request.claim, ..context };
    let key = NewApiKey { id, name: wanted.name, hash: secret.hash(), scopes: wanted.scopes, ttl: wanted.ttl };
    match app.stores.api_keys.create(&context, &key).await? {
        Written::Now(key) => {
            Ok((StatusCode::CREATED, Body(ApiKeyResponse { key, secret: secret.expose().to_owned() })))
        }
        Written::Replayed(record) => Err(ApiError::new(
            ErrorCode::Duplicate,
            format!(
                "this idempotency key made the API key {} and its secret is shown once; revoke it and make another",
                record.result_id
            ),
        )),
        Written::Mismatch => Err(ApiError::idempotency_mismatch()),
    }
}

/// Lists all keys, without their secrets.
pub(crate) async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> ApiResult<Body<Page<ApiKey>>> {
    Ok(Body(app.stores.api_keys.list(&query.page()?).await?))
}

/// Revokes a key at once.
pub(crate) async fn revoke(State(app): State<App>, caller: Caller, Path(id): Path<ApiKeyId>) -> ApiResult<StatusCode> {
    let context = caller.change("api_key.revoke", id).context();
    if app.stores.api_keys.revoke(&context, id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("API key that is not revoked"))
    }
}

fn check(key: &ApiKeyRequest) -> ApiResult<()> {
    let invalid = |field, detail: String| Err(ApiError::field(ErrorCode::ValidationFailed, field, detail));
    let is_named = (1..=NAME_CHARS).contains(&key.name.chars().count()) && !key.name.contains(char::is_control);
    if !is_named {
        return invalid("name", format!("must have 1 to {NAME_CHARS} characters and no control characters"));
    }
    if key.scopes.is_empty() {
        return invalid("scopes", "must name at least one scope".to_owned());
    }
    Ok(())
}
