//! Tokens of providers: set, listed and deleted by operators, and handed out to whoever has the scope of their own.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::json;
use switchboard_model::identity::TokenName;
use switchboard_model::ids::TokenId;
use switchboard_model::page::Page;
use switchboard_model::scope::Scope;
use switchboard_model::secret::SecretValue;
use switchboard_model::token::{Granted, NewToken, StoredToken, TokenGrant};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::secret::{Token, TokenAccess, TokenAccessRequest, TokenSetRequest};
use switchboard_store_api::TokenPutOutcome;

use super::secrets::{check, unsealed};
use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{Json, PageQuery, Path, Query};
use crate::tokens::{TokenError, TokenSecrets};
use crate::{ApiResult, App, AppState};

/// How often a put that collides with others starts over.
const TRIES: u32 = 5;

/// Sets a token.
pub(crate) async fn put(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<TokenName>,
    Json(request): Json<TokenSetRequest>,
) -> ApiResult<Body<Token>> {
    check_request(&request)?;
    if let Some(secret) = &request.provider.client_secret {
        caller.require(&Scope::use_of(secret))?;
    }
    let access = match (&request.access_token, request.expires_in) {
        (None, _) => Granted::Nothing,
        (Some(_), None) => Granted::ForEver,
        (Some(_), Some(span)) => Granted::For(span),
    };
    let text = |value: &Option<SecretValue>| value.as_ref().map(|value| value.expose().to_owned());
    let (access_token, refresh_token) = (text(&request.access_token), text(&request.refresh_token));
    let secrets = TokenSecrets { access_token, token_type: None, refresh_token };
    for _ in 0..TRIES {
        let found = app.stores.tokens.find(&name).await?.map(|reading| reading.token);
        let id = found.as_ref().map_or_else(TokenId::new, |token| token.id);
        let sealed = app.tokens.seal(id, &secrets).map_err(|error| unsealed(&error))?;
        let before = json!({"provider": found.map(|token| token.provider)});
        let change = caller.change("token.put", &name).before(&before)?;
        let context = change.after(&json!({"id": id, "provider": request.provider}))?.context();
        let granted = TokenGrant { sealed, access };
        let token = NewToken { id, name: name.clone(), provider: request.provider.clone(), granted };
        match app.stores.tokens.put(&context, &token).await? {
            TokenPutOutcome::Set(token) => return Ok(Body(shown(token))),
            TokenPutOutcome::Moved => {}
        }
    }
    Err(ApiError::unavailable("the token was set and deleted by others again and again; repeat the request"))
}

/// Lists tokens by name, without what is secret about them.
pub(crate) async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> ApiResult<Body<Page<Token>>> {
    Ok(Body(app.stores.tokens.list(&query.page()?).await?.map(shown)))
}

/// Returns a token without what is secret about it.
pub(crate) async fn get(State(app): State<App>, Path(name): Path<TokenName>) -> ApiResult<Body<Token>> {
    existing(&app, &name).await.map(shown).map(Body)
}

/// Deletes a token.
pub(crate) async fn delete(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<TokenName>,
) -> ApiResult<StatusCode> {
    let before = existing(&app, &name).await?;
    let before = json!({"id": before.id, "provider": before.provider});
    let context = caller.change("token.delete", &name).before(&before)?.context();
    if app.stores.tokens.delete(&context, &name).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("token"))
    }
}

/// Hands out an access token, a renewed one if the present one is too old.
pub(crate) async fn access(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<TokenName>,
    Json(request): Json<TokenAccessRequest>,
) -> ApiResult<Body<TokenAccess>> {
    caller.require(&Scope::access_to(&name))?;
    Ok(Body(app.tokens.access(&name, &request).await?))
}

impl From<TokenError> for ApiError {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::NotFound => Self::not_found("token"),
            TokenError::BackingOff { seconds, .. } => Self::unavailable(error.to_string()).with_retry_after(seconds),
            TokenError::Unreadable => {
                Self::unavailable("the token cannot be read: the operator has to look at secrets.keys")
            }
            TokenError::Slow => Self::unavailable(error.to_string()),
            TokenError::Store(error) => error.into(),
        }
    }
}

async fn existing(app: &AppState, name: &TokenName) -> ApiResult<StoredToken> {
    let found = app.stores.tokens.find(name).await?;
    found.map(|reading| reading.token).ok_or_else(|| ApiError::not_found("token"))
}

fn check_request(request: &TokenSetRequest) -> ApiResult<()> {
    let invalid = |field: &str, detail: &str| Err(ApiError::field(ErrorCode::ValidationFailed, field, detail));
    if let Err(error) = request.provider.check() {
        return invalid(error.field, error.reason);
    }
    for (field, value) in [("refresh_token", &request.refresh_token), ("access_token", &request.access_token)] {
        value.as_ref().map_or(Ok(()), |value| check(field, value))?;
    }
    if request.expires_in.is_some() && request.access_token.is_none() {
        return invalid("expires_in", "says how long an access token lives; give it with one");
    }
    if request.refresh_token.is_none() && request.provider.client_secret.is_none() {
        return invalid("refresh_token", "is needed unless provider.client_secret lets the server ask in its own name");
    }
    Ok(())
}

fn shown(token: StoredToken) -> Token {
    Token {
        id: token.id,
        name: token.name,
        provider: token.provider,
        version: token.version,
        key_id: token.sealed.key_id().unwrap_or_default().to_owned(),
        granted_at: token.granted_at,
        expires_at: token.expires_at,
        failures: token.failures,
        retry_at: token.retry_at,
        last_error: token.last_error,
        created_at: token.created_at,
        updated_at: token.updated_at,
    }
}
