//! Bodies that come line by line. Knows no aggregate.

use std::io;
use std::pin::Pin;

use futures_util::{Stream, StreamExt as _, stream};

use crate::error::ClientError;

/// Cuts a body into its lines, each of which ends with a line feed.
pub(crate) fn lines<B: AsRef<[u8]>>(
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
