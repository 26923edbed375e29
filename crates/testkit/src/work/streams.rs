//! Streams: producers that repeat each chunk until it is taken, and readers that change replicas: byte for byte, and with an
//! honest end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use switchboard_client::{Client, Followed};
use switchboard_model::ids::{Fence, StreamId};
use switchboard_model::stream::{StreamEnd, StreamState};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::stream::{ChunkText, StreamAppendRequest, StreamRequest};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::fleet::{Fleet, LONG};
use super::{Ledger, Workload};
use crate::ledger::Loss;
use crate::must::Must as _;

/// How many readers each stream has.
const READERS: usize = 2;

/// How many chunks a stream has, and how often one comes.
const CHUNKS: usize = 60;
const PERIOD: Duration = Duration::from_millis(80);

/// How long a reader hears nothing before it asks another replica; chunks come more often, and comments too.
const SILENCE: Duration = Duration::from_secs(6);

/// How long to pause after a vain try.
const PAUSE: Duration = Duration::from_millis(100);

/// What chunks are made of: characters of one to four bytes, a line end and U+0000.
const PARTS: [&str; 6] = ["a", "é", "€", "🦀", "\r\n", "\0"];

/// What the producer of a stream knows.
#[derive(Clone, Debug)]
struct Written {
    id: StreamId,
    text: String,
    /// How much of it was acknowledged, in bytes.
    acknowledged: usize,
    /// Whether the last word of the producer was acknowledged.
    is_closed: bool,
}

/// What a reader saw.
struct Seen {
    id: StreamId,
    text: String,
    end: Option<StreamEnd>,
}

/// The producers' ledgers, and the readers.
pub(crate) struct Streams {
    producers: u64,
    written: Arc<Mutex<Vec<Written>>>,
    readers: Arc<Mutex<JoinSet<Seen>>>,
}

impl Streams {
    /// Describes so many streams at a time.
    pub(crate) fn new(producers: u64) -> Self {
        Self { producers, written: Arc::default(), readers: Arc::default() }
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self::new(3)
    }
}

#[async_trait]
impl Workload for Streams {
    fn name(&self) -> &'static str {
        "streams"
    }

    async fn start(&mut self, _: &Fleet) {}

    async fn drive(&mut self, fleet: &Fleet, end: &CancellationToken) {
        let mut producers = JoinSet::new();
        for number in 0..self.producers {
            let (fleet, end) = (fleet.clone(), end.clone());
            let (ledger, readers) = (Arc::clone(&self.written), Arc::clone(&self.readers));
            producers.spawn(async move {
                let mut rng = StdRng::seed_from_u64(fleet.seed().wrapping_add(number));
                while !end.is_cancelled() {
                    let written = produce(&fleet, &mut rng, &readers).await;
                    ledger.lock().unwrap_or_else(PoisonError::into_inner).push(written);
                }
            });
        }
        producers.join_all().await;
    }

    async fn check(&mut self, fleet: &Fleet, _: &[Loss]) -> Ledger {
        let readers = std::mem::take(&mut *self.readers.lock().unwrap_or_else(PoisonError::into_inner));
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut violations, mut completed) = (Vec::new(), 0);
        let Ok(seen) = timeout(LONG, readers.join_all()).await else {
            let violations = vec![format!("some reader did not see the end of its stream within {LONG:?}")];
            return Ledger { done: format!("{} streams", written.len()), violations };
        };
        for stream in &written {
            let id = stream.id;
            let stored = fleet.insist(|client| async move { client.get_stream(id).await }).await.must("a stream");
            completed += usize::from(stored.state == StreamState::Completed);
            let of_stream = seen.iter().filter(|seen| seen.id == id);
            violations.extend(of_stream.flat_map(|seen| judge(stream, seen, stored.state)));
        }
        let bytes: usize = seen.iter().map(|seen| seen.text.len()).sum();
        let done = format!(
            "{} streams, {completed} of them completed and the others interrupted; {} readers of {bytes} bytes",
            written.len(),
            seen.len()
        );
        Ledger { done, violations }
    }
}

/// Writes one stream to its end, or until its lease is lost, with readers beside it.
async fn produce(fleet: &Fleet, rng: &mut StdRng, readers: &Mutex<JoinSet<Seen>>) -> Written {
    // A stream that was opened and never heard of ends by itself.
    let opened = fleet.insist(|client| async move { client.open_stream(&StreamRequest::default()).await });
    let opened = opened.await.must("opening a stream");
    let id = opened.stream.id;
    for _ in 0..READERS {
        readers.lock().unwrap_or_else(PoisonError::into_inner).spawn(read(fleet.clone(), id));
    }
    let mut written = Written { id, text: String::new(), acknowledged: 0, is_closed: false };
    let mut clock = interval(PERIOD);
    for first in 1..=CHUNKS {
        clock.tick().await;
        let chunk: String = (0..rng.random_range(1..20)).map(|_| PARTS[rng.random_range(0..PARTS.len())]).collect();
        written.text += &chunk;
        let end = (first == CHUNKS).then_some(StreamEnd { state: StreamState::Completed, reason: None });
        let is_last = end.is_some();
        let request = StreamAppendRequest {
            fence: opened.fence,
            first: i64::try_from(first).must("a number"),
            chunks: vec![ChunkText(chunk)],
            end,
        };
        if !append(fleet, id, &request).await {
            return written;
        }
        written.acknowledged = written.text.len();
        written.is_closed = is_last;
    }
    written
}

