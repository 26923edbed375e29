//! `stream`: streams are produced from standard input and read to standard output.

use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use switchboard_client::{Client, ClientError, Follow, Followed};
use switchboard_model::ids::{Fence, StreamId};
use switchboard_model::stream::{CHUNK_BYTES, Stream, StreamContent, StreamEnd, StreamState};
use switchboard_model::wire::stream::{
    ChunkText, StreamAppendRequest, StreamAppended, StreamCloseRequest, StreamRequest,
};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::listing::collect;
use super::{Session, remotely};
use crate::cli::{Content, EndState, RemoteCommand, StreamCommand};
use crate::output::{self, Form, maybe, time};

/// How long the producer of a stream may be silent: a third of its lease.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// How long an append that cannot be stored now waits before it is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// How often it is tried.
const TRIES: u32 = 20;

/// Does one thing with streams.
pub(crate) async fn run(command: RemoteCommand<StreamCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey(&session, command).await).await
}

async fn obey(session: &Session, command: StreamCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        StreamCommand::List { limit } => {
            let streams: Vec<Stream> = collect(limit, async |page| client.list_streams(page).await).await?;
            form.list(&streams, ["ID", "STATE", "CONTENT", "USER", "CHUNKS", "BYTES", "CREATED"], |stream| {
                [
                    stream.id.to_string(),
                    stream.state.as_str().to_owned(),
                    stream.content.as_str().to_owned(),
                    maybe(stream.user_id.as_ref()),
                    stream.tail.to_string(),
                    stream.bytes.to_string(),
                    time(Some(stream.created_at)),
                ]
            })
        }
        StreamCommand::Get { id } => form.one(&client.get_stream(id).await?),
        StreamCommand::Create { content, user, producer } => {
            let content = match content {
                Content::Text => StreamContent::Text,
                Content::Binary => StreamContent::Binary,
            };
            let opened = client.open_stream(&StreamRequest { content, user_id: user, producer }).await?;
            let (id, fence) = (opened.stream.id, opened.fence.0);
            form.done(&opened, format_args!("Opened stream {id} with fence {fence}."))
        }
        StreamCommand::Append { id, fence, keep_open } => {
            let stream = client.get_stream(id).await?;
            let (next, content) = (stream.tail + 1, stream.content);
            let mut producer = Producer { client, id, content, fence: Fence(fence), next, rest: Vec::new() };
            let after = if keep_open { AtEnd::LeaveOpen } else { AtEnd::Complete };
            producer.write(standard_input(), after).await?;
            form.said(format_args!("Wrote up to chunk {}.", producer.next - 1))
        }
        StreamCommand::Close { id, fence, state, reason } => {
            let state = match state {
                EndState::Completed => StreamState::Completed,
                EndState::Failed => StreamState::Failed,
                EndState::Cancelled => StreamState::Cancelled,
            };
            let closed = client.close_stream(id, &StreamCloseRequest { fence: Fence(fence), state, reason }).await?;
            form.done(&closed, format_args!("Ended stream {id}."))
        }
        StreamCommand::Stop { id } => {
            client.stop_stream(id).await?;
            form.said(format_args!("Asked the producer of stream {id} to stop."))
        }
        StreamCommand::Read { id, after } => {
            let content = client.get_stream(id).await?.content;
            print(*form, content, client.follow_stream(id, after)).await
        }
    }
}

/// Prints what follows in a stream, to its end.
pub(super) async fn print(form: Form, content: StreamContent, mut stream: Follow) -> Result<()> {
    while let Some(followed) = stream.next().await? {
        match followed {
            Followed::Chunk(chunk) if form == Form::Programs => output::json_line(&chunk)?,
            Followed::Chunk(chunk) => {
                let data = chunk.data.decode(content)?;
                let mut out = io::stdout().lock();
                out.write_all(&data).and_then(|()| out.flush()).context("standard output cannot be written")?;
            }
            Followed::End(end) if form == Form::Programs => output::json_line(&end)?,
            Followed::End(StreamEnd { state: StreamState::Completed, .. }) => {}
            Followed::End(StreamEnd { state, reason }) => {
                let reason = reason.map(|reason| format!(": {}", output::clean(&reason))).unwrap_or_default();
                bail!("the stream was not completed, it is {}{reason}", state.as_str());
            }
        }
    }
    Ok(())
}

/// Reads standard input as it comes, on a thread that does not keep the program from ending.
fn standard_input() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (read, input) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK_BYTES / 2];
        loop {
            let next = match io::stdin().read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => Ok(buffer[..count].to_vec()),
                Err(error) => Err(error),
            };
            let is_over = next.is_err();
            if read.blocking_send(next).is_err() || is_over {
                return;
            }
        }
    });
    input
}

/// What happens to a stream at the end of its input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    Complete,
    LeaveOpen,
}

/// Writes to a stream what it reads.
struct Producer<'a> {
    client: &'a Client,
    id: StreamId,
    content: StreamContent,
    fence: Fence,
    /// The number of the next chunk.
    next: i64,
    /// What was read and not written, since it is no whole character yet.
    rest: Vec<u8>,
}

impl Producer<'_> {
    /// Writes until the end of the input, or until somebody asks to stop.
    async fn write(&mut self, mut input: mpsc::Receiver<io::Result<Vec<u8>>>, at_end: AtEnd) -> Result<()> {
        loop {
            let (data, is_over) = match timeout(HEARTBEAT, input.recv()).await {
                Ok(Some(read)) => {
                    self.rest.extend(read.context("standard input cannot be read")?);
                    (self.whole(), false)
                }
                Ok(None) => (std::mem::take(&mut self.rest), true),
                // Nothing came; the producer lives all the same.
                Err(_) => (Vec::new(), false),
            };
            let completed = StreamEnd { state: StreamState::Completed, reason: None };
            let end = (is_over && at_end == AtEnd::Complete).then_some(completed);
            let appended = self.append(data, end).await?;
            if is_over {
                return Ok(());
            }
            if appended.stopping {
                output::warn("somebody asked to stop the stream");
                self.append(Vec::new(), Some(StreamEnd { state: StreamState::Cancelled, reason: None })).await?;
                return Ok(());
            }
        }
    }

    /// Takes what can be written now: whole characters of a text.
    fn whole(&mut self) -> Vec<u8> {
        let cut = match (self.content, std::str::from_utf8(&self.rest)) {
            (StreamContent::Text, Err(error)) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.rest.len(),
        };
        let rest = self.rest.split_off(cut);
        std::mem::replace(&mut self.rest, rest)
    }

    /// Appends, again and again while that may help: a repetition adds nothing.
    async fn append(&mut self, data: Vec<u8>, end: Option<StreamEnd>) -> Result<StreamAppended> {
        let data = match self.content {
            StreamContent::Text => String::from_utf8_lossy(&data).into_owned().into_bytes(),
            StreamContent::Binary => data,
        };
        let chunks: Vec<ChunkText> =
            if data.is_empty() { Vec::new() } else { vec![ChunkText::encode(self.content, &data)] };
        let request = StreamAppendRequest { fence: self.fence, first: self.next, chunks, end };
        let mut tries = 1;
        loop {
            match self.client.append_stream(self.id, &request).await {
                Ok(appended) => {
                    self.next += request.chunks.len() as i64;
                    return Ok(appended);
                }
                Err(error) if tries < TRIES && ClientError::is_retryable(&error) => {
                    tries += 1;
                    sleep(RETRY).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
