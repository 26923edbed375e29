//! Streams: opened and written by programs, read by whoever may, as JSON or as events.

use std::time::Duration;

use axum::Json as Body;
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use switchboard_events::{Outgoing, SessionGuard, StreamReader, error_chain};
use switchboard_model::ids::{Fence, InstanceId, StreamId};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::Page;
use switchboard_model::run::RunState;
use switchboard_model::scope::Scope;
use switchboard_model::span::Span;
use switchboard_model::stream::{
    CHUNK_BYTES, NewStream, STREAM_BYTES, Stream, StreamAppend, StreamContent, StreamEnd, StreamPage,
};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::stream::{
    Chunk, ChunkText, STREAM_CHUNKS, StreamAppendRequest, StreamAppended, StreamCloseRequest, StreamOpened,
    StreamReading, StreamRequest,
};
use switchboard_store_api::{StopOutcome, StreamAppendOutcome, WriteContext, Written};
use tokio::time::{Instant, sleep, timeout_at};

use crate::access::Caller;
use crate::answer::Created;
use crate::error::ApiError;
use crate::extract::{Json, PageQuery, Path, Query, within};
use crate::once::Once;
use crate::openapi::{self, Part, Sketch};
use crate::sse::{self, Events, Source, Wish, bad_last_id, write_value};
use crate::wait::wait_ends;
use crate::{ApiResult, App, AppState};

/// What the id of the event of the end has beside the number of the last chunk.
const END_MARK: &str = ".end";

/// How long a failed read waits before it is tried again.
const READ_RETRY: Duration = Duration::from_millis(500);

/// What the producer of a stream is called that gave no name.
const NAMELESS: &str = "api";

/// A stream that the caller may read.
#[derive(Debug)]
pub(crate) struct ReadableStream(Stream);

/// A stream that the caller may stop.
#[derive(Debug)]
pub(crate) struct StoppableStream(Stream);

impl FromRequestParts<App> for ReadableStream {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        allowed(parts, app, &Scope::StreamsRead).await.map(Self)
    }
}

impl FromRequestParts<App> for StoppableStream {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        allowed(parts, app, &Scope::StreamsWrite).await.map(Self)
    }
}

impl Part for ReadableStream {
    fn describe(sketch: &mut Sketch<'_>) {
        Path::<StreamId>::describe(sketch);
    }
}

impl Part for StoppableStream {
    fn describe(sketch: &mut Sketch<'_>) {
        Path::<StreamId>::describe(sketch);
    }
}

/// Finds the stream of the path, for whoever has the scope and for its user. To other users it is not there.
async fn allowed(parts: &mut Parts, app: &App, scope: &Scope) -> ApiResult<Stream> {
    let caller = Caller::from_request_parts(parts, app).await?;
    let Path(id) = Path::from_request_parts(parts, app).await?;
    if caller.user_id().is_none() {
        caller.require(scope)?;
    }
    let stream = existing(app, id).await?;
    let is_own = stream.user_id.is_some() && stream.user_id.as_ref() == caller.user_id();
    if is_own || caller.allows(scope) { Ok(stream) } else { Err(ApiError::not_found("stream")) }
}

async fn existing(app: &AppState, id: StreamId) -> ApiResult<Stream> {
    app.stores.streams.find(id).await?.ok_or_else(|| ApiError::not_found("stream"))
}

/// Opens a stream.
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    request: Once<StreamRequest>,
) -> ApiResult<Created<StreamOpened>> {
    let StreamRequest { content, user_id, producer } = request.value;
    let producer = producer.as_ref().map_or(NAMELESS, |name| name.as_str());
    let new = NewStream {
        id: StreamId::new(),
        content,
        user_id,
        run_id: None,
        fence: None,
        producer: InstanceId::external(producer),
    };
    let context = WriteContext { once: request.claim, ..caller.context() };
    let opened = match app.stores.streams.open(&context, &new).await? {
        Written::Now(opened) => StreamOpened { stream: opened.stream, fence: opened.fence },
        Written::Replayed(record) => {
            let found = app.stores.streams.find(StreamId::from_uuid(record.result_id)).await?;
            let fence = record.result.as_ref().and_then(|fence: &JsonText| fence.decode::<Fence>().ok());
            let opened = found.zip(fence).map(|(stream, fence)| StreamOpened { stream, fence });
            opened.ok_or_else(|| ApiError::replay_is_gone("stream"))?
        }
        Written::Mismatch => return Err(ApiError::idempotency_mismatch()),
    };
    Ok(Created::new(&app.options, &format!("/api/v1/streams/{}", opened.stream.id), opened))
}

