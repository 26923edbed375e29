//! Producing a stream in this replica: a buffer that the flusher empties, and the fate of the stream.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchboard_model::ids::{Fence, StreamId};
use switchboard_model::stream::{CHUNK_BYTES, StreamAppend, StreamContent, StreamEnd, StreamState};
use switchboard_store_api::{OpenedStream, StreamAppendOutcome};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Streams;

/// How long what follows the first chunk is gathered.
const GATHER: Duration = Duration::from_millis(40);

/// How much is gathered at most before it is stored, in bytes.
const GATHER_BYTES: usize = 4 * 1024;

/// How much may wait to be stored; a producer that is faster than the database waits.
const PENDING_BYTES: usize = 256 * 1024;

/// How often a silent producer says that it lives: three times in a lease.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// Why nothing more can be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Somebody else produces the stream now, or it has ended.
    #[error("the stream was taken away from its producer")]
    Fenced,
    /// The stream would be too large.
    #[error("the stream would be too large")]
    TooLarge,
    /// The database refused to store it.
    #[error("the stream could not be stored")]
    Refused,
}

/// The one producer of a stream. Dropping it without an end interrupts the stream.
pub struct StreamWriter {
    streams: Arc<Streams>,
    buffer: Arc<Buffer>,
}

impl StreamWriter {
    pub(super) fn new(streams: Arc<Streams>, buffer: Arc<Buffer>) -> Self {
        Self { streams, buffer }
    }

    /// Returns which stream it is.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.buffer.stream
    }

    /// Returns what is cancelled when somebody asks to stop the stream, and when it was taken away.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.buffer.stopping
    }

    /// Adds to the stream; waits while too much is not stored yet.
    ///
    /// # Errors
    /// [`WriteError`] says why nothing more can be written.
    pub async fn write(&self, data: &[u8]) -> Result<(), WriteError> {
        loop {
            let progress = self.buffer.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if self.buffer.put(data)? {
                self.streams.work.notify_one();
                return Ok(());
            }
            progress.await;
        }
    }

    /// Ends the stream, and waits until that is stored.
    ///
    /// # Errors
    /// [`WriteError`] says why that is not so.
    pub async fn end(self, end: StreamEnd) -> Result<(), WriteError> {
        self.buffer.state.lock().end = Some(end);
        self.streams.work.notify_one();
        loop {
            let progress = self.buffer.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if let Some(fate) = self.buffer.fate() {
                return fate;
            }
            progress.await;
        }
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.buffer.abandon("the producer went away");
        self.streams.work.notify_one();
    }
}

/// What one producer has written and the flusher not stored.
pub(super) struct Buffer {
    stream: StreamId,
    fence: Fence,
    content: StreamContent,
    stopping: CancellationToken,
    /// Tells the producer that something was stored, or that nothing will be.
    progress: Notify,
    state: Mutex<State>,
}

struct State {
    pending: Vec<u8>,
    /// Since when something waits to be stored.
    since: Option<Instant>,
    /// The number of the next chunk.
    next: i64,
    /// Whether this producer has stored anything.
    has_started: bool,
    /// When the lease is prolonged at the latest.
    beat: Instant,
    end: Option<StreamEnd>,
    fate: Option<Result<(), WriteError>>,
}

impl Buffer {
    pub(super) fn new(opened: &OpenedStream) -> Self {
        let state = State {
            pending: Vec::new(),
            since: None,
            next: opened.stream.tail + 1,
            has_started: false,
            beat: Instant::now() + HEARTBEAT,
            end: None,
            fate: None,
        };
        Self {
            stream: opened.stream.id,
            fence: opened.fence,
            content: opened.stream.content,
            stopping: CancellationToken::new(),
            progress: Notify::new(),
            state: Mutex::new(state),
        }
    }

