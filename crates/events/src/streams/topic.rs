//! What the readers of one stream on this replica share: its newest chunks, and turns at reading more.

use std::collections::VecDeque;

use parking_lot::Mutex;
use switchboard_model::stream::{STREAM_PAGE_BYTES, Stream, StreamChunk, StreamPage};
use tokio::sync::{Mutex as TurnMutex, watch};
use tokio::time::Instant;

/// How many bytes of the newest chunks are kept, beside the newest one.
const RECENT_BYTES: usize = 64 * 1024;

/// How many of the newest chunks are kept.
const RECENT_CHUNKS: usize = 256;

/// A stream that somebody reads here.
#[derive(Default)]
pub(super) struct Topic {
    state: Mutex<State>,
    /// Changes with everything that a reader should look at.
    pub(super) changed: watch::Sender<()>,
    /// Held while the newest chunks are read, so that many readers are one.
    pub(super) turn: TurnMutex<()>,
}

#[derive(Default)]
struct State {
    /// The row as it was last read; `None` when it must be read.
    stream: Option<Stream>,
    /// The newest chunks up to the tail of the row, without a hole.
    recent: VecDeque<StreamChunk>,
    bytes: usize,
    /// When the last read was begun.
    read_at: Option<Instant>,
    /// When something was last said to have changed.
    marked_at: Option<Instant>,
}

impl Topic {
    /// Notes that something has changed: more chunks, an end, or a new producer after the end.
    pub(super) fn mark(&self) {
        {
            let mut state = self.state.lock();
            state.marked_at = Some(Instant::now());
            if state.stream.as_ref().is_some_and(|stream| stream.state.is_terminal()) {
                state.stream = None;
            }
        }
        self.changed.send_replace(());
    }

    /// Returns what follows number `after`, or that nothing does, if that is known without reading. An end counts for
    /// readers who began before it was read: by the time that later ones came, somebody may have gone on with the stream.
    pub(super) fn known(&self, after: i64, began: Instant) -> Option<StreamPage> {
        let state = self.state.lock();
        let stream = state.stream.clone()?;
        if stream.state.is_terminal() && state.read_at.is_none_or(|read_at| read_at < began) {
            return None;
        }
        if after >= stream.tail {
            return stream.state.is_terminal().then(|| StreamPage { stream, chunks: Vec::new() });
        }
        let first = state.recent.front().filter(|first| first.seq <= after + 1)?;
        let mut bytes = 0;
        let skipped = usize::try_from(after + 1 - first.seq).ok()?;
        let fits = |chunk: &&StreamChunk| {
            let has_room = bytes < STREAM_PAGE_BYTES;
            bytes += chunk.data.len();
            has_room
        };
        let chunks = state.recent.iter().skip(skipped).take_while(fits).cloned().collect();
        Some(StreamPage { stream, chunks })
    }

    /// Returns the row, if it was read after `instant`.
    pub(super) fn read_since(&self, instant: Instant) -> Option<Stream> {
        let state = self.state.lock();
        state.stream.clone().filter(|_| state.read_at.is_some_and(|read_at| read_at >= instant))
    }

    /// Takes over a page that was read, by a read that began at `read_at`.
    pub(super) fn learn(&self, page: &StreamPage, read_at: Instant) {
        let mut state = self.state.lock();
        state.read_at = Some(read_at);
        if state.stream.as_ref().is_some_and(|known| known.tail > page.stream.tail) {
            // What this replica has stored since is newer than the read.
            return;
        }
        let known = state.recent.back().map_or(0, |last| last.seq);
        let is_continued = page.chunks.first().is_none_or(|first| first.seq <= known + 1);
        if !is_continued {
            state.clear();
        }
        for chunk in page.chunks.iter().filter(|chunk| !is_continued || chunk.seq > known) {
            state.push(chunk.clone());
        }
        if state.recent.back().is_some_and(|last| last.seq != page.stream.tail) {
            // A page from further back: what is kept are the newest chunks or none.
            state.clear();
        }
        // What was said to have changed since the read began may be that somebody has gone on after this end.
        let is_doubtful = page.stream.state.is_terminal() && state.marked_at.is_some_and(|at| at >= read_at);
        state.stream = (!is_doubtful).then(|| page.stream.clone());
    }

    /// Takes over chunks that this replica has just stored, from number `first` to the new tail.
    pub(super) fn appended(&self, first: i64, chunks: &[Vec<u8>]) {
        {
            let mut state = self.state.lock();
            let Some(stream) = state.stream.as_mut().filter(|stream| stream.tail + 1 == first) else { return };
            stream.tail += chunks.len() as i64;
            stream.bytes += chunks.iter().map(|chunk| chunk.len() as i64).sum::<i64>();
            for (seq, chunk) in (first..).zip(chunks) {
                state.push(StreamChunk { seq, data: chunk.clone() });
            }
        }
        self.changed.send_replace(());
    }
}

