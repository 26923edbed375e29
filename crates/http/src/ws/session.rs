//! One socket: frames of the session go out, operations come in, and silence ends it.
//!
//! Two halves run side by side until one of them finds the end; then the close frame is sent and the
//! answer of the peer awaited, for a bounded time.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use switchboard_events::{Outgoing, Session, SessionGuard};
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::limits::{HEARTBEAT, PONG_WAIT, STUCK_AFTER};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_tungstenite::tungstenite;
use tracing::Instrument as _;

use super::budget::{MessageBudget, TooManyFragments};
use crate::{App, AppState};

/// How long the close handshake may take.
const CLOSE_WAIT: Duration = Duration::from_secs(3);

type Sink = SplitSink<WebSocket, Message>;
type Stream = SplitStream<WebSocket>;

/// How a socket ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The server closes it, and the peer answers.
    Close(CloseCode),
    /// The peer broke RFC 6455 in a way that leaves nothing to be read.
    Fault { code: u16, reason: &'static str },
    /// The peer closes it; the answer is under way.
    ByPeer,
    /// The connection is lost.
    Lost,
}

impl End {
    /// The labels of the metric.
    const LABELS: [&str; 4] = ["server", "fault", "peer", "lost"];

    const fn label(self) -> &'static str {
        match self {
            Self::Close(_) => Self::LABELS[0],
            Self::Fault { .. } => Self::LABELS[1],
            Self::ByPeer => Self::LABELS[2],
            Self::Lost => Self::LABELS[3],
        }
    }

    const fn code(self) -> Option<u16> {
        match self {
            Self::Close(code) => Some(code.number()),
            Self::Fault { code, .. } => Some(code),
            Self::ByPeer | Self::Lost => None,
        }
    }

    /// Classifies what the protocol layer reports.
    fn of(error: axum::Error) -> Self {
        let error = error.into_inner();
        match error.downcast_ref::<tungstenite::Error>() {
            Some(tungstenite::Error::Capacity(_)) => {
                Self::Fault { code: CloseCode::TooBig.number(), reason: CloseCode::TooBig.reason() }
            }
            Some(tungstenite::Error::Io(error))
                if error.get_ref().is_some_and(|inner| inner.is::<TooManyFragments>()) =>
            {
                Self::Fault { code: CloseCode::TooBig.number(), reason: "too many fragments" }
            }
            Some(tungstenite::Error::Utf8(_)) => Self::Fault { code: close_code::INVALID, reason: "not valid UTF-8" },
            Some(tungstenite::Error::Protocol(fault)) if !is_loss(fault) => {
                Self::Fault { code: close_code::PROTOCOL, reason: "protocol error" }
            }
            _ => Self::Lost,
        }
    }
}

/// Tells whether a protocol error is only the end of the connection.
fn is_loss(fault: &tungstenite::error::ProtocolError) -> bool {
    matches!(fault, tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)
}

/// Registers the metrics of sockets at zero.
pub(crate) fn describe_metrics() {
    for label in End::LABELS {
        metrics::counter!("switchboard_realtime_closes_total", "by" => label).absolute(0);
    }
}

/// Serves a socket until its end.
pub(super) async fn run(socket: WebSocket, session: SessionGuard, app: App, budget: MessageBudget) {
    let span = tracing::info_span!("ws.session", conn_id = %session.id());
    budget.begin();
    serve(socket, session, app, &budget).instrument(span).await;
}

async fn serve(socket: WebSocket, session: SessionGuard, app: App, budget: &MessageBudget) {
    let (mut sink, mut stream) = socket.split();
    let ping = Notify::new();
    let end = tokio::select! {
        end = write(&mut sink, &session, &ping) => end,
        end = read((&mut stream, budget), &session, &app, &ping) => end,
    };
    // From here on nobody can reach the session any more, however long the farewell takes.
    drop(session);
    metrics::counter!("switchboard_realtime_closes_total", "by" => end.label()).increment(1);
    tracing::debug!(by = end.label(), code = end.code(), "the socket ends");
    // A peer that does not take part in the farewell is left without one.
    let _ = timeout(CLOSE_WAIT, farewell(sink, stream, end)).await;
}

/// Writes what the session has to say.
async fn write(sink: &mut Sink, session: &Session, ping: &Notify) -> End {
    enum Step {
        Ping,
        Outgoing(Outgoing),
    }
    loop {
        let step = tokio::select! {
            () = ping.notified() => Step::Ping,
            outgoing = session.next() => Step::Outgoing(outgoing),
        };
        let written = match step {
            Step::Outgoing(Outgoing::Close(code)) => return End::Close(code),
            Step::Outgoing(Outgoing::Frames(texts)) => write_frames(sink, texts).await,
            Step::Ping => within_patience(sink.send(Message::Ping(Bytes::new()))).await,
        };
        if let Err(end) = written {
            return end;
        }
    }
}