/// Lists streams, newest first.
pub(crate) async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> ApiResult<Body<Page<Stream>>> {
    Ok(Body(app.stores.streams.list(&query.page()?).await?))
}

/// Returns a stream without its chunks.
pub(crate) async fn get(ReadableStream(stream): ReadableStream) -> Body<Stream> {
    Body(stream)
}

/// Adds chunks.
pub(crate) async fn append(
    State(app): State<App>,
    Path(id): Path<StreamId>,
    Json(request): Json<StreamAppendRequest>,
) -> ApiResult<Body<StreamAppended>> {
    let StreamAppendRequest { fence, first, chunks, end } = request;
    check_end(end.as_ref())?;
    let content = match chunks.is_empty() {
        true => StreamContent::Text,
        false => app.streams.content(id).await?.ok_or_else(|| ApiError::not_found("stream"))?,
    };
    let chunks = decoded(content, first, chunks)?;
    store(&app, StreamAppend { stream: id, fence, first: Some(first), chunks, end }).await
}

/// Ends a stream.
pub(crate) async fn close(
    State(app): State<App>,
    Path(id): Path<StreamId>,
    Json(request): Json<StreamCloseRequest>,
) -> ApiResult<Body<StreamAppended>> {
    let StreamCloseRequest { fence, state, reason } = request;
    let end = StreamEnd { state, reason };
    check_end(Some(&end))?;
    store(&app, StreamAppend { stream: id, fence, first: None, chunks: Vec::new(), end: Some(end) }).await
}

/// Asks the producer of a stream to stop.
pub(crate) async fn stop(
    State(app): State<App>,
    caller: Caller,
    StoppableStream(stream): StoppableStream,
) -> ApiResult<StatusCode> {
    let conflict = |detail| Err(ApiError::new(ErrorCode::Conflict, detail));
    if stream.run_id.is_some() {
        return conflict("the stream is the output of a run; cancel the run");
    }
    let context = caller.change("stream.stop", stream.id).context();
    match app.stores.streams.stop(&context, stream.id).await? {
        StopOutcome::Requested => Ok(StatusCode::ACCEPTED),
        StopOutcome::Ended => conflict("the stream has ended"),
        StopOutcome::NotFound => Err(ApiError::not_found("stream")),
    }
}

fn check_end(end: Option<&StreamEnd>) -> ApiResult<()> {
    if end.is_some_and(|end| !end.state.is_terminal()) {
        let detail = "must be completed, failed, cancelled or interrupted";
        return Err(ApiError::field(ErrorCode::ValidationFailed, "state", detail));
    }
    Ok(())
}

/// Reads the chunks of a request.
pub(super) fn decoded(content: StreamContent, first: i64, chunks: Vec<ChunkText>) -> ApiResult<Vec<Vec<u8>>> {
    let invalid = |field: String, detail: String| ApiError::field(ErrorCode::ValidationFailed, field, detail);
    if first < 1 {
        return Err(invalid("first".to_owned(), "must be at least 1".to_owned()));
    }
    if chunks.len() > STREAM_CHUNKS as usize {
        return Err(invalid("chunks".to_owned(), format!("must hold at most {STREAM_CHUNKS} chunks")));
    }
    let decode = |(index, chunk): (usize, ChunkText)| {
        let field = || format!("chunks[{index}]");
        let data = chunk.decode(content).map_err(|error| invalid(field(), error.to_string()))?;
        if data.is_empty() {
            return Err(invalid(field(), "must not be empty".to_owned()));
        }
        Ok(data)
    };
    chunks.into_iter().enumerate().map(decode).collect()
}

/// Adds chunks that were checked.
async fn store(app: &AppState, append: StreamAppend) -> ApiResult<Body<StreamAppended>> {
    answer(app.streams.append(append).await?)
}

