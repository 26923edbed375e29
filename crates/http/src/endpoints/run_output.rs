//! What runs write: read as streams are, written by the external workers that execute them.

use std::time::Duration;

use axum::Json as Body;
use axum::extract::State;
use bytes::Bytes;
use switchboard_events::{OutputWait, SessionGuard};
use switchboard_model::ids::RunId;
use switchboard_model::run::{Ending, Run, RunState};
use switchboard_model::stream::{NewStream, Stream, StreamAppend, StreamContent, StreamEnd, StreamState};
use switchboard_model::wire::stream::{ChunkText, OutputRequest, StreamAppended, StreamReading};
use switchboard_store_api::{StoreError, StreamAppendOutcome};
use tokio::time::{sleep, timeout_at};

use super::runs::existing;
use super::streams::{Following, ReadFrom, ReadQuery, Reading, answer, decoded, said, stretch, stretch_until};
use super::work::{WorkedRun, fenced, redactor};
use crate::access::Caller;
use crate::extract::{Json, Path, Query};
use crate::sse::{self, Events, Source, Wish, write_value};
use crate::wait::wait_ends;
use crate::{ApiResult, App, AppState};

/// How long a failed look waits before it is tried again.
const LOOK_RETRY: Duration = Duration::from_millis(500);

/// Reads what a run has written. A run that has written nothing yet has an empty output.
pub(crate) async fn read(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<RunId>,
    wish: Wish,
    Query(query): Query<ReadQuery>,
) -> ApiResult<Reading> {
    let from = query.start(&wish)?;
    let run = existing(&app, id).await?;
    let stream = app.stores.streams.find_of_run(id).await?;
    if !wish.has_events {
        let reading = match stream {
            Some(stream) => StreamReading { run_state: Some(run.state), ..stretch(&app, stream.id, &query).await? },
            None => unwritten(&app, id, &query).await?,
        };
        return Ok(Reading::Stretch(Box::new(reading)));
    }
    let has_ended = stream.as_ref().map_or(run.state.is_terminal(), |stream| stream.state.is_terminal());
    let tail = stream.as_ref().map_or(0, |stream| stream.tail);
    if from.has_ended && has_ended && from.after >= tail {
        return Ok(Reading::Over);
    }
    let (session, _) = sse::listen(&app, &caller, &[]).await?;
    Ok(Reading::Events(Events::of(match stream {
        Some(stream) => Output::Written(follow(&app, &stream, from, session)),
        None => {
            let wait = app.streams.await_output(id);
            Output::Awaited { app, run: id, from, session: Some(session), wait }
        }
    })))
}

/// Reads the output of a run that had written nothing, and waits for the first of it if asked to.
async fn unwritten(app: &AppState, id: RunId, query: &ReadQuery) -> ApiResult<StreamReading> {
    let until = wait_ends(app, query.wait.unwrap_or_default())?;
    let mut wait = app.streams.await_output(id);
    loop {
        // The state first: what a run writes it writes before its end.
        let run = existing(app, id).await?;
        if let Some(stream) = app.stores.streams.find_of_run(id).await? {
            let reading = stretch_until(app, stream.id, query, Some(until)).await?;
            return Ok(StreamReading { run_state: Some(run.state), ..reading });
        }
        let ended = run.state.is_terminal();
        let goes_on = !ended
            && tokio::select! {
                told = timeout_at(until, wait.changed()) => told.is_ok(),
                () = app.lifecycle.draining() => false,
            };
        if !goes_on {
            let (run_state, next) = (Some(run.state), query.after);
            return Ok(StreamReading { stream: None, run_state, chunks: Vec::new(), next, ended });
        }
    }
}

fn follow(app: &AppState, stream: &Stream, from: ReadFrom, session: SessionGuard) -> Following {
    Following { reader: app.streams.reader(stream.id, from.after), session, is_over: false }
}

/// The output of a run as events.
enum Output {
    /// The run has written nothing yet; the session is there until it has, or has ended.
    Awaited { app: App, run: RunId, from: ReadFrom, session: Option<SessionGuard>, wait: OutputWait },
    /// It has.
    Written(Following),
}

impl Source for Output {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let (app, run, from, session, wait) = match self {
                Self::Written(following) => return following.next().await,
                Self::Awaited { app, run, from, session, wait } => (app, *run, *from, session, wait),
            };
            match look(app, run).await {
                Look::Stream(stream) => {
                    let following = follow(app, &stream, from, session.take()?);
                    *self = Self::Written(following);
                }
                Look::Over(state) => {
                    session.take()?;
                    let mut out = Vec::new();
                    write_value(&mut out, Some("0.end"), "end", &StreamEnd { state, reason: None });
                    return Some(out.into());
                }
                Look::Nothing => {
                    let listener = session.as_ref()?;
                    tokio::select! {
                        () = wait.changed() => {}
                        said = said(listener) => return said,
                    }
                }
                Look::Failed => {
                    let listener = session.as_ref()?;
                    tokio::select! {
                        () = sleep(LOOK_RETRY) => {}
                        said = said(listener) => return said,
                    }
                }
            }
        }
    }
}

