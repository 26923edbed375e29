//! Who calls and whether they may: API keys and their scopes. Knows no endpoint.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use switchboard_model::api_key::{API_KEY_PREFIX, ApiKey};
use switchboard_model::identity::Actor;
use switchboard_model::scope::Scope;
use switchboard_model::secret_text::SecretHash;
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::WriteContext;

use crate::error::ApiError;
use crate::middleware::RequestId;
use crate::routes::Access;
use crate::{ApiResult, App, AppState};

/// Names the replica that answered, to callers with a key.
const INSTANCE: HeaderName = HeaderName::from_static("x-switchboard-instance");

/// The longest text that is taken for a key, in bytes.
const KEY_BYTES: usize = 200;

/// Whoever made the request, and the key by which they did.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    key: Arc<ApiKey>,
    request_id: Arc<str>,
}

impl Caller {
    /// Returns who the log and the database say it was.
    pub(crate) fn actor(&self) -> Actor {
        Actor::ApiKey(self.key.id)
    }

    /// Tells whether the key grants a scope.
    pub(crate) fn allows(&self, scope: &Scope) -> bool {
        self.key.allows(scope)
    }

    /// Insists on a scope.
    ///
    /// # Errors
    /// `forbidden` names the scope that the key lacks.
    pub(crate) fn require(&self, scope: &Scope) -> ApiResult<()> {
        if self.allows(scope) {
            Ok(())
        } else {
            Err(ApiError::new(ErrorCode::Forbidden, format!("the API key lacks the scope {scope}")))
        }
    }

    /// Makes the context of a write that is neither audited nor bound to an idempotency key.
    pub(crate) fn context(&self) -> WriteContext {
        WriteContext { actor: self.actor(), request_id: Arc::clone(&self.request_id), once: None, audit: None }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(no_key)
    }
}

/// Lets a request through whose key is valid and has the scope of the route.
pub(crate) async fn authorise(
    State((app, access)): State<(App, &'static Access)>,
    mut request: Request,
    next: Next,
) -> ApiResult<Response> {
    let key = authenticate(&app, request.headers()).await?;
    let request_id = request.extensions().get::<RequestId>().map(|id| Arc::clone(&id.0)).unwrap_or_default();
    let caller = Caller { key: Arc::new(key), request_id };
    if let Access::Scope(scope) = access {
        caller.require(scope)?;
    }
    request.extensions_mut().insert(caller);
    let mut response = next.run(request).await;
    if let Ok(instance) = HeaderValue::from_str(app.options.instance.as_str()) {
        response.headers_mut().insert(INSTANCE, instance);
    }
    Ok(response)
}

async fn authenticate(app: &AppState, headers: &HeaderMap) -> ApiResult<ApiKey> {
    let hash = presented_key(headers).map(SecretHash::of).ok_or_else(no_key)?;
    app.stores.api_keys.find_valid(hash).await?.ok_or_else(no_key)
}

/// Finds what looks like a key, so that anything else costs no query.
fn presented_key(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let key = key.trim();
    let is_key = scheme.eq_ignore_ascii_case("bearer") && key.starts_with(API_KEY_PREFIX) && key.len() <= KEY_BYTES;
    is_key.then_some(key)
}

fn no_key() -> ApiError {
    ApiError::unauthorized("a valid API key is needed: send the header Authorization: Bearer sbk_…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bearer_keys_of_ours_are_looked_up() {
        let presented = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            presented_key(&headers).map(str::to_owned)
        };
        assert_eq!(presented("Bearer sbk_abc").as_deref(), Some("sbk_abc"));
        assert_eq!(presented("bearer  sbk_abc ").as_deref(), Some("sbk_abc"));
        for bad in ["sbk_abc", "Basic sbk_abc", "Bearer", "Bearer ", "Bearer ghp_abc", "Bearersbk_abc"] {
            assert_eq!(presented(bad), None, "{bad}");
        }
        assert_eq!(presented(&format!("Bearer sbk_{}", "x".repeat(KEY_BYTES))), None);
        assert_eq!(presented_key(&HeaderMap::new()), None);
    }
}
