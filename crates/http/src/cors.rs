//! Cross-origin requests: pages of the allowed origins may call the API with a key of theirs, others learn nothing.
//!
//! Cookies are never taken, so that no page acts for whoever looks at it.

use std::time::Duration;

use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, AUTHORIZATION, CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH,
    LOCATION, RETRY_AFTER,
};
use axum::http::{HeaderName, Method};
use axum::middleware::Next;
use axum::response::Response;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::middleware::REQUEST_ID;
use crate::once::IDEMPOTENCY_KEY;
use crate::origin::is_allowed;
use crate::sse::LAST_EVENT_ID;

/// How long a browser may rely on the answer to a preflight.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The methods that routes serve.
const METHODS: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// The headers that requests may carry.
const ALLOWED: [HeaderName; 8] = [
    AUTHORIZATION,
    CONTENT_TYPE,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    LAST_EVENT_ID,
    REQUEST_ID,
    HeaderName::from_static("traceparent"),
];

/// The headers of answers that pages may read.
const EXPOSED: [HeaderName; 6] = [
    ETAG,
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    RETRY_AFTER,
    REQUEST_ID,
    LOCATION,
];

/// Answers preflights, without asking for a credential, and marks the answers that pages may read.
pub(crate) fn layer(allowed_origins: Vec<String>) -> CorsLayer {
    let is_allowed = move |origin: &axum::http::HeaderValue, _: &_| is_allowed(origin.as_bytes(), &allowed_origins);
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(is_allowed))
        .allow_methods(METHODS)
        .allow_headers(ALLOWED)
        .expose_headers(EXPOSED)
        .max_age(MAX_AGE)
}

/// Takes from answers to foreign origins what the layer says to everybody.
pub(crate) async fn withhold_from_foreigners(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if !headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        for name in [
            ACCESS_CONTROL_ALLOW_METHODS,
            ACCESS_CONTROL_ALLOW_HEADERS,
            ACCESS_CONTROL_EXPOSE_HEADERS,
            ACCESS_CONTROL_MAX_AGE,
        ] {
            headers.remove(name);
        }
    }
    response
}