/// What is known of a run that had written nothing.
enum Look {
    Stream(Box<Stream>),
    Over(StreamState),
    Nothing,
    /// The database does not answer now.
    Failed,
}

/// Looks whether a run has written something, or has ended without.
async fn look(app: &AppState, run: RunId) -> Look {
    // The state first: what a run writes it writes before its end.
    let Ok(found) = app.stores.runs.get(run).await else { return Look::Failed };
    match app.stores.streams.find_of_run(run).await {
        Ok(Some(stream)) => Look::Stream(Box::new(stream)),
        Ok(None) => match found.map(|run| run.state) {
            Some(RunState::Succeeded) => Look::Over(StreamState::Completed),
            Some(RunState::Cancelled) => Look::Over(StreamState::Cancelled),
            Some(RunState::Failed | RunState::Dead) => Look::Over(StreamState::Failed),
            Some(_) => Look::Nothing,
            None => Look::Over(StreamState::Interrupted),
        },
        Err(_) => Look::Failed,
    }
}

/// Adds to the output of a run that the caller executes.
pub(crate) async fn append(
    State(app): State<App>,
    caller: Caller,
    WorkedRun(run): WorkedRun,
    Json(request): Json<OutputRequest>,
) -> ApiResult<Body<StreamAppended>> {
    let OutputRequest { fence, first, chunks } = request;
    if run.state != RunState::Running || run.fence != fence {
        return Err(fenced());
    }
    // What a worker writes is kept and shown, as what a replica writes is: without the secrets of the run.
    let redactor = redactor(&run);
    let redacted = |chunk: ChunkText| ChunkText(redactor.text(&chunk.0).into_owned());
    let chunks = chunks.into_iter().map(redacted).collect();
    let chunks = decoded(StreamContent::Text, first.unwrap_or(1), chunks)?;
    if let Some(stream) = app.stores.streams.find_of_run(run.id).await? {
        match app.streams.append(added(&stream, &run, first, chunks.clone())).await? {
            // An earlier attempt wrote it, or it was silent for too long.
            StreamAppendOutcome::Fenced => {}
            outcome => return answer(outcome),
        }
    }
    let holder = run.leased_by.as_ref().ok_or_else(fenced)?;
    let output = NewStream::output_of(run.id, run.fence, holder);
    let opened = match app.stores.streams.open(&caller.context(), &output).await {
        // The attempt has ended its output meanwhile, or a later one writes it.
        Err(StoreError::Fenced) => return Err(fenced()),
        opened => opened?.now().ok_or_else(fenced)?,
    };
    let now = existing(&app, run.id).await?;
    if now.state != RunState::Running || now.fence != fence {
        // The run has ended after it was looked at, without an output that its end could close.
        let end = StreamEnd { state: StreamState::Interrupted, reason: Some("the run had ended".to_owned()) };
        app.streams.append(StreamAppend { end: Some(end), ..added(&opened.stream, &run, None, Vec::new()) }).await?;
        return Err(fenced());
    }
    answer(app.streams.append(added(&opened.stream, &run, first, chunks)).await?)
}

/// Makes the append of chunks by the holder of the lease of a run; without a number they go to the end.
fn added(stream: &Stream, run: &Run, first: Option<i64>, chunks: Vec<Vec<u8>>) -> StreamAppend {
    StreamAppend { stream: stream.id, fence: run.fence, first, chunks, end: None }
}

/// Keeps the output of a run open whose worker says that it goes on.
pub(super) async fn keep(app: &AppState, run: &Run) -> ApiResult<()> {
    touch(app, run, None).await
}

/// Ends the output of a run whose attempt ends; a later attempt goes on with it.
pub(super) async fn end(app: &AppState, run: &Run, ending: &Ending) -> ApiResult<()> {
    let end = match ending {
        Ending::Failed(_) | Ending::Retry { .. } | Ending::Released if run.cancel_requested_at.is_some() => {
            StreamEnd { state: StreamState::Cancelled, reason: None }
        }
        ending => StreamEnd::of_attempt(ending),
    };
    touch(app, run, Some(end)).await
}

/// Prolongs or ends the output that the holder of the lease of a run is writing, if there is one.
async fn touch(app: &AppState, run: &Run, end: Option<StreamEnd>) -> ApiResult<()> {
    let stream = app.stores.streams.find_of_run(run.id).await?;
    if let Some(stream) = stream.filter(|stream| !stream.state.is_terminal()) {
        // One that is fenced is somebody else's to prolong and to end.
        app.streams.append(StreamAppend { end, ..added(&stream, run, None, Vec::new()) }).await?;
    }
    Ok(())
}