/// Answers with what became of an append.
pub(super) fn answer(outcome: StreamAppendOutcome) -> ApiResult<Body<StreamAppended>> {
    match outcome {
        StreamAppendOutcome::Appended { tail, is_stopping } => Ok(Body(StreamAppended { tail, stopping: is_stopping })),
        StreamAppendOutcome::Gap(tail) => {
            let detail = format!("chunk {} must come first; the newest that is stored is {tail}", tail + 1);
            Err(ApiError::field(ErrorCode::Conflict, "first", detail))
        }
        StreamAppendOutcome::Fenced => {
            Err(ApiError::new(ErrorCode::Fenced, "the stream has ended, or somebody else produces it now; stop"))
        }
        StreamAppendOutcome::TooLarge => {
            let detail = format!("a chunk has at most {CHUNK_BYTES} bytes, and a stream at most {STREAM_BYTES}");
            Err(ApiError::new(ErrorCode::PayloadTooLarge, detail))
        }
        StreamAppendOutcome::NotFound => Err(ApiError::not_found("stream")),
    }
}

/// Which stretch is asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadQuery {
    /// The number after which the chunks follow.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub(super) after: i64,
    /// The most chunks to return; events have no such limit.
    #[schemars(range(min = 1, max = STREAM_CHUNKS), extend("default" = STREAM_CHUNKS))]
    limit: Option<u32>,
    /// How long to wait when nothing follows yet; not at all when absent.
    pub(super) wait: Option<Span>,
}

/// Where a reader of events goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadFrom {
    /// The number after which the chunks follow.
    pub(super) after: i64,
    /// Whether the end was seen, too.
    pub(super) has_ended: bool,
}

impl ReadQuery {
    /// Finds out where a reader goes on: after the last event that it has seen, or where it says.
    pub(super) fn start(&self, wish: &Wish) -> ApiResult<ReadFrom> {
        let Some(id) = wish.last_id.as_deref().filter(|_| wish.has_events) else {
            if self.after < 0 {
                return Err(ApiError::field(ErrorCode::ValidationFailed, "after", "must be at least 0"));
            }
            return Ok(ReadFrom { after: self.after, has_ended: false });
        };
        let (number, has_ended) = id.strip_suffix(END_MARK).map_or((id, false), |number| (number, true));
        let after = number.parse().ok().filter(|after| *after >= 0).ok_or_else(bad_last_id)?;
        Ok(ReadFrom { after, has_ended })
    }
}

/// What a read is answered with.
pub(crate) enum Reading {
    /// A stretch.
    Stretch(Box<StreamReading>),
    /// Events until the end.
    Events(Events),
    /// Nothing, and nothing will follow.
    Over,
}

impl IntoResponse for Reading {
    fn into_response(self) -> Response {
        match self {
            Self::Stretch(reading) => Body(reading).into_response(),
            Self::Events(events) => events.into_response(),
            Self::Over => StatusCode::NO_CONTENT.into_response(),
        }
    }
}

impl openapi::Answer for Reading {
    fn describe(sketch: &mut Sketch<'_>) {
        Body::<StreamReading>::describe(sketch);
        sketch.also_gives_text(sse::MEDIA_TYPE);
        sketch.gives_nothing(StatusCode::NO_CONTENT);
    }
}

/// Reads a stream: a stretch of it as JSON, or all that follows as events.
pub(crate) async fn read(
    State(app): State<App>,
    caller: Caller,
    ReadableStream(stream): ReadableStream,
    wish: Wish,
    Query(query): Query<ReadQuery>,
) -> ApiResult<Reading> {
    let from = query.start(&wish)?;
    if !wish.has_events {
        return stretch(&app, stream.id, &query).await.map(|reading| Reading::Stretch(Box::new(reading)));
    }
    if from.has_ended && stream.state.is_terminal() && from.after >= stream.tail {
        return Ok(Reading::Over);
    }
    let (session, _) = sse::listen(&app, &caller, &[]).await?;
    let reader = app.streams.reader(stream.id, from.after);
    Ok(Reading::Events(Events::of(Following { reader, session, is_over: false })))
}

/// Reads a stretch, and waits for one if asked to.
pub(super) async fn stretch(app: &AppState, id: StreamId, query: &ReadQuery) -> ApiResult<StreamReading> {
    let until = query.wait.map(|wait| wait_ends(app, wait)).transpose()?;
    stretch_until(app, id, query, until).await
}

