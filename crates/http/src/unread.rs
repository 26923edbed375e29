//! Bodies that nobody read: an answer that comes before them must not cost the client its connection.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use switchboard_model::wire::limits::BODY_BYTES;
use tokio::sync::oneshot;

/// How long the rest of a body may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reads what a handler left of the body before it answers, or says that the connection ends: HTTP/1.1 has no
/// other way to tell where the next request begins.
pub(crate) async fn finish_body(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (give, mut given) = oneshot::channel();
    let request = request.map(|body| Body::new(Lent { body: Some(body), back: Some(give) }));
    let mut response = next.run(request).await;
    let Ok(rest) = given.try_recv() else { return response };
    let is_read = tokio::time::timeout(PATIENCE, to_bytes(rest, BODY_BYTES)).await;
    if !matches!(is_read, Ok(Ok(_))) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A body that goes back to whoever lent it when it is dropped before its end.
struct Lent {
    body: Option<Body>,
    back: Option<oneshot::Sender<Body>>,
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take(), self.back.take())
            && !body.is_end_stream()
        {
            // Nobody waits for it when the request was given up.
            let _ = back.send(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use axum::middleware::from_fn;
    use axum::routing::post;
    use futures_util::stream;
    use tower::ServiceExt as _;

    use super::*;

    async fn answer(body: Body) -> Response {
        let router =
            axum::Router::new().route("/", post(async || StatusCode::UNAUTHORIZED)).layer(from_fn(finish_body));
        router.oneshot(Request::post("/").body(body).unwrap()).await.unwrap()
    }

    fn parts(count: usize) -> Body {
        Body::from_stream(stream::iter((0..count).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 64 * 1024]))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_rest_is_read_and_anything_else_ends_the_connection() {
        assert!(!answer(parts(3)).await.headers().contains_key(CONNECTION));
        assert_eq!(answer(parts(40)).await.headers()[CONNECTION], "close", "too much");
        let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(answer(never).await.headers()[CONNECTION], "close", "too slow");
        assert!(!answer(Body::empty()).await.headers().contains_key(CONNECTION));
    }
}