    /// Takes data if there is room.
    pub(super) fn put(&self, data: &[u8]) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        if let Some(fate) = &state.fate {
            return Err(fate.clone().err().unwrap_or(WriteError::Fenced));
        }
        if !state.pending.is_empty() && state.pending.len() + data.len() > PENDING_BYTES {
            return Ok(false);
        }
        state.pending.extend_from_slice(data);
        state.since.get_or_insert_with(Instant::now);
        Ok(true)
    }

    pub(super) fn fate(&self) -> Option<Result<(), WriteError>> {
        self.state.lock().fate.clone()
    }

    /// Interrupts the stream, unless its end was said.
    pub(super) fn abandon(&self, reason: &str) {
        let mut state = self.state.lock();
        state.end.get_or_insert_with(|| StreamEnd { state: StreamState::Interrupted, reason: Some(reason.to_owned()) });
    }

    pub(super) fn ask_to_stop(&self) {
        self.stopping.cancel();
    }

    /// Returns from when on the flusher has to take something, which may be past; `None` once the stream has ended.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let state = self.state.lock();
        if state.fate.is_some() {
            return None;
        }
        Some(match state.since {
            since if state.end.is_some() => since.unwrap_or(now),
            Some(since) if !state.has_started || state.pending.len() >= GATHER_BYTES => since,
            Some(since) => (since + GATHER).min(state.beat),
            None => state.beat,
        })
    }

    /// Takes what is to be stored next; nothing prolongs the lease.
    pub(super) fn take(&self, now: Instant) -> StreamAppend {
        let mut state = self.state.lock();
        let end = state.end.clone();
        let mut pending = mem::take(&mut state.pending);
        if self.content == StreamContent::Text && end.is_none() {
            state.pending = pending.split_off(pending.len() - incomplete_end(&pending));
        }
        state.since = None;
        state.beat = now + HEARTBEAT;
        let first = state.next;
        drop(state);
        let chunks = match self.content {
            StreamContent::Text => text_chunks(&String::from_utf8_lossy(&pending)),
            StreamContent::Binary => pending.chunks(CHUNK_BYTES).map(<[u8]>::to_vec).collect(),
        };
        StreamAppend { stream: self.stream, fence: self.fence, first: Some(first), chunks, end }
    }

    /// Takes note of what became of what was taken.
    pub(super) fn settle(&self, append: &StreamAppend, outcome: Result<StreamAppendOutcome, WriteError>) {
        let mut state = self.state.lock();
        match outcome {
            Ok(StreamAppendOutcome::Appended { is_stopping, .. }) => {
                state.next += append.chunks.len() as i64;
                state.has_started |= !append.chunks.is_empty();
                if append.end.is_some() {
                    state.fate = Some(Ok(()));
                }
                if is_stopping {
                    self.stopping.cancel();
                }
            }
            Ok(StreamAppendOutcome::TooLarge) => state.fate = Some(Err(WriteError::TooLarge)),
            Ok(_) => state.fate = Some(Err(WriteError::Fenced)),
            Err(error) => state.fate = Some(Err(error)),
        }
        if state.fate.is_some() {
            self.stopping.cancel();
        }
        drop(state);
        self.progress.notify_waiters();
    }
}

/// Counts the bytes at the end that begin a character and do not complete it.
fn incomplete_end(bytes: &[u8]) -> usize {
    for (back, byte) in (1..4).zip(bytes.iter().rev()) {
        let needed = match byte {
            0xf0.. => 4,
            0xe0.. => 3,
            0xc0.. => 2,
            0x80.. => continue,
            _ => return 0,
        };
        return if needed > back { back } else { 0 };
    }
    0
}

/// Cuts a text where characters end.
fn text_chunks(text: &str) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (chunk, more) = rest.split_at(rest.floor_char_boundary(CHUNK_BYTES));
        chunks.push(chunk.as_bytes().to_vec());
        rest = more;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_is_not_complete_waits_for_its_rest() {
        for (text, expected) in [
            (&b""[..], 0),
            (b"abc", 0),
            ("é".as_bytes(), 0),
            (&"é".as_bytes()[..1], 1),
            (&"a€".as_bytes()[..3], 2),
            (&"🦀".as_bytes()[..1], 1),
            (&"x🦀".as_bytes()[..4], 3),
            ("🦀".as_bytes(), 0),
            (&[0x80, 0x80, 0x80, 0x80], 0),
            (&[b'a', 0xff], 1),
        ] {
            assert_eq!(incomplete_end(text), expected, "{text:?}");
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = format!("x{}", "🦀".repeat(CHUNK_BYTES / 4));
        let chunks = text_chunks(&text);
        assert_eq!(chunks.iter().map(Vec::len).collect::<Vec<_>>(), [CHUNK_BYTES - 3, 4]);
        assert!(chunks.iter().all(|chunk| std::str::from_utf8(chunk).is_ok()));
        assert_eq!(chunks.concat(), text.as_bytes());
        assert!(text_chunks("").is_empty());
    }
}
