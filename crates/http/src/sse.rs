//! Server-sent events: how an answer that goes on is written, counted and kept alive. Knows no endpoint.

use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::unfold;
use serde::Serialize;
use switchboard_events::{Reach, SessionGuard, SessionIdentity};
use switchboard_model::ticket::Grants;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::Joined;
use switchboard_model::wire::op::Join;
use tokio::time::timeout;

use crate::access::Caller;
use crate::error::ApiError;
use crate::openapi::{Part, Sketch};
use crate::{ApiResult, AppState};

pub(crate) const MEDIA_TYPE: &str = "text/event-stream";

/// What a reader that comes back has seen last.
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Tells a proxy to pass on what it gets at once.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// How long a silent answer stays without a comment, which keeps proxies from ending it.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// How a request says that it wants events, and from where on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    /// Whether it asks for events.
    pub(crate) has_events: bool,
    /// The id of the last event that was seen.
    pub(crate) last_id: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Wish {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let accepted = parts.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut accepted = accepted.flat_map(|value| value.split(','));
        let is_events = |entry: &str| entry.split(';').next().unwrap_or_default().trim() == MEDIA_TYPE;
        let last_id = parts.headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Self { has_events: accepted.any(is_events), last_id: last_id.filter(|id| !id.is_empty()) })
    }
}

impl Part for Wish {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.takes_header("Last-Event-ID", "The id of the last event that was seen; only what follows is sent.");
    }
}

/// Refuses a `Last-Event-ID` that was not given out.
pub(crate) fn bad_last_id() -> ApiError {
    ApiError::field(ErrorCode::ValidationFailed, LAST_EVENT_ID.as_str(), "is no id that was given out here")
}

/// What goes out over time.
pub(crate) trait Source: Send + 'static {
    /// Waits for the next events, written; `None` ends the answer. Nothing is lost when it is dropped while it waits.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// An answer of events.
pub(crate) struct Events(Body);

impl Events {
    /// Answers with what a source gives, until its end.
    pub(crate) fn of(source: impl Source) -> Self {
        let open = Open::enter();
        let events = unfold((source, open), async |(mut source, open)| {
            let bytes = match timeout(COMMENT_EVERY, source.next()).await {
                Ok(events) => events?,
                Err(_) => Bytes::from_static(b":\n\n"),
            };
            Some((Ok::<_, std::convert::Infallible>(bytes), (source, open)))
        });
        Self(Body::from_stream(events))
    }
}

impl IntoResponse for Events {
    fn into_response(self) -> Response {
        let headers =
            [(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE)), (X_ACCEL_BUFFERING, HeaderValue::from_static("no"))];
        (headers, self.0).into_response()
    }
}

/// Counts an answer for as long as it goes on.
struct Open;

impl Open {
    fn enter() -> Self {
        metrics::gauge!("switchboard_realtime_sse_open").increment(1.0);
        Self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!("switchboard_realtime_sse_open").decrement(1.0);
    }
}

/// Registers the metrics of events at zero.
pub(crate) fn describe_metrics() {
    metrics::gauge!("switchboard_realtime_sse_open").set(0.0);
}

/// Writes one event. JSON has line breaks between its parts only, where any white space will do.
pub(crate) fn write(out: &mut Vec<u8>, id: Option<&str>, name: &str, json: &[u8]) {
    let mut field = |name: &str, value: &[u8]| {
        out.extend_from_slice(name.as_bytes());
        out.extend(value.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
        out.push(b'\n');
    };
    if let Some(id) = id {
        field("id: ", id.as_bytes());
    }
    field("event: ", name.as_bytes());
    field("data: ", json);
    out.push(b'\n');
}

/// Writes one event of a value that has a JSON form.
pub(crate) fn write_value(out: &mut Vec<u8>, id: Option<&str>, name: &str, value: &impl Serialize) {
    write(out, id, name, &serde_json::to_vec(value).unwrap_or_default());
}

/// Registers a listener, which ends when its credential is revoked and moves when the replica is stopped.
///
/// # Errors
/// Says why one of the rooms cannot be listened to; `unavailable` while the replica is being stopped.
pub(crate) async fn listen(app: &AppState, caller: &Caller, joins: &[Join]) -> ApiResult<(SessionGuard, Vec<Joined>)> {
    let (user_id, reach) = match caller.user_id() {
        Some(id) => (id.clone(), Reach::OfUser),
        // A program has no user; this name is nobody's room.
        None => {
            (caller.actor().to_string().replace(':', ".").parse().map_err(|_| ApiError::internal())?, Reach::EveryRoom)
        }
    };
    let identity = SessionIdentity { user_id, grants: Grants::default() };
    let (guard, starts) = app.hub.listen(identity, caller.hold(), reach, joins).await?;
    // Neither a revocation nor a drain that came meanwhile need have seen this session: from here on they do.
    if !app.stores.auth_sessions.revoked(&guard.credentials()).await?.is_empty() {
        return Err(ApiError::unauthorized("the credential was revoked"));
    }
    if app.lifecycle.is_draining() {
        return Err(ApiError::unavailable("the replica is being stopped; connect again and reach another"));
    }
    Ok((guard, starts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_written_line_by_line() {
        let mut out = Vec::new();
        write(&mut out, Some("7"), "chunk", b"{\n\"a\":\r\n1}");
        write_value(&mut out, None, "end", &"a\r\nb");
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "id: 7\nevent: chunk\ndata: { \"a\":  1}\n\nevent: end\ndata: \"a\\r\\nb\"\n\n");
    }
}
