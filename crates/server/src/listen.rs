//! The listener: accepts connections, bounds what each may cost, and lets them go in peace when the replica stops.
//!
//! It knows HTTP as far as connections go, and nothing of routes. What a request may cost is bounded there.

mod wire;

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::ConnectInfo;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use switchboard_http::Lifecycle;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service as _;

use wire::{Exchange, Track, Wire};

/// The most bytes of a request line and its headers; more is answered 431. The number of headers is bounded by
/// hyper at 100, with the same answer.
const HEAD_BYTES: usize = 32 * 1024;

/// The most bytes that a connection buffers in each direction.
const BUFFER_BYTES: usize = 64 * 1024;

/// How long the listener waits when it cannot accept, for want of file descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// How long the log stays silent on connections that wait.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// How long a stopping listener goes on accepting: who is in the queue of the system already would be reset.
const LAST_CALL: Duration = Duration::from_millis(50);

/// How long an idle connection stays open after that. A client that sends within this time gets its answer, and
/// with it the word that the connection ends; hanging up at once would cut off requests that are under way.
const LINGER: Duration = Duration::from_secs(1);

/// What connections may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The most open connections; further ones wait to be accepted.
    pub(crate) max_connections: u32,
    /// How long a client may take to send the head of a request, from its first byte on.
    pub(crate) header_timeout: Duration,
    /// How long a connection may be idle between two requests.
    pub(crate) idle_timeout: Duration,
}

/// What a listener is given.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) bounds: Bounds,
    /// While it says that the replica drains, each answer is the last on its connection.
    pub(crate) lifecycle: Lifecycle,
    /// Carries the listener and every connection.
    pub(crate) tracker: TaskTracker,
    /// No more connections are accepted.
    pub(crate) stop: CancellationToken,
}

/// Listens and serves until the edge stops, and returns the address.
pub(crate) async fn listen(bind: SocketAddr, router: Router, edge: Edge) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(bind).await.with_context(|| format!("cannot listen on {bind}"))?;
    let address = listener.local_addr()?;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        // For hyper an idle connection and one that sends a head are the same; `Wire` bounds the latter.
        .header_read_timeout(edge.bounds.idle_timeout)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(BUFFER_BYTES);
    let slots = Arc::new(Semaphore::new(edge.bounds.max_connections as usize));
    let tracker = edge.tracker.clone();
    tracker.spawn(Listener { edge, router, http, slots, closing: CancellationToken::new() }.run(listener));
    Ok(address)
}

struct Listener {
    edge: Edge,
    router: Router,
    http: http1::Builder,
    /// One for each connection that may be open.
    slots: Arc<Semaphore>,
    /// Idle connections are closed.
    closing: CancellationToken,
}

/// The place of a connection among those that may be open; a socket keeps it after its upgrade.
struct Slot(#[expect(dead_code, reason = "held, never read")] OwnedSemaphorePermit);

impl Slot {
    fn new(permit: OwnedSemaphorePermit) -> Self {
        metrics::gauge!("switchboard_http_connections").increment(1.0);
        Self(permit)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        metrics::gauge!("switchboard_http_connections").decrement(1.0);
    }
}

impl Listener {
    async fn run(self, listener: TcpListener) {
        let _ = self.edge.stop.run_until_cancelled(self.serve_all(&listener)).await;
        let _ = timeout(LAST_CALL, self.serve_all(&listener)).await;
        drop(listener);
        // All slots are free when all connections have ended.
        let _ = timeout(LINGER, self.slots.acquire_many(self.edge.bounds.max_connections)).await;
        self.closing.cancel();
    }

    async fn serve_all(&self, listener: &TcpListener) -> Infallible {
        let mut warned = None;
        loop {
            let permit = self.permit(&mut warned).await;
            let (stream, peer) = accept(listener).await;
            self.serve(stream, peer, Slot::new(permit));
        }
    }

    /// Waits until one more connection may be open, and warns that it must unless it has `warned` just now.
    async fn permit(&self, warned: &mut Option<Instant>) -> OwnedSemaphorePermit {
        if let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() {
            return permit;
        }
        if warned.is_none_or(|at| at.elapsed() > WARN_EVERY) {
            *warned = Some(Instant::now());
            let most = self.edge.bounds.max_connections;
            tracing::warn!(most, "server.max_connections are open; new connections wait");
        }
        metrics::counter!("switchboard_http_connections_full_total").increment(1);
        match Arc::clone(&self.slots).acquire_owned().await {
            Ok(permit) => permit,
            // Nobody closes the semaphore.
            Err(_) => std::future::pending().await,
        }
    }

    /// Serves one connection on a task of its own, so that its end is nobody else's.
    fn serve(&self, stream: TcpStream, peer: SocketAddr, slot: Slot) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection sends its packets late");
        }
        let track = Track::default();
        let wire = Wire::new(stream, track.clone(), self.edge.bounds.header_timeout, slot);
        let (router, lifecycle) = (self.router.clone(), self.edge.lifecycle.clone());
        let service = service_fn(move |request| answer(router.clone(), request, peer, &track, lifecycle.clone()));
        let connection = self.http.serve_connection(TokioIo::new(wire), service).with_upgrades();
        let closing = self.closing.clone();
        self.edge.tracker.spawn(async move {
            let mut connection = pin!(connection);
            let ended = tokio::select! {
                biased;
                ended = connection.as_mut() => Some(ended),
                () = closing.cancelled() => None,
            };
            let ended = match ended {
                Some(ended) => ended,
                None => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
}

/// Accepts a connection, however long it takes until one can be.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // The client left before its turn.
            Err(error) if is_of_client(error.kind()) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be accepted; trying again in a second");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

const fn is_of_client(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset)
}

/// Passes a request on to the router, with the address it came from.
fn answer(
    mut router: Router,
    mut request: Request<Incoming>,
    peer: SocketAddr,
    track: &Track,
    lifecycle: Lifecycle,
) -> impl Future<Output = Result<Response<Outgoing>, Infallible>> + use<> {
    let exchange = track.exchanges.begin();
    request.extensions_mut().insert(ConnectInfo(peer));
    request.extensions_mut().insert(track.budget.clone());
    let response = router.call(request.map(Body::new));
    async move {
        let mut response = response.await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            exchange.never_ends();
            return Ok(response.map(|body| Outgoing { body, _exchange: None }));
        }
        if lifecycle.is_draining() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| Outgoing { body, _exchange: Some(exchange) }))
    }
}

/// The body of an answer. The exchange ends when it was handed over whole.
struct Outgoing {
    body: Body,
    _exchange: Option<Exchange>,
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Registers the metrics of listeners at zero.
pub(crate) fn describe_metrics() {
    metrics::gauge!("switchboard_http_connections").set(0.0);
    metrics::counter!("switchboard_http_connections_full_total").absolute(0);
}