/// Writes frames with one flush. Each frame has its own patience: a slow reader makes progress, a stuck
/// one does not.
async fn write_frames(sink: &mut Sink, texts: Vec<Bytes>) -> Result<(), End> {
    for text in texts {
        // Frames are valid UTF-8 by contract; one that is not would be a fault of the server.
        let text = Utf8Bytes::try_from(text).map_err(|_| End::Close(CloseCode::ServerError))?;
        within_patience(sink.feed(Message::Text(text))).await?;
    }
    within_patience(sink.flush()).await
}

async fn within_patience(writing: impl Future<Output = Result<(), axum::Error>>) -> Result<(), End> {
    match timeout(STUCK_AFTER.to_std(), writing).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(End::Lost),
        Err(_) => Err(End::Close(CloseCode::Slow)),
    }
}

/// Reads operations and watches for signs of life. Every frame is one, whatever it carries.
async fn read(
    (stream, budget): (&mut Stream, &MessageBudget),
    session: &Arc<Session>,
    app: &AppState,
    ping: &Notify,
) -> End {
    let mut is_asked = false;
    let mut patience = HEARTBEAT;
    loop {
        let message = match timeout_at(Instant::now() + patience.to_std(), stream.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(error))) => return End::of(error),
            Ok(None) => return End::Lost,
            Err(_) if is_asked => return End::Close(CloseCode::NoPong),
            Err(_) => {
                // Programs answer the ping of the protocol, pages that of the application.
                session.ping();
                ping.notify_one();
                is_asked = true;
                patience = PONG_WAIT;
                continue;
            }
        };
        match &message {
            Message::Ping(payload) | Message::Pong(payload) => budget.spend_control(payload.len()),
            _ => budget.spend_all(),
        }
        is_asked = false;
        patience = HEARTBEAT;
        // Whoever sends too fast is not read from; the network slows them down.
        while let Err(wait) = session.admit() {
            sleep(wait).await;
        }
        match message {
            Message::Text(text) => app.operations.handle(session, &text, app).await,
            Message::Binary(_) => return End::Close(CloseCode::Unsupported),
            Message::Close(_) => return End::ByPeer,
            Message::Ping(_) | Message::Pong(_) => {}
        }
    }
}

/// Says goodbye: sends the close frame, if the server closes, and waits for the peer to go.
async fn farewell(mut sink: Sink, mut stream: Stream, end: End) {
    let frame = |code, reason| Message::Close(Some(CloseFrame { code, reason: Utf8Bytes::from_static(reason) }));
    let sent = match end {
        End::Close(code) => sink.send(frame(code.number(), code.reason())).await,
        End::Fault { code, reason } => sink.send(frame(code, reason)).await,
        End::ByPeer => Ok(()),
        End::Lost => return,
    };
    if sent.is_err() {
        return;
    }
    while let Some(Ok(_)) = stream.next().await {}
    if matches!(end, End::Fault { .. }) {
        // Nothing more can be read, so the answer cannot be seen. Hanging up on unread bytes would reset the
        // connection and take the close frame along; the peer gets the time to read it.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use tungstenite::error::{CapacityError, ProtocolError};

    use super::*;

    #[test]
    fn faults_of_the_protocol_have_the_codes_of_the_rfc() {
        let end = |error: tungstenite::Error| End::of(axum::Error::new(error)).code();
        let fragments = std::io::Error::new(std::io::ErrorKind::InvalidData, TooManyFragments);
        assert_eq!(end(tungstenite::Error::Io(fragments)), Some(1009));
        assert_eq!(end(tungstenite::Error::Io(std::io::ErrorKind::InvalidData.into())), None);
        let too_long = CapacityError::MessageTooLong { size: 2, max_size: 1 };
        assert_eq!(end(tungstenite::Error::Capacity(too_long)), Some(1009));
        assert_eq!(end(tungstenite::Error::Utf8(String::new())), Some(1007));
        assert_eq!(end(tungstenite::Error::Protocol(ProtocolError::UnmaskedFrameFromClient)), Some(1002));
        assert_eq!(end(tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)), None);
        assert_eq!(end(tungstenite::Error::ConnectionClosed), None);
    }
}