impl State {
    fn clear(&mut self) {
        self.recent.clear();
        self.bytes = 0;
    }

    fn push(&mut self, chunk: StreamChunk) {
        self.bytes += chunk.data.len();
        self.recent.push_back(chunk);
        while self.recent.len() > 1 && (self.bytes > RECENT_BYTES || self.recent.len() > RECENT_CHUNKS) {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.bytes -= oldest.data.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use switchboard_model::ids::StreamId;
    use switchboard_model::stream::{StreamContent, StreamState};

    use super::*;

    fn page(tail: i64, seqs: std::ops::RangeInclusive<i64>, state: StreamState) -> StreamPage {
        let stream = Stream {
            id: StreamId::new(),
            content: StreamContent::Text,
            user_id: None,
            run_id: None,
            state,
            reason: None,
            tail,
            bytes: tail,
            stop_requested_at: None,
            created_at: Default::default(),
            ended_at: None,
        };
        StreamPage { stream, chunks: seqs.map(|seq| StreamChunk { seq, data: vec![b'x'] }).collect() }
    }

    fn known(topic: &Topic, after: i64) -> Option<Vec<i64>> {
        known_since(topic, after, Instant::now() - Duration::from_secs(60))
    }

    fn known_since(topic: &Topic, after: i64, began: Instant) -> Option<Vec<i64>> {
        topic.known(after, began).map(|page| page.chunks.iter().map(|chunk| chunk.seq).collect())
    }

    #[tokio::test]
    async fn the_newest_chunks_are_known_and_older_ones_are_read() {
        let topic = Topic::default();
        assert_eq!(known(&topic, 0), None);
        topic.learn(&page(5, 4..=5, StreamState::Open), Instant::now());
        assert_eq!(known(&topic, 3), Some(vec![4, 5]));
        assert_eq!(known(&topic, 4), Some(vec![5]));
        assert_eq!(known(&topic, 2), None);
        assert_eq!(known(&topic, 5), None, "more may have come");
        topic.appended(6, &[vec![b'y']]);
        topic.appended(6, &[vec![b'z']]);
        assert_eq!(known(&topic, 3), Some(vec![4, 5, 6]));
        topic.learn(&page(9, 1..=3, StreamState::Open), Instant::now());
        assert_eq!(known(&topic, 5), None, "the newest chunks are unknown after a page from further back");
        topic.learn(&page(9, 8..=9, StreamState::Open), Instant::now());
        topic.learn(&page(8, 7..=8, StreamState::Open), Instant::now());
        assert_eq!(known(&topic, 8), Some(vec![9]), "a late read takes nothing away");
    }

    #[tokio::test]
    async fn an_end_is_known_until_something_changes() {
        let topic = Topic::default();
        topic.learn(&page(2, 1..=2, StreamState::Completed), Instant::now());
        assert_eq!(known(&topic, 2), Some(vec![]));
        topic.mark();
        assert_eq!(known(&topic, 2), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_nothing_to_readers_who_came_after_it_was_read() {
        let topic = Topic::default();
        let early = Instant::now();
        topic.learn(&page(2, 1..=2, StreamState::Failed), Instant::now());
        tokio::time::advance(Duration::from_millis(1)).await;
        let late = Instant::now();
        assert_eq!(known_since(&topic, 0, early), Some(vec![1, 2]));
        assert_eq!(known_since(&topic, 0, late), None, "the next attempt may have begun");
        assert_eq!(known_since(&topic, 2, late), None);
        topic.learn(&page(2, 1..=2, StreamState::Open), late);
        assert_eq!(known_since(&topic, 1, late), Some(vec![2]));
        assert_eq!(known_since(&topic, 2, late), None, "more may come");
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_that_was_read_while_the_stream_was_opened_again_is_not_believed() {
        let topic = Topic::default();
        let read_at = Instant::now();
        topic.mark();
        topic.learn(&page(2, 1..=2, StreamState::Failed), read_at);
        assert_eq!(known(&topic, 2), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        topic.learn(&page(2, 1..=2, StreamState::Failed), Instant::now());
        assert_eq!(known(&topic, 2), Some(vec![]), "nothing has changed since");
    }

    #[tokio::test]
    async fn the_kept_chunks_are_bounded() {
        let topic = Topic::default();
        topic.learn(&page(0, std::ops::RangeInclusive::new(1, 0), StreamState::Open), Instant::now());
        for seq in 1..=10 {
            topic.appended(seq, &[vec![0; RECENT_BYTES / 2]]);
        }
        assert_eq!(known(&topic, 8), Some(vec![9, 10]));
        assert_eq!(known(&topic, 7), None);
    }
}
