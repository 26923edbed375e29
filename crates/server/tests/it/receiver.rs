//! A receiver of requests, as whoever a task calls has one: it keeps what came and answers as the test wants.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use parking_lot::Mutex;
use switchboard_testkit::wait_until;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) at: Instant,
}

impl Received {
    /// Reads a header that came once.
    pub(crate) fn header(&self, name: &str) -> &str {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next().unwrap_or_else(|| panic!("{name} is missing: {self:?}"));
        assert!(values.next().is_none(), "{name} came twice");
        value.to_str().unwrap()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }
}

/// Listens until it is dropped.
pub(crate) struct Receiver {
    port: u16,
    received: Arc<Mutex<Vec<Received>>>,
    /// When each request of which the connection was closed before its answer was abandoned.
    abandoned: Arc<Mutex<Vec<Instant>>>,
    _stop: DropGuard,
}

impl Receiver {
    /// Answers each request by what it is.
    pub(crate) async fn answering(answer: impl Fn(&Received) -> Response + Clone + Send + Sync + 'static) -> Self {
        let open = CancellationToken::new();
        open.cancel();
        Self::start(answer, open).await
    }

    /// Takes requests and answers none.
    pub(crate) async fn silent() -> Self {
        Self::start(|_| Response::default(), CancellationToken::new()).await
    }

    /// Takes requests and answers them, and all that come later, once the token is cancelled.
    pub(crate) async fn held(
        answer: impl Fn(&Received) -> Response + Clone + Send + Sync + 'static,
    ) -> (Self, CancellationToken) {
        let open = CancellationToken::new();
        (Self::start(answer, open.clone()).await, open)
    }

    async fn start(
        answer: impl Fn(&Received) -> Response + Clone + Send + Sync + 'static,
        open: CancellationToken,
    ) -> Self {
        let (received, abandoned) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let kept = (Arc::clone(&received), Arc::clone(&abandoned));
        let handler = move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
            let path = uri.path().to_owned();
            let request = Received { method, path, headers, body, at: Instant::now() };
            let (answer, open, (received, abandoned)) = (answer.clone(), open.clone(), kept.clone());
            async move {
                received.lock().push(request.clone());
                let left = Abandoned(Some(abandoned));
                open.cancelled().await;
                left.forget();
                answer(&request)
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let serve = axum::serve(listener, Router::new().fallback(handler));
        TaskTracker::new().spawn(stop.clone().run_until_cancelled_owned(serve.into_future()));
        Self { port, received, abandoned, _stop: stop.drop_guard() }
    }

    /// Returns the address of a path here.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns what has come so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().clone()
    }

    /// Waits for the first request.
    pub(crate) async fn first(&self) -> Received {
        wait_until("a request", async || self.received().into_iter().next()).await
    }

    /// Waits until a request was abandoned, and says when.
    pub(crate) async fn abandoned(&self) -> Instant {
        wait_until("an abandoned request", async || self.abandoned.lock().first().copied()).await
    }
}

/// Notes that a request ended before its answer.
struct Abandoned(Option<Arc<Mutex<Vec<Instant>>>>);

impl Abandoned {
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(abandoned) = &self.0 {
            abandoned.lock().push(Instant::now());
        }
    }
}
