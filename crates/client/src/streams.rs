//! Streams and the output of runs over REST: produced chunk by chunk, read in stretches, or followed to the end.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream as Lines, StreamExt as _};
use reqwest::header::ACCEPT;
use reqwest::{Method, StatusCode};
use switchboard_model::ids::{RunId, StreamId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::stream::{Stream, StreamEnd};
use switchboard_model::wire::stream::{
    Chunk, OutputRequest, StreamAppendRequest, StreamAppended, StreamCloseRequest, StreamOpened, StreamReading,
    StreamRequest,
};
use tokio::time::sleep;

use crate::client::{Client, fetch, open, request_error, send};
use crate::error::ClientError;
use crate::lines::lines;

/// How long one connection is followed at most; a server that is silent is given up much earlier.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// How long a follower waits before it connects again.
const RETRY: Duration = Duration::from_millis(500);

impl Client {
    /// Opens a stream.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn open_stream(&self, request: &StreamRequest) -> Result<StreamOpened, ClientError> {
        fetch(self.api(Method::POST, &["streams"]).json(request)).await
    }

    /// Returns a page of all streams, newest first.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_streams(&self, page: PageRequest) -> Result<Page<Stream>, ClientError> {
        fetch(self.api_page(&["streams"], &page)).await
    }

    /// Returns a stream without its chunks.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_stream(&self, id: StreamId) -> Result<Stream, ClientError> {
        fetch(self.api(Method::GET, &["streams", &id.to_string()])).await
    }

    /// Adds chunks to a stream, or says that its producer lives. Repeating the request adds nothing.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `fenced` when the stream has ended or is somebody else's.
    pub async fn append_stream(
        &self,
        id: StreamId,
        request: &StreamAppendRequest,
    ) -> Result<StreamAppended, ClientError> {
        fetch(self.api(Method::POST, &["streams", &id.to_string(), "chunks"]).json(request)).await
    }

    /// Ends a stream.
    ///
    /// # Errors
    /// As [`Client::append_stream`].
    pub async fn close_stream(
        &self,
        id: StreamId,
        request: &StreamCloseRequest,
    ) -> Result<StreamAppended, ClientError> {
        fetch(self.api(Method::POST, &["streams", &id.to_string(), "close"]).json(request)).await
    }

    /// Asks the producer of a stream to stop.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `conflict` when it has ended.
    pub async fn stop_stream(&self, id: StreamId) -> Result<(), ClientError> {
        send(self.api(Method::POST, &["streams", &id.to_string(), "stop"])).await.map(drop)
    }

    /// Returns what follows number `after` in a stream.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn read_stream(&self, id: StreamId, after: i64) -> Result<StreamReading, ClientError> {
        fetch(self.api(Method::GET, &["streams", &id.to_string(), "chunks"]).query(&[("after", after)])).await
    }

    /// Adds to the output of a run that this worker executes.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `fenced` when the lease was lost.
    pub async fn append_output(&self, id: RunId, request: &OutputRequest) -> Result<StreamAppended, ClientError> {
        fetch(self.api(Method::POST, &["runs", &id.to_string(), "output"]).json(request)).await
    }

    /// Returns what follows number `after` in the output of a run.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn read_output(&self, id: RunId, after: i64) -> Result<StreamReading, ClientError> {
        fetch(self.api(Method::GET, &["runs", &id.to_string(), "output"]).query(&[("after", after)])).await
    }

    /// Follows a stream after number `after` to its end.
    #[must_use]
    pub fn follow_stream(&self, id: StreamId, after: i64) -> Follow {
        Follow::new(self, ["streams".to_owned(), id.to_string(), "chunks".to_owned()], after)
    }

    /// Follows the output of a run after number `after` to the end of the attempt.
    #[must_use]
    pub fn follow_output(&self, id: RunId, after: i64) -> Follow {
        Follow::new(self, ["runs".to_owned(), id.to_string(), "output".to_owned()], after)
    }
}

/// What follows in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The next chunk.
    Chunk(Chunk),
    /// The end; nothing follows.
    End(StreamEnd),
}

