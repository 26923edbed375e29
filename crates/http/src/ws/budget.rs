//! What a client may send before a message is whole: the protocol layer collects fragments without counting them, so the
//! bytes of the connection are counted beside it.
//!
//! The connection counts what is read, the session says what of it has become a message. A fragment has at least six bytes
//! (RFC 6455, section 5.2), so the bytes bound the fragments, empty ones too.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use switchboard_model::wire::limits::{FRAGMENT_BYTES, MESSAGE_BYTES};

use crate::openapi::{Part, Sketch};

/// The bytes of a frame beside its payload: head, short length and mask.
const FRAME_HEAD_BYTES: usize = 6;

/// Counts the bytes of a connection that have not become a message. It bounds nothing before the connection is a socket.
#[derive(Clone, Debug, Default)]
pub struct MessageBudget(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_socket: AtomicBool,
    bytes: AtomicUsize,
}

/// A client sends fragments without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyFragments;

impl fmt::Display for TooManyFragments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message in too many fragments")
    }
}

impl std::error::Error for TooManyFragments {}

impl MessageBudget {
    /// Notes bytes that were read.
    ///
    /// # Errors
    /// Fails when a message would be whole by now that came in one piece or in a reasonable number of them.
    pub fn read(&self, bytes: usize) -> io::Result<()> {
        if !self.0.is_socket.load(Ordering::Relaxed) {
            return Ok(());
        }
        let unused = self.0.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if unused > MESSAGE_BYTES + FRAGMENT_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, TooManyFragments));
        }
        Ok(())
    }

    /// Begins to count: the connection has become a socket.
    pub(super) fn begin(&self) {
        self.0.is_socket.store(true, Ordering::Relaxed);
    }

    /// Notes that a message is whole.
    pub(super) fn spend_all(&self) {
        self.0.bytes.store(0, Ordering::Relaxed);
    }

    /// Notes a control frame, which may stand between the fragments of a message.
    pub(super) fn spend_control(&self, payload: usize) {
        let spend = |bytes: usize| Some(bytes.saturating_sub(payload + FRAME_HEAD_BYTES));
        // The closure never refuses.
        let _ = self.0.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
    }
}

impl<S: Sync> FromRequestParts<S> for MessageBudget {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // Where nobody counts the bytes of connections, nothing is bounded here.
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

impl Part for MessageBudget {
    fn describe(_: &mut Sketch<'_>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_control_frames_use_what_was_read_and_fragments_do_not() {
        let budget = MessageBudget::default();
        budget.read(10 * MESSAGE_BYTES).unwrap();
        budget.begin();
        for _ in 0..10 {
            budget.read(MESSAGE_BYTES + 14).unwrap();
            budget.spend_all();
        }
        for _ in 0..100_000 {
            budget.read(FRAME_HEAD_BYTES + 4).unwrap();
            budget.spend_control(4);
        }
        let empty_fragments = (0..).take_while(|_| budget.read(FRAME_HEAD_BYTES).is_ok()).count();
        assert_eq!(empty_fragments, (MESSAGE_BYTES + FRAGMENT_BYTES) / FRAME_HEAD_BYTES);
    }

    #[test]
    fn pings_between_fragments_win_nothing() {
        let budget = MessageBudget::default();
        budget.begin();
        let error = (0..).find_map(|_| {
            let read = budget.read(2 * FRAME_HEAD_BYTES).err();
            budget.spend_control(0);
            read
        });
        assert!(error.unwrap().get_ref().unwrap().is::<TooManyFragments>());
    }
}
