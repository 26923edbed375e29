//! What surrounds every request: its identity, its span and metrics, its time limit. Knows no endpoint.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use tokio::time::Instant;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::App;
use crate::error::{ApiError, write_problem};
use crate::routes::Route;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is taken over from a client, in characters.
const REQUEST_ID_CHARS: usize = 128;

/// The route label of requests that no route serves.
const UNMATCHED: &str = "unmatched";

/// The identity of a request, as it appears in the logs and in the answer.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) Arc<str>);

impl RequestId {
    /// Takes over what the client sent if that is visible ASCII of sane length, and makes a new one otherwise.
    fn of(request: &Request) -> Self {
        let given =
            request.headers().get(REQUEST_ID).map(HeaderValue::as_bytes).filter(|bytes| {
                (1..=REQUEST_ID_CHARS).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
            });
        match given.and_then(|bytes| std::str::from_utf8(bytes).ok()) {
            Some(text) => Self(text.into()),
            None => Self(Uuid::now_v7().to_string().into()),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for RequestId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        // `identify` surrounds every handler.
        parts.extensions.get::<Self>().cloned().ok_or_else(ApiError::internal)
    }
}

/// Gives the request its id, writes problem documents, and sets the headers of every answer.
pub(crate) async fn identify(mut request: Request, next: Next) -> Response {
    let id = RequestId::of(&request);
    request.extensions_mut().insert(id.clone());
    let mut response = write_problem(next.run(request).await, &id.0);
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        headers.insert(REQUEST_ID, value);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Runs the request in its span and counts it. The query never appears: it may carry a ticket.
pub(crate) async fn observe(request: Request, next: Next) -> Response {
    let method = method_label(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or(UNMATCHED, |path| known_path(path.as_str()));
    let request_id = request.extensions().get::<RequestId>().map(|id| Arc::clone(&id.0)).unwrap_or_default();
    let span = tracing::info_span!(
        "http.request",
        method,
        route,
        %request_id,
        status = tracing::field::Empty,
        latency_ms = tracing::field::Empty,
    );
    let _in_flight = InFlight::enter();
    let started = Instant::now();
    let response = next.run(request).instrument(span.clone()).await;
    let latency = started.elapsed();
    span.record("status", response.status().as_u16());
    span.record("latency_ms", u64::try_from(latency.as_millis()).unwrap_or(u64::MAX));
    span.in_scope(|| tracing::debug!("request served"));
    let class = class_label(response.status());
    metrics::counter!("switchboard_http_requests_total", "method" => method, "route" => route, "class" => class)
        .increment(1);
    metrics::histogram!("switchboard_http_request_duration_seconds", "method" => method, "route" => route)
        .record(latency);
    response
}

/// When a request must have been served; its body is given up on at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(pub(crate) Instant);

/// Ends requests that take too long, and turns panics into answers.
pub(crate) async fn guard(State(limit): State<Duration>, mut request: Request, next: Next) -> Response {
    let deadline = Instant::now() + limit;
    request.extensions_mut().insert(Deadline(deadline));
    match tokio::time::timeout_at(deadline, AssertUnwindSafe(next.run(request)).catch_unwind()).await {
        Ok(Ok(response)) => response,
        Ok(Err(panic)) => {
            let message = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
            tracing::error!(panic = message.unwrap_or("unknown"), "a handler panicked");
            ApiError::internal().into_response()
        }
        Err(_) => {
            tracing::warn!("a request took too long");
            ApiError::unavailable("the request took too long; whether it took effect is unknown").into_response()
        }
    }
}

/// Ends requests that wait for a database which does not answer, long before their own time is up.
pub(crate) async fn end_in_outage(State(app): State<App>, request: Request, next: Next) -> Response {
    tokio::select! {
        response = next.run(request) => response,
        () = app.readiness.silence() => {
            let detail = "the database does not answer; whether the request took effect is unknown";
            ApiError::unavailable(detail).into_response()
        }
    }
}

/// Registers the metrics of the given routes at zero.
pub(crate) fn describe_metrics(routes: &'static [Route]) {
    metrics::gauge!("switchboard_http_in_flight").set(0.0);
    for route in routes {
        let method = method_label(&route.method);
        metrics::counter!("switchboard_http_requests_total", "method" => method, "route" => route.path, "class" => "2xx")
            .absolute(0);
    }
}

/// Counts a request for as long as it is worked on, also when the client goes away.
struct InFlight;

impl InFlight {
    fn enter() -> Self {
        metrics::gauge!("switchboard_http_in_flight").increment(1.0);
        Self
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        metrics::gauge!("switchboard_http_in_flight").decrement(1.0);
    }
}

/// Finds the static text of a matched path, so that labels need no allocation.
fn known_path(path: &str) -> &'static str {
    crate::ROUTES.iter().map(|route| route.path).find(|known| *known == path).unwrap_or(UNMATCHED)
}

/// Names a method by a closed list: clients can invent any other.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn class_label(status: StatusCode) -> &'static str {
    match status.as_u16() {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::middleware::{from_fn, from_fn_with_state};
    use axum::routing::get;
    use switchboard_model::wire::code::ErrorCode;
    use switchboard_model::wire::problem::Problem;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(path: &str, request_id: Option<&str>) -> (Response, Option<Problem>) {
        async fn panics() {
            panic!("secret")
        }
        let router = axum::Router::new()
            .route("/ok", get(async || "ok"))
            .route("/panic", get(panics))
            .route("/forever", get(std::future::pending::<()>))
            .layer(from_fn_with_state(Duration::from_millis(20), guard))
            .layer(from_fn(observe))
            .layer(from_fn(identify));
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        if let Some(id) = request_id {
            request.headers_mut().insert(REQUEST_ID, HeaderValue::from_bytes(id.as_bytes()).unwrap());
        }
        let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        (Response::from_parts(parts, Body::empty()), serde_json::from_slice(&bytes).ok())
    }

    #[tokio::test]
    async fn panics_timeouts_and_unknown_routes_become_problems() {
        let cases = [
            ("/panic", 500, ErrorCode::Internal),
            ("/forever", 503, ErrorCode::Unavailable),
            ("/nowhere", 404, ErrorCode::NotFound),
        ];
        for (path, status, code) in cases {
            let (response, problem) = ask(path, Some("r-7")).await;
            let problem = problem.unwrap();
            assert_eq!((response.status().as_u16(), problem.code), (status, code), "{path}");
            assert_eq!(problem.request_id, "r-7");
            assert!(!problem.detail.contains("secret"));
        }
    }

    #[tokio::test]
    async fn every_answer_carries_a_request_id_and_the_headers_of_security() {
        let (response, _) = ask("/ok", Some("trace-1")).await;
        assert_eq!(response.headers()[REQUEST_ID], "trace-1");
        assert_eq!(response.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        let long = "x".repeat(REQUEST_ID_CHARS + 1);
        for bad in [None, Some(""), Some("a b"), Some("é"), Some(long.as_str())] {
            let (response, _) = ask("/ok", bad).await;
            let id = response.headers()[REQUEST_ID].to_str().unwrap();
            assert!(Uuid::parse_str(id).is_ok(), "{bad:?} gave {id}");
        }
    }
}