/// A reader of a stream that connects again after a loss and goes on where it was.
pub struct Follow {
    client: Client,
    path: [String; 3],
    /// The id of the last event that was seen.
    last_id: String,
    connection: Option<Connection>,
    /// Whether a connection was made; what is wrong with the first one is no loss.
    was_connected: bool,
    has_ended: bool,
}

type Connection = Pin<Box<dyn Lines<Item = Result<String, ClientError>> + Send>>;

/// One event as it came.
#[derive(Debug, Default, PartialEq, Eq)]
struct Event {
    id: Option<String>,
    name: String,
    data: String,
}

impl Follow {
    fn new(client: &Client, path: [String; 3], after: i64) -> Self {
        let last_id = after.to_string();
        Self { client: client.clone(), path, last_id, connection: None, was_connected: false, has_ended: false }
    }

    /// Returns the same reader, which asks another address from its next connection on.
    #[must_use]
    pub fn at(mut self, client: &Client) -> Self {
        self.client = client.clone();
        self.connection = None;
        self
    }

    /// Waits for what follows; `None` after the end.
    ///
    /// # Errors
    /// See [`ClientError`]; a loss of the connection is none.
    pub async fn next(&mut self) -> Result<Option<Followed>, ClientError> {
        while !self.has_ended {
            match self.event().await {
                Ok(Some(event)) => {
                    if let Some(followed) = self.take(event)? {
                        return Ok(Some(followed));
                    }
                }
                Err(error) if !(self.was_connected && error.is_retryable()) => return Err(error),
                // What ends without its end was cut, or goes on elsewhere.
                Ok(None) | Err(_) => {
                    self.connection = None;
                    if !self.has_ended {
                        sleep(RETRY).await;
                    }
                }
            }
        }
        Ok(None)
    }

    /// Waits for an event; `None` when the connection has ended in order.
    async fn event(&mut self) -> Result<Option<Event>, ClientError> {
        let mut event = Event::default();
        loop {
            let Some(connection) = &mut self.connection else {
                if !self.connect().await? {
                    self.has_ended = true;
                    return Ok(None);
                }
                continue;
            };
            let Some(line) = connection.next().await.transpose()? else { return Ok(None) };
            if line.is_empty() && !event.name.is_empty() {
                return Ok(Some(event));
            }
            event.add(&line);
        }
    }

    /// Connects; `false` when nothing follows any more.
    async fn connect(&mut self) -> Result<bool, ClientError> {
        let request = self.client.api(Method::GET, &self.path.each_ref().map(String::as_str));
        let request = request.header(ACCEPT, "text/event-stream").header("last-event-id", &self.last_id);
        let answer = open(request.timeout(FOLLOW_TIMEOUT)).await?;
        self.was_connected = true;
        if answer.status() == StatusCode::NO_CONTENT {
            return Ok(false);
        }
        let chunks = answer.bytes_stream().map(|chunk| chunk.map_err(request_error));
        self.connection = Some(Box::pin(lines(chunks)));
        Ok(true)
    }

    fn take(&mut self, event: Event) -> Result<Option<Followed>, ClientError> {
        let read = |error| ClientError::Decode(error);
        let followed = match event.name.as_str() {
            "chunk" => Followed::Chunk(serde_json::from_str(&event.data).map_err(read)?),
            "end" => Followed::End(serde_json::from_str(&event.data).map_err(read)?),
            _ => return Ok(None),
        };
        self.has_ended = matches!(followed, Followed::End(_));
        self.last_id = event.id.unwrap_or(std::mem::take(&mut self.last_id));
        Ok(Some(followed))
    }
}

impl Event {
    /// Takes a line; comments and unknown fields are ignored.
    fn add(&mut self, line: &str) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.name),
            "data" => self.data.push_str(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_line_by_line() {
        let mut event = Event::default();
        for line in [":", ": hello", "id: 7.end", "event:end", "data: {\"a\":\": b\"}", "retry: 5"] {
            event.add(line);
        }
        let expected = Event { id: Some("7.end".into()), name: "end".into(), data: "{\"a\":\": b\"}".into() };
        assert_eq!(event, expected);
    }
}
