//! The bytes of one connection, with bounds on how long a client may take for a head and for accepting an answer.
//!
//! It knows no HTTP: it is told when an exchange begins and ends, and takes what is read in between for a body.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use switchboard_http::MessageBudget;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How long a client may accept no byte of an answer.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// Counts the beginnings and the ends of the exchanges of a connection: it is odd during an exchange.
#[derive(Clone, Default)]
pub(super) struct Exchanges(Arc<AtomicU64>);

impl Exchanges {
    /// Notes that the head of a request was read whole.
    pub(super) fn begin(&self) -> Exchange {
        self.0.fetch_add(1, Ordering::AcqRel);
        Exchange(Some(self.clone()))
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// What the bytes of a connection and its requests tell each other.
#[derive(Clone, Default)]
pub(super) struct Track {
    pub(super) exchanges: Exchanges,
    /// Bounds what a socket may send before a message is whole.
    pub(super) budget: MessageBudget,
}

/// A request and its answer; dropping it ends the exchange.
pub(super) struct Exchange(Option<Exchanges>);

impl Exchange {
    /// Notes that the connection became a socket.
    pub(super) fn never_ends(mut self) {
        self.0 = None;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(exchanges) = &self.0 {
            exchanges.0.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// A time limit that runs while something is waited for.
struct Patience {
    limit: Duration,
    deadline: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    const fn new(limit: Duration) -> Self {
        Self { limit, deadline: None, alarm: None }
    }

    /// Starts the time unless it runs.
    fn start(&mut self) {
        self.deadline.get_or_insert_with(|| Instant::now() + self.limit);
    }

    fn stop(&mut self) {
        self.deadline = None;
    }

    /// Is ready with an error when the time has run out.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(deadline) = self.deadline else { return Poll::Pending };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if alarm.deadline() != deadline {
            alarm.as_mut().reset(deadline);
        }
        alarm.as_mut().poll(cx).map(|()| io::ErrorKind::TimedOut.into())
    }
}

/// A stream that gives up on clients that take too long; `held` is kept for as long as it is open.
pub(super) struct Wire<S, H> {
    stream: S,
    track: Track,
    /// The count at the last read.
    seen: u64,
    head: Patience,
    write: Patience,
    _held: H,
}

impl<S, H> Wire<S, H> {
    /// Wraps the stream of a new connection, whose first head is waited for from now on.
    pub(super) fn new(stream: S, track: Track, header_timeout: Duration, held: H) -> Self {
        let mut head = Patience::new(header_timeout);
        head.start();
        let seen = track.exchanges.count();
        Self { stream, track, seen, head, write: Patience::new(STUCK_AFTER), _held: held }
    }

    /// Lets a write that makes progress go on, and one that does not fail after a while.
    fn within_patience<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write.stop();
            return written;
        }
        self.write.start();
        self.write.poll(cx).map(Err)
    }
}

impl<S: AsyncRead + Unpin, H: Unpin> AsyncRead for Wire<S, H> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Err(error) = self.track.budget.read(buffer.filled().len() - before) {
            return Poll::Ready(Err(error));
        }
        let count = self.track.exchanges.count();
        if count != self.seen {
            self.seen = count;
            self.head.stop();
        }
        if count % 2 == 1 {
            return read;
        }
        if read.is_pending() {
            return self.head.poll(cx).map(Err);
        }
        if buffer.filled().len() > before {
            self.head.start();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin, H: Unpin> AsyncWrite for Wire<S, H> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.within_patience(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.within_patience(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::advance;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn pair() -> (DuplexStream, Wire<DuplexStream, ()>, Exchanges) {
        let (client, server) = duplex(64);
        let track = Track::default();
        let exchanges = track.exchanges.clone();
        (client, Wire::new(server, track, LIMIT, ()), exchanges)
    }

    async fn read_byte(wire: &mut Wire<DuplexStream, ()>) -> io::Result<u8> {
        wire.read_u8().await
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_trickles_in_is_cut_off() {
        let (mut client, mut wire, _exchanges) = pair();
        let started = Instant::now();
        let error = loop {
            client.write_u8(b'x').await.unwrap();
            advance(Duration::from_secs(1)).await;
            read_byte(&mut wire).await.unwrap();
            match tokio::time::timeout(Duration::from_millis(500), read_byte(&mut wire)).await {
                Err(_) => {}
                Ok(read) => break read.unwrap_err(),
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < LIMIT * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_never_sends_is_cut_off() {
        let (_client, mut wire, _exchanges) = pair();
        assert_eq!(read_byte(&mut wire).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_idle_connections_and_sockets_have_more_time() {
        let (mut client, mut wire, exchanges) = pair();
        client.write_u8(b'h').await.unwrap();
        read_byte(&mut wire).await.unwrap();
        let exchange = exchanges.begin();
        assert!(tokio::time::timeout(LIMIT * 3, read_byte(&mut wire)).await.is_err(), "a slow body is not a head");
        client.write_u8(b'b').await.unwrap();
        read_byte(&mut wire).await.unwrap();
        drop(exchange);
        assert!(tokio::time::timeout(LIMIT * 3, read_byte(&mut wire)).await.is_err(), "nothing was sent yet");
        client.write_u8(b'h').await.unwrap();
        read_byte(&mut wire).await.unwrap();
        exchanges.begin().never_ends();
        assert!(tokio::time::timeout(LIMIT * 3, read_byte(&mut wire)).await.is_err(), "it is a socket now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_no_answer_is_cut_off() {
        let (mut client, mut wire, _exchanges) = pair();
        wire.write_all(&[0; 64]).await.unwrap();
        client.read_u8().await.unwrap();
        wire.write_u8(0).await.unwrap();
        assert_eq!(wire.write_u8(0).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
