//! Requests that create something, once per idempotency key. Knows no endpoint.

use std::marker::PhantomData;

use axum::extract::{FromRequest, FromRequestParts as _, MatchedPath, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use switchboard_model::identity::ClientKey;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::limits::IDEMPOTENCY_TTL;
use switchboard_store_api::OnceClaim;

use crate::ApiResult;
use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::JsonBody;

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A body that will be decoded as a `T`, and the claim of the idempotency key that came with it.
#[derive(Debug)]
pub(crate) struct OnceBody<T> {
    pub(crate) body: JsonBody,
    pub(crate) claim: Option<OnceClaim>,
    form: PhantomData<fn() -> T>,
}

/// A decoded body, and the claim of the idempotency key that came with it.
#[derive(Debug)]
pub(crate) struct Once<T> {
    pub(crate) value: T,
    pub(crate) claim: Option<OnceClaim>,
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Once<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let OnceBody { body, claim, .. } = OnceBody::<T>::from_request(request, state).await?;
        Ok(Self { value: body.decode()?, claim })
    }
}

impl<S: Send + Sync, T> FromRequest<S> for OnceBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, state).await?;
        let key = idempotency_key(&parts.headers)?;
        let body = JsonBody::from_request(Request::from_parts(parts.clone(), body), state).await?;
        let claim = key.map(|key| claim(&parts, &caller, key, &body));
        Ok(Self { body, claim, form: PhantomData })
    }
}

/// Reads the idempotency key of a request.
///
/// # Errors
/// `validation_failed` for a key that is doubled or does not follow its grammar.
fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<ClientKey>> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|_| values.next().is_none());
    key.map(Some).ok_or_else(|| {
        let detail = format!("must be given once and match {}", ClientKey::PATTERN);
        ApiError::field(ErrorCode::ValidationFailed, IDEMPOTENCY_KEY.as_str(), detail)
    })
}

/// Binds the key to the caller, the route and the very request.
fn claim(parts: &Parts, caller: &Caller, key: ClientKey, body: &JsonBody) -> OnceClaim {
    let (method, path) = (parts.method.as_str(), parts.uri.path());
    let route = parts.extensions.get::<MatchedPath>().map_or(path, MatchedPath::as_str);
    let mut hash = Sha256::new();
    // The separators keep the parts apart: neither a method nor a path contains a line feed.
    for part in [method.as_bytes(), b"\n", path.as_bytes(), b"\n", &body.0] {
        hash.update(part);
    }
    OnceClaim {
        scope: format!("{method} {route}:{}", caller.actor()),
        key: key.into_string(),
        request_hash: hash.finalize().into(),
        ttl: IDEMPOTENCY_TTL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_their_grammar_and_come_once() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IDEMPOTENCY_KEY, value.parse().unwrap());
            }
            idempotency_key(&headers).map(|key| key.map(ClientKey::into_string))
        };
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&["k-1"]).unwrap().as_deref(), Some("k-1"));
        for bad in [&["a b"][..], &[""], &["k", "k"], &[&"x".repeat(201)]] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
