//! The audit log over REST: read page by page, or exported as a whole.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use reqwest::{Method, RequestBuilder};
use switchboard_model::Timestamp;
use switchboard_model::audit::{AuditFilter, AuditRecord};
use switchboard_model::page::{Page, PageRequest};

use crate::client::{Client, fetch, open, request_error};
use crate::error::ClientError;

/// How long a whole export may take; a server that is silent in the middle of it is given up much earlier.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

impl Client {
    /// Returns a page of the entries that `filter` selects, newest first.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_audit(&self, filter: &AuditFilter, page: PageRequest) -> Result<Page<AuditRecord>, ClientError> {
        fetch(filtered(self.api_page(&["audit"], &page), filter)).await
    }

    /// Returns all entries that `filter` selects, oldest first, each as one line of JSON. They arrive as they are
    /// asked for. An export that the server broke off ends with an error: what came before is not all there is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn export_audit(
        &self,
        filter: &AuditFilter,
    ) -> Result<impl Stream<Item = Result<String, ClientError>> + Send + use<>, ClientError> {
        let request = filtered(self.api(Method::GET, &["audit", "export"]), filter).timeout(EXPORT_TIMEOUT);
        let chunks = open(request).await?.bytes_stream();
        Ok(lines(chunks.map(|chunk| chunk.map_err(request_error))))
    }
}

fn filtered(request: RequestBuilder, filter: &AuditFilter) -> RequestBuilder {
    let AuditFilter { actor, action, subject, from, to } = filter;
    let instant = |at: &Option<Timestamp>| at.map(|at| at.to_rfc3339());
    request.query(&[
        ("actor", actor.clone()),
        ("action", action.clone()),
        ("subject", subject.clone()),
        ("from", instant(from)),
        ("to", instant(to)),
    ])
}

/// Cuts a body into its lines, each of which ends with a line feed.
fn lines<B: AsRef<[u8]>>(
    chunks: impl Stream<Item = Result<B, ClientError>> + Send,
) -> impl Stream<Item = Result<String, ClientError>> + Send {
    struct State<S> {
        chunks: Pin<Box<S>>,
        /// What came and was not returned yet.
        rest: Vec<u8>,
    }
    let state = State { chunks: Box::pin(chunks), rest: Vec::new() };
    stream::try_unfold(state, |mut state| async move {
        loop {
            if let Some(end) = state.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = state.rest.drain(..=end).take(end).collect();
                return Ok(Some((String::from_utf8(line).map_err(ClientError::transport)?, state)));
            }
            match state.chunks.next().await {
                Some(chunk) => state.rest.extend_from_slice(chunk?.as_ref()),
                None if state.rest.is_empty() => return Ok(None),
                None => return Err(ClientError::transport(io::Error::from(io::ErrorKind::UnexpectedEof))),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt as _;

    use super::*;

    async fn cut(chunks: &[&'static str]) -> (Vec<String>, bool) {
        let mut lines = Box::pin(lines(stream::iter(chunks.iter().map(|chunk| Ok(*chunk)).collect::<Vec<_>>())));
        let mut whole = Vec::new();
        loop {
            match lines.try_next().await {
                Ok(Some(line)) => whole.push(line),
                Ok(None) => return (whole, true),
                Err(_) => return (whole, false),
            }
        }
    }

    #[tokio::test]
    async fn lines_are_whole_whatever_the_chunks_are() {
        assert_eq!(cut(&[]).await, (vec![], true));
        assert_eq!(cut(&["a\nb", "c", "\n", "d\n"]).await, (["a", "bc", "d"].map(str::to_owned).to_vec(), true));
        assert_eq!(cut(&["a\n", "b"]).await, (vec!["a".to_owned()], false));
    }
}