/// Reads a stretch, and waits for one if there is a time until which to.
pub(super) async fn stretch_until(
    app: &AppState,
    id: StreamId,
    query: &ReadQuery,
    until: Option<Instant>,
) -> ApiResult<StreamReading> {
    let limit = within(query.limit.unwrap_or(STREAM_CHUNKS), STREAM_CHUNKS)?;
    let gone = || ApiError::not_found("stream");
    let mut page = app.stores.streams.read(id, query.after, limit).await?.ok_or_else(gone)?;
    if let Some(until) = until.filter(|_| page.chunks.is_empty() && !page.is_last(query.after)) {
        let mut reader = app.streams.reader(id, query.after);
        let next = tokio::select! {
            next = timeout_at(until, reader.next()) => next.ok().transpose()?,
            () = app.lifecycle.draining() => None,
        };
        if let Some(next) = next {
            page = next.ok_or_else(gone)?;
            page.chunks.truncate(limit as usize);
        }
    }
    Ok(reading(page, query.after, None))
}

/// Writes a page for readers.
pub(super) fn reading(page: StreamPage, after: i64, run_state: Option<RunState>) -> StreamReading {
    let (next, ended) = (page.last_seq(after), page.is_last(after));
    let chunks = page.chunks.iter().map(|chunk| Chunk::of(page.stream.content, chunk)).collect();
    StreamReading { stream: Some(page.stream), run_state, chunks, next, ended }
}

/// A stream as events, until its end or until its reader must go elsewhere.
pub(super) struct Following {
    pub(super) reader: StreamReader,
    pub(super) session: SessionGuard,
    pub(super) is_over: bool,
}

impl Source for Following {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let after = self.reader.position();
        tokio::select! {
            page = self.reader.next() => match page {
                Ok(Some(page)) => Some(self.write(&page, after)),
                Ok(None) => None,
                Err(error) => {
                    tracing::debug!(error = %error_chain(&error), "a stream cannot be read now");
                    sleep(READ_RETRY).await;
                    Some(Bytes::from_static(b":\n\n"))
                }
            },
            said = said(&self.session) => said,
        }
    }
}

impl Following {
    /// Writes the chunks of a page, and the end if it is the last.
    fn write(&mut self, page: &StreamPage, after: i64) -> Bytes {
        let mut out = Vec::new();
        for chunk in &page.chunks {
            let id = chunk.seq.to_string();
            write_value(&mut out, Some(&id), "chunk", &Chunk::of(page.stream.content, chunk));
        }
        self.is_over = page.is_last(after);
        if self.is_over {
            let end = StreamEnd { state: page.stream.state, reason: page.stream.reason.clone() };
            write_value(&mut out, Some(&format!("{}{END_MARK}", page.last_seq(after))), "end", &end);
        }
        out.into()
    }
}

/// Waits for what the session of a reader has to say: that it must go elsewhere, and then that nothing follows.
pub(super) async fn said(session: &SessionGuard) -> Option<Bytes> {
    let Outgoing::Frames(frames) = session.next().await else { return None };
    let mut out = Vec::new();
    for frame in frames {
        sse::write(&mut out, None, "goaway", &frame);
    }
    Some(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_go_on_after_the_last_event_they_have_seen() {
        let query = ReadQuery { after: 3, limit: None, wait: None };
        let start = |has_events, id: Option<&str>| {
            query.start(&Wish { has_events, last_id: id.map(str::to_owned) }).map(|from| (from.after, from.has_ended))
        };
        assert_eq!(start(true, None).unwrap(), (3, false));
        assert_eq!(start(true, Some("7")).unwrap(), (7, false));
        assert_eq!(start(true, Some("7.end")).unwrap(), (7, true));
        assert_eq!(start(false, Some("7")).unwrap(), (3, false), "only events have ids");
        for id in ["-1", "x", "7.end.end", ".end", "9999999999999999999"] {
            assert!(start(true, Some(id)).is_err(), "{id}");
        }
        assert!(ReadQuery { after: -1, limit: None, wait: None }.start(&Wish::default()).is_err());
    }

    #[test]
    fn chunks_are_bounded_and_not_empty() {
        let decode = |first, chunks: &[&str]| {
            decoded(StreamContent::Binary, first, chunks.iter().map(|chunk| ChunkText((*chunk).to_owned())).collect())
        };
        assert_eq!(decode(1, &["YQ=="]).unwrap(), [b"a"]);
        assert!(decode(0, &[]).is_err());
        assert!(decode(1, &[""]).is_err());
        assert!(decode(1, &["a b"]).is_err());
        assert!(decode(1, &["YQ=="; STREAM_CHUNKS as usize + 1]).is_err());
    }
}
