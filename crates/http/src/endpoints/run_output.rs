//! What runs write: read as streams are, written by the external workers that execute them.

use std::time::Duration;

use axum::Json as Body;
use axum::extract::State;
use bytes::Bytes;
use switchboard_events::SessionGuard;
use switchboard_model::ids::RunId;
use switchboard_model::run::{Ending, Run, RunState};
use switchboard_model::stream::{NewStream, Stream, StreamAppend, StreamContent, StreamEnd, StreamState};
use switchboard_model::wire::stream::{OutputRequest, StreamAppended, StreamReading};
use switchboard_store_api::StreamAppendOutcome;
use tokio::time::sleep;

use super::runs::existing;
use super::streams::{Following, ReadFrom, ReadQuery, Reading, answer, decoded, said, stretch};
use super::work::{WorkedRun, fenced};
use crate::access::Caller;
use crate::extract::{Json, Path, Query};
use crate::sse::{self, Events, Source, Wish, write_value};
use crate::{ApiResult, App, AppState};

/// How often a run is looked at that has written nothing yet.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
            None => StreamReading {
                stream: None,
                run_state: Some(run.state),
                chunks: Vec::new(),
                next: query.after,
                ended: run.state.is_terminal(),
            },
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
        None => Output::Awaited { app, run: id, from, session: Some(session) },
    })))
}

fn follow(app: &AppState, stream: &Stream, from: ReadFrom, session: SessionGuard) -> Following {
    Following { reader: app.streams.reader(stream.id, from.after), session, is_over: false }
}

/// The output of a run as events.
enum Output {
    /// The run has written nothing yet; the session is there until it has, or has ended.
    Awaited { app: App, run: RunId, from: ReadFrom, session: Option<SessionGuard> },
    /// It has.
    Written(Following),
}

impl Source for Output {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let (app, run, from, session) = match self {
                Self::Written(following) => return following.next().await,
                Self::Awaited { app, run, from, session } => (app, *run, *from, session),
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
                        () = sleep(LOOK_EVERY) => {}
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
}

/// Looks whether a run has written something, or has ended without.
async fn look(app: &AppState, run: RunId) -> Look {
    // The state first: what a run writes it writes before its end.
    let Ok(found) = app.stores.runs.get(run).await else { return Look::Nothing };
    match app.stores.streams.find_of_run(run).await {
        Ok(Some(stream)) => Look::Stream(Box::new(stream)),
        Ok(None) => match found.map(|run| run.state) {
            Some(RunState::Succeeded) => Look::Over(StreamState::Completed),
            Some(RunState::Cancelled) => Look::Over(StreamState::Cancelled),
            Some(RunState::Failed | RunState::Dead) => Look::Over(StreamState::Failed),
            Some(_) => Look::Nothing,
            None => Look::Over(StreamState::Interrupted),
        },
        Err(_) => Look::Nothing,
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
    let opened = app.stores.streams.open(&caller.context(), &output).await?.now().ok_or_else(fenced)?;
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
