//! What producers of streams say and what readers get. Text goes as it is, bytes go as base64.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::identity::{UserId, WorkerName};
use crate::ids::Fence;
use crate::json_text::JsonText;
use crate::run::RunState;
use crate::stream::{Stream, StreamChunk, StreamContent, StreamEnd, StreamState};

/// The most chunks of one request and of one answer.
pub const STREAM_CHUNKS: u32 = 500;

/// Opens a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StreamRequest {
    /// What its chunks are.
    pub content: StreamContent,
    /// The user who may read and stop it with their access token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// What the producer calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<WorkerName>,
}

/// A stream that was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamOpened {
    /// The stream.
    pub stream: Stream,
    /// What its producer's requests carry.
    pub fence: Fence,
}

/// A chunk as its producer writes it: text, or bytes in base64. Unlike other texts it may contain U+0000.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ChunkText(pub String);

impl<'de> Deserialize<'de> for ChunkText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Opaque first: nothing else takes every character of JSON.
        JsonText::deserialize(deserializer)?.decode().map(Self).map_err(D::Error::custom)
    }
}

impl JsonSchema for ChunkText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ChunkText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "Text, or bytes in base64."})
    }
}

/// Why a chunk is no chunk of its stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be base64, since the stream is binary")]
pub struct NotBase64;

impl ChunkText {
    /// Writes what a chunk carries.
    #[must_use]
    pub fn encode(content: StreamContent, data: &[u8]) -> Self {
        Self(match content {
            StreamContent::Text => String::from_utf8_lossy(data).into_owned(),
            StreamContent::Binary => STANDARD.encode(data),
        })
    }

    /// Reads what a chunk carries.
    ///
    /// # Errors
    /// Fails for a text that is not base64 where that is needed.
    pub fn decode(self, content: StreamContent) -> Result<Vec<u8>, NotBase64> {
        match content {
            StreamContent::Text => Ok(self.0.into_bytes()),
            StreamContent::Binary => STANDARD.decode(&self.0).map_err(|_| NotBase64),
        }
    }
}

/// Adds chunks to a stream; without any it says that the producer lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamAppendRequest {
    /// The fence that opening the stream gave.
    pub fence: Fence,
    /// The number of the first chunk: 1, and then one above the last that was written. Repeating a request adds nothing.
    #[schemars(range(min = 1))]
    pub first: i64,
    /// The chunks, in order.
    #[serde(default)]
    #[schemars(length(max = STREAM_CHUNKS))]
    pub chunks: Vec<ChunkText>,
    /// How the stream ends after them, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<StreamEnd>,
}

/// Adds chunks to the output of a run that an external worker executes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputRequest {
    /// The fence of the lease of the run.
    pub fence: Fence,
    /// The number of the first chunk, which makes repeating the request safe; at the end when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub first: Option<i64>,
    /// The chunks, in order.
    #[schemars(length(max = STREAM_CHUNKS))]
    pub chunks: Vec<ChunkText>,
}

/// Where a stream stands after an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamAppended {
    /// The number of the newest chunk.
    pub tail: i64,
    /// Whether somebody asked to stop the stream; then its producer ends it.
    pub stopping: bool,
}

/// Ends a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamCloseRequest {
    /// The fence that opening the stream gave.
    pub fence: Fence,
    /// A terminal state.
    #[serde(default = "completed")]
    pub state: StreamState,
    /// Why, if there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

fn completed() -> StreamState {
    StreamState::Completed
}

/// A chunk as readers get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Chunk {
    /// Its number; the first is 1.
    pub seq: i64,
    /// Text, or bytes in base64.
    pub data: ChunkText,
}

impl Chunk {
    /// Writes a stored chunk.
    #[must_use]
    pub fn of(content: StreamContent, chunk: &StreamChunk) -> Self {
        Self { seq: chunk.seq, data: ChunkText::encode(content, &chunk.data) }
    }
}

/// A stretch of a stream, or of the output of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamReading {
    /// The stream; absent while a run has written nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<Stream>,
    /// How the run stands whose output it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_state: Option<RunState>,
    /// The chunks after the asked number, in order and without holes.
    pub chunks: Vec<Chunk>,
    /// What to read after next.
    pub next: i64,
    /// Whether nothing follows any more.
    pub ended: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::strict;

    #[test]
    fn chunks_pass_every_character_and_every_byte() {
        let request: StreamAppendRequest =
            strict::from_str(r#"{"fence":1,"first":1,"chunks":["a\u0000\r\n🦀","\ud83e\udd80"]}"#).unwrap();
        assert_eq!(request.chunks, [ChunkText("a\0\r\n🦀".into()), ChunkText("🦀".into())]);
        assert!(strict::from_str::<StreamAppendRequest>(r#"{"fence":1,"first":1,"chunks":[7]}"#).is_err());
        assert!(strict::from_str::<StreamAppendRequest>(r#"{"fence":1,"first":1,"chunks":["\ud83e"]}"#).is_err());
        for (content, data) in [(StreamContent::Text, "é\0".as_bytes()), (StreamContent::Binary, &[0, 255, 10])] {
            assert_eq!(ChunkText::encode(content, data).decode(content).unwrap(), data);
        }
        assert_eq!(ChunkText("é".into()).decode(StreamContent::Binary), Err(NotBase64));
    }
}
