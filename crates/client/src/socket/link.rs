//! The two tasks of a socket: one reads frames and sorts them, one writes what operations queue.
//!
//! Both end together: when the connection does, or when the socket is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use parking_lot::Mutex;
use switchboard_model::wire::frame::{NoticeFrame, ReplyFrame, ServerFrame};
use switchboard_model::wire::limits::HEARTBEAT;
use switchboard_model::wire::op::{ClientFrame, ClientOp};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::{LOST, SocketEvent};
use crate::error::OpError;

type Stream = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// How long an operation waits for its answer.
const OP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the two sides take to say goodbye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a connection may be silent before it counts as lost; the server pings far more often.
const SILENCE: Duration = HEARTBEAT.to_std().saturating_mul(2);

/// How many frames wait to be written; when it is full, operations wait.
const WRITE_CAPACITY: usize = 256;

/// The id of answers to pings, which nobody waits for.
const PING_ID: u64 = 0;

/// What operations share with the two tasks.
#[derive(Debug)]
pub(super) struct Link {
    outgoing: mpsc::Sender<Message>,
    /// Who waits for the answer to which id.
    waiting: Mutex<HashMap<u64, oneshot::Sender<ReplyFrame>>>,
    last_id: AtomicU64,
    closed: CancellationToken,
}

impl Link {
    /// Starts the two tasks; they end when the returned guard is dropped.
    pub(super) fn spawn(
        tracker: &TaskTracker,
        stream: Stream,
        events: mpsc::Sender<SocketEvent>,
    ) -> (Arc<Self>, DropGuard) {
        let (sink, source) = stream.split();
        let (outgoing, queued) = mpsc::channel(WRITE_CAPACITY);
        let closed = CancellationToken::new();
        let link = Arc::new(Self {
            outgoing,
            waiting: Mutex::default(),
            last_id: AtomicU64::new(PING_ID),
            closed: closed.clone(),
        });
        tracker.spawn(Arc::clone(&link).read(source, events));
        tracker.spawn(write(sink, queued, closed.clone()));
        (link, closed.drop_guard())
    }

    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Queues an operation.
    pub(super) async fn write(&self, id: u64, op: ClientOp) -> Result<(), OpError> {
        let text = ClientFrame { id, op }.to_text().map_err(OpError::Decode)?;
        self.outgoing.send(Message::text(text)).await.map_err(|_| OpError::Closed)
    }

    /// Queues an operation and waits for its answer.
    pub(super) async fn call(&self, op: ClientOp) -> Result<ReplyFrame, OpError> {
        let id = self.next_id();
        let (sender, mut answer) = oneshot::channel();
        self.waiting.lock().insert(id, sender);
        let _forget = Forget { link: self, id };
        self.write(id, op).await?;
        tokio::select! {
            biased;
            reply = &mut answer => reply.map_err(|_| OpError::Closed),
            () = self.closed.cancelled() => answer.try_recv().map_err(|_| OpError::Closed),
            () = tokio::time::sleep(OP_TIMEOUT) => Err(OpError::TimedOut),
        }
    }

    async fn read(self: Arc<Self>, mut source: SplitStream<Stream>, events: mpsc::Sender<SocketEvent>) {
        let ending = loop {
            let Some(arrival) = self.closed.run_until_cancelled(timeout(SILENCE, source.next())).await else {
                break lost("closed here");
            };
            let Ok(message) = arrival else { break lost("the server is silent") };
            match message {
                Some(Ok(Message::Text(text))) => {
                    let Some(event) = self.sort(text.as_str()) else { continue };
                    if events.send(event).await.is_err() {
                        break lost("closed here");
                    }
                }
                Some(Ok(Message::Close(frame))) => {
                    // Reading on sends the answer to the close.
                    let _ = timeout(CLOSE_TIMEOUT, source.next()).await;
                    break said(frame);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => break failed(&error),
                None => break lost("the connection ended without a close frame"),
            }
        };
        self.closed.cancel();
        // Nobody is left to read it when the socket was dropped.
        let _ = events.send(ending).await;
    }

    /// Decides who gets a frame: a waiting operation, the server (pings), or the caller.
    fn sort(&self, text: &str) -> Option<SocketEvent> {
        match ServerFrame::parse(text) {
            Ok(ServerFrame::Event(event)) => Some(SocketEvent::Event(event)),
            Ok(ServerFrame::Notice(NoticeFrame::Ping {})) => {
                self.answer_ping();
                None
            }
            Ok(ServerFrame::Notice(notice)) => Some(SocketEvent::Notice(notice)),
            Ok(ServerFrame::Reply(reply)) if reply.re == PING_ID => None,
            Ok(ServerFrame::Reply(reply)) => {
                let Some(waiting) = self.waiting.lock().remove(&reply.re) else {
                    return Some(SocketEvent::Reply(reply));
                };
                // A caller that went away does not need its answer.
                let _ = waiting.send(reply);
                None
            }
            Err(error) => {
                // A newer server may say more than this client understands.
                tracing::warn!(%error, "a frame cannot be read and is left out");
                None
            }
        }
    }

    fn answer_ping(&self) {
        if let Ok(text) = (ClientFrame { id: PING_ID, op: ClientOp::Ping }).to_text() {
            // When the queue is full, what is in it tells the server just as well that we live.
            let _ = self.outgoing.try_send(Message::text(text));
        }
    }
}

/// Takes back the place of an operation that is no longer waited for.
struct Forget<'a> {
    link: &'a Link,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.link.waiting.lock().remove(&self.id);
    }
}

async fn write(mut sink: SplitSink<Stream, Message>, mut queued: mpsc::Receiver<Message>, closed: CancellationToken) {
    let writing = async {
        let mut batch = Vec::new();
        while queued.recv_many(&mut batch, WRITE_CAPACITY).await > 0 {
            for message in batch.drain(..) {
                sink.feed(message).await?;
            }
            sink.flush().await?;
        }
        Ok::<(), WsError>(())
    };
    if let Some(Err(error)) = closed.run_until_cancelled(writing).await {
        tracing::debug!(%error, "a socket cannot be written to");
        closed.cancel();
    }
    let _ = timeout(CLOSE_TIMEOUT, sink.close()).await;
}

fn said(frame: Option<CloseFrame>) -> SocketEvent {
    frame.map_or_else(
        || lost("closed without a code"),
        |frame| SocketEvent::Closed { code: frame.code.into(), reason: frame.reason.as_str().to_owned() },
    )
}

fn failed(error: &WsError) -> SocketEvent {
    SocketEvent::Closed { code: LOST, reason: error.to_string() }
}

fn lost(reason: &str) -> SocketEvent {
    SocketEvent::Closed { code: LOST, reason: reason.to_owned() }
}
