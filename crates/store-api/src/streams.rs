//! Streams: append-only sequences of chunks.

use async_trait::async_trait;
use switchboard_model::ids::{Fence, RunId, StreamId};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_model::stream::{NewStream, Stream, StreamAppend, StreamPage};

use crate::StoreResult;
use crate::context::{OnceRecord, WriteContext, Written};

/// What opening a stream gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedStream {
    /// The stream.
    pub stream: Stream,
    /// What its producer's appends carry.
    pub fence: Fence,
}

impl OpenedStream {
    /// Makes what a once-key remembers: which stream, and its fence.
    #[must_use]
    pub fn record(&self) -> OnceRecord {
        OnceRecord { result_id: self.stream.id.as_uuid(), result: JsonText::encode(&self.fence).ok() }
    }
}

/// What adding chunks gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamAppendOutcome {
    /// They are stored.
    Appended {
        /// The number of the newest chunk.
        tail: i64,
        /// Whether somebody asked to stop the stream.
        is_stopping: bool,
    },
    /// The chunks leave a hole: the newest stored one is this.
    Gap(i64),
    /// Somebody else produces the stream now, or it has ended.
    Fenced,
    /// The stream would grow above [`switchboard_model::stream::STREAM_BYTES`], or a chunk above
    /// [`switchboard_model::stream::CHUNK_BYTES`]; nothing was added.
    TooLarge,
    /// There is no such stream.
    NotFound,
}

/// What asking to stop a stream gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopOutcome {
    /// Its producer is told.
    Requested,
    /// It had ended before.
    Ended,
    /// There is no such stream.
    NotFound,
}

/// Streams. One producer at a time, by its fence, holds a lease of [`switchboard_model::stream::PRODUCER_LEASE`] that
/// each append prolongs.
#[async_trait]
pub trait StreamStore: Send + Sync {
    /// Opens a stream. The stream of a run is opened anew for each attempt: what an earlier producer wrote stays, its
    /// fence does not. Signals `OutputBegan` for the first one of a run.
    ///
    /// # Errors
    /// [`crate::StoreError::Fenced`] when a later attempt has opened the stream of the run, or this one has ended it
    /// otherwise than by its silence; fails when the database does.
    async fn open(&self, context: &WriteContext, stream: &NewStream) -> StoreResult<Written<OpenedStream>>;

    /// Adds chunks to many streams in one commit and returns one outcome for each, in order. Signals `StreamGrew` once
    /// for each stream that grew or ended.
    ///
    /// # Errors
    /// Fails when the database does; a repetition adds nothing twice.
    async fn append(&self, appends: &[StreamAppend]) -> StoreResult<Vec<StreamAppendOutcome>>;

    /// Asks the producer of a stream to stop, and signals `StreamStopped`.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn stop(&self, context: &WriteContext, stream: StreamId) -> StoreResult<StopOutcome>;

    /// Finds a stream.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find(&self, stream: StreamId) -> StoreResult<Option<Stream>>;

    /// Finds the stream of a run.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find_of_run(&self, run: RunId) -> StoreResult<Option<Stream>>;

    /// Returns which of these runs have written something, have ended, or are gone: nobody waits for what they write
    /// first any more.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn settled_runs(&self, runs: &[RunId]) -> StoreResult<Vec<RunId>>;

    /// Lists streams, newest first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Stream>>;

    /// Reads the chunks after number `after`, oldest first: at most `limit`, and about
    /// [`switchboard_model::stream::STREAM_PAGE_BYTES`] but at least one. The state and the chunks are of one moment.
    /// A stream whose chunks are being deleted is not there any more.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn read(&self, stream: StreamId, after: i64, limit: u32) -> StoreResult<Option<StreamPage>>;

    /// Ends up to `limit` open streams whose producer's lease has run out as `interrupted`, and signals them; returns
    /// how many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn interrupt(&self, limit: u32) -> StoreResult<u64>;

    /// Deletes streams that ended longer than `age` ago, at most `limit` of them and of their chunks; returns how many
    /// of both.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64>;
}
