//! Following a stream: from the shared newest chunks where they suffice, from the database otherwise.

use std::sync::Arc;
use std::time::Duration;

use switchboard_model::ids::StreamId;
use switchboard_model::stream::StreamPage;
use switchboard_store_api::StoreResult;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::Streams;
use super::topic::Topic;

/// The most chunks of one page.
const PAGE_CHUNKS: u32 = 500;

/// After how long a stream is looked at though nothing was heard of it.
const GUARD: Duration = Duration::from_secs(1);

/// One reader of a stream.
pub struct StreamReader {
    streams: Arc<Streams>,
    /// Taken by the drop only.
    topic: Option<Arc<Topic>>,
    changed: watch::Receiver<()>,
    stream: StreamId,
    after: i64,
    began: Instant,
}

impl StreamReader {
    pub(super) fn new(streams: Arc<Streams>, topic: Arc<Topic>, stream: StreamId, after: i64) -> Self {
        let changed = topic.changed.subscribe();
        Self { streams, topic: Some(topic), changed, stream, after, began: Instant::now() }
    }

    /// Returns the number after which the next page begins.
    #[must_use]
    pub const fn position(&self) -> i64 {
        self.after
    }

    /// Waits for the next chunks or the end; `None` when there is no such stream any more. Nothing is lost when it is
    /// dropped while it waits.
    ///
    /// # Errors
    /// Fails when the database does.
    pub async fn next(&mut self) -> StoreResult<Option<StreamPage>> {
        loop {
            // Before the look: what comes after it wakes the wait.
            self.changed.mark_unchanged();
            let Some(page) = self.look().await? else { return Ok(None) };
            if !page.chunks.is_empty() || page.is_last(self.after) {
                self.after = page.last_seq(self.after);
                return Ok(Some(page));
            }
            let _ = timeout(GUARD, self.changed.changed()).await;
        }
    }

    /// Returns what follows now, perhaps nothing.
    async fn look(&self) -> StoreResult<Option<StreamPage>> {
        let Some(topic) = &self.topic else { return Ok(None) };
        if let Some(page) = topic.known(self.after, self.began) {
            return Ok(Some(page));
        }
        let asked = Instant::now();
        let _turn = topic.turn.lock().await;
        if let Some(page) = topic.known(self.after, self.began) {
            return Ok(Some(page));
        }
        if let Some(stream) = topic.read_since(asked).filter(|stream| stream.tail <= self.after) {
            return Ok(Some(StreamPage { stream, chunks: Vec::new() }));
        }
        let read_at = Instant::now();
        let page = self.streams.store.read(self.stream, self.after, PAGE_CHUNKS).await?;
        if let Some(page) = &page {
            topic.learn(page, read_at);
        }
        Ok(page)
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        drop(self.topic.take());
        self.streams.forget(self.stream);
    }
}
