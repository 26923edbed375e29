//! Streams: append-only sequences of chunks with one producer at a time and a terminal state.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::UserId;
use crate::ids::{Fence, InstanceId, RunId, StreamId};
use crate::run::Ending;
use crate::span::Span;

/// How long a producer may be silent before its stream counts as interrupted.
pub const PRODUCER_LEASE: Span = Span::from_secs(10);

/// The most bytes of one stored chunk.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// The most bytes of one read.
pub const STREAM_PAGE_BYTES: usize = 1024 * 1024;

/// The most bytes of a stream.
pub const STREAM_BYTES: i64 = 64 * 1024 * 1024;

/// How long an ended stream can be read.
pub const STREAM_RETENTION: Span = Span::from_secs(24 * 3600);

/// What the chunks of a stream are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamContent {
    /// UTF-8 text; every chunk is valid by itself.
    #[default]
    Text,
    /// Bytes; on the wire in base64.
    Binary,
}

impl StreamContent {
    /// Returns the text form, as stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Binary => "binary",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn from_stored(text: &str) -> Option<Self> {
        [Self::Text, Self::Binary].into_iter().find(|content| content.as_str() == text)
    }
}

/// How a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamState {
    /// More may come.
    Open,
    /// Its producer said that it is complete.
    Completed,
    /// Its producer failed.
    Failed,
    /// It was stopped.
    Cancelled,
    /// Its producer was lost.
    Interrupted,
}

impl StreamState {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::Open, Self::Completed, Self::Failed, Self::Cancelled, Self::Interrupted];

    /// Returns the text form, as stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }

    /// Reads the text form.
    #[must_use]
    pub fn from_stored(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Tells whether nothing follows any more.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Open)
    }
}

/// A stream to be opened.
#[derive(Clone, Debug)]
pub struct NewStream {
    /// The identity it will have.
    pub id: StreamId,
    /// What its chunks are.
    pub content: StreamContent,
    /// The user who may read and stop it beside API keys with the scopes for that.
    pub user_id: Option<UserId>,
    /// The run whose output it is.
    pub run_id: Option<RunId>,
    /// The fence of the lease under which the run is executed, which is the fence of its output, too; a new one when
    /// absent.
    pub fence: Option<Fence>,
    /// Who writes it: a replica, or an external program by the name it gave.
    pub producer: InstanceId,
}

impl NewStream {
    /// Makes the output of a run, written by whoever holds its lease with this fence.
    #[must_use]
    pub fn output_of(run: RunId, fence: Fence, holder: &InstanceId) -> Self {
        Self {
            id: StreamId::new(),
            content: StreamContent::Text,
            user_id: None,
            run_id: Some(run),
            fence: Some(fence),
            producer: holder.clone(),
        }
    }
}

/// A stored stream, without its chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stream {
    /// The identity.
    pub id: StreamId,
    /// What its chunks are.
    pub content: StreamContent,
    /// The user who may read and stop it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// The run whose output it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// How it stands.
    pub state: StreamState,
    /// Why it ended so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The number of its newest chunk, 0 when there is none.
    pub tail: i64,
    /// How many bytes its chunks have.
    pub bytes: i64,
    /// When somebody asked to stop it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_requested_at: Option<Timestamp>,
    /// When it was opened.
    pub created_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

/// Chunks to be added to one stream, in order.
#[derive(Clone, Debug)]
pub struct StreamAppend {
    /// The stream.
    pub stream: StreamId,
    /// The fence of its producer.
    pub fence: Fence,
    /// The number of the first chunk: one above the newest that the producer knows of. Chunks that are stored
    /// already are left out, so that a repetition adds nothing. `None` puts them at
    /// the end, wherever that is then; a repetition adds them again.
    pub first: Option<i64>,
    /// The chunks; none prolongs the lease of the producer only.
    pub chunks: Vec<Vec<u8>>,
    /// How the stream ends after them, and why, if it does.
    pub end: Option<StreamEnd>,
}

/// How a stream ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamEnd {
    /// A terminal state.
    pub state: StreamState,
    /// Why, if there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl StreamEnd {
    /// Returns how the output of a run ends with an attempt. The next attempt, if there is one, goes on with it.
    #[must_use]
    pub fn of_attempt(ending: &Ending) -> Self {
        let (state, reason) = match ending {
            Ending::Succeeded(_) => (StreamState::Completed, None),
            Ending::Failed(error) | Ending::Retry { error, .. } => (StreamState::Failed, Some(error.clone())),
            Ending::Cancelled => (StreamState::Cancelled, None),
            Ending::Released => (StreamState::Interrupted, Some("the run was given back".to_owned())),
        };
        Self { state, reason }
    }
}

/// A stored chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamChunk {
    /// Its number; the first is 1.
    pub seq: i64,
    /// What it carries.
    pub data: Vec<u8>,
}

/// A stretch of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPage {
    /// The stream as it was at the time of reading.
    pub stream: Stream,
    /// The chunks after the asked number, in order, without holes.
    pub chunks: Vec<StreamChunk>,
}