/// Appends until a replica has taken it; `false` when the stream has been given up meanwhile.
async fn append(fleet: &Fleet, id: StreamId, request: &StreamAppendRequest) -> bool {
    let Fence(fence) = request.fence;
    let appended = fleet.insist(|client: Client| {
        let request = request.clone();
        async move { client.append_stream(id, &request).await }
    });
    match appended.await {
        Ok(_) => true,
        Err(error) if error.code() == Some(ErrorCode::Fenced) => false,
        Err(error) => panic!("an append to stream {id} under fence {fence}: {error}"),
    }
}

/// Follows a stream to its end, from one replica to the next.
async fn read(fleet: Fleet, id: StreamId) -> Seen {
    let mut seen = Seen { id, text: String::new(), end: None };
    let mut stream = fleet.any().follow_stream(id, 0);
    let mut last_heard = Instant::now();
    while last_heard.elapsed() < LONG {
        match timeout(SILENCE, stream.next()).await {
            Ok(Ok(Some(Followed::Chunk(chunk)))) => {
                seen.text += &chunk.data.0;
                last_heard = Instant::now();
            }
            Ok(Ok(Some(Followed::End(end)))) => {
                seen.end = Some(end);
                return seen;
            }
            // Nothing follows, and nothing said so.
            Ok(Ok(None)) => return seen,
            Ok(Err(_)) | Err(_) => {
                stream = stream.at(&fleet.any());
                sleep(PAUSE).await;
            }
        }
    }
    seen
}

/// Says what is wrong with what a reader saw.
fn judge(stream: &Written, seen: &Seen, stored: StreamState) -> Vec<String> {
    let id = stream.id;
    let Some(end) = &seen.end else { return vec![format!("stream {id} stopped without an end")] };
    let mut violations = Vec::new();
    if end.state != stored {
        violations.push(format!("stream {id} ended as {:?} for a reader and is {stored:?}", end.state));
    }
    if !matches!(end.state, StreamState::Completed | StreamState::Interrupted) {
        violations.push(format!("stream {id} ended as {:?}, which nobody asked for", end.state));
    }
    if !stream.text.starts_with(&seen.text) {
        violations.push(format!("what was read of stream {id} is not what was written"));
    }
    if seen.text.len() < stream.acknowledged {
        let (read, acknowledged) = (seen.text.len(), stream.acknowledged);
        violations.push(format!("of stream {id} {read} bytes were read and {acknowledged} acknowledged"));
    }
    if end.state == StreamState::Completed && seen.text != stream.text {
        violations.push(format!("stream {id} is complete, but not for a reader"));
    }
    if stream.is_closed && end.state != StreamState::Completed {
        violations.push(format!("stream {id} was completed, but a reader saw {:?}", end.state));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_was_written_and_an_honest_end() {
        let id = StreamId::new();
        let stream = Written { id, text: "abcd".to_owned(), acknowledged: 3, is_closed: false };
        let closed = Written { acknowledged: 4, is_closed: true, ..stream.clone() };
        let faults = |stream: &Written, text: &str, state: Option<StreamState>, stored: StreamState| {
            let end = state.map(|state| StreamEnd { state, reason: None });
            judge(stream, &Seen { id, text: text.to_owned(), end }, stored).len()
        };
        let (whole, cut) = (StreamState::Completed, StreamState::Interrupted);
        assert_eq!(faults(&closed, "abcd", Some(whole), whole), 0);
        assert_eq!(faults(&stream, "abc", Some(cut), cut), 0, "what was not acknowledged may be missing");
        assert_eq!(faults(&stream, "abcd", Some(whole), whole), 0, "the last acknowledgement may be lost");
        assert_eq!(faults(&stream, "abcd", None, cut), 1, "no end");
        assert_eq!(faults(&stream, "abcd", Some(cut), whole), 1, "another end");
        assert_eq!(faults(&stream, "abcd", Some(StreamState::Failed), StreamState::Failed), 1, "an end of its own");
        assert_eq!(faults(&stream, "abxd", Some(cut), cut), 1, "another text");
        assert_eq!(faults(&stream, "ab", Some(cut), cut), 1, "less than acknowledged");
        assert_eq!(faults(&stream, "abc", Some(whole), whole), 1, "complete and not whole");
        assert_eq!(faults(&closed, "abcd", Some(cut), cut), 1, "complete for its producer only");
    }
}
