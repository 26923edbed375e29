//! What becomes of an append to a stream, decided under the lock on its row. Knows no database.

use crate::ids::Fence;
use crate::stream::{CHUNK_BYTES, STREAM_BYTES, StreamAppend, StreamPage, StreamState};

/// What decisions about a stream need of its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// How it stands.
    pub state: StreamState,
    /// The fence of its producer.
    pub fence: Fence,
    /// The number of its newest chunk.
    pub tail: i64,
    /// How many bytes its chunks have.
    pub bytes: i64,
}

/// What becomes of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission<'a> {
    /// These chunks follow the newest one; none when there are none or all of them are stored.
    Taken(&'a [Vec<u8>]),
    /// It has been taken before, and the stream ended with it.
    Repeated,
    /// Its chunks leave a hole after the newest one.
    Gap,
    /// Somebody else produces the stream now, or it has ended.
    Fenced,
    /// A chunk or the stream would be too large.
    TooLarge,
}

impl StreamHead {
    /// Decides what becomes of an append, and moves to where the stream stands after it.
    pub fn admit<'a>(&mut self, append: &'a StreamAppend) -> Admission<'a> {
        let StreamAppend { fence, first, chunks, end, .. } = append;
        let first = first.unwrap_or(self.tail + 1);
        let last = first.saturating_add(chunks.len() as i64 - 1);
        if *fence != self.fence {
            return Admission::Fenced;
        }
        if self.state.is_terminal() {
            // The answer to the end may have been lost; whoever repeats it is told that it is done.
            let is_repeated = last <= self.tail && end.as_ref().is_some_and(|end| end.state == self.state);
            return if is_repeated { Admission::Repeated } else { Admission::Fenced };
        }
        if first > self.tail + 1 {
            return Admission::Gap;
        }
        let known = usize::try_from(self.tail + 1 - first).unwrap_or(usize::MAX).min(chunks.len());
        let new = &chunks[known..];
        let bytes = new.iter().map(|chunk| chunk.len() as i64).sum::<i64>();
        if self.bytes + bytes > STREAM_BYTES || new.iter().any(|chunk| chunk.len() > CHUNK_BYTES) {
            return Admission::TooLarge;
        }
        self.tail += new.len() as i64;
        self.bytes += bytes;
        if let Some(end) = end {
            self.state = end.state;
        }
        Admission::Taken(new)
    }
}

impl StreamPage {
    /// Tells whether what follows number `after` is there: a stream that is being deleted loses its chunks first.
    #[must_use]
    pub fn goes_on_after(&self, after: i64) -> bool {
        match self.chunks.first() {
            Some(first) => first.seq == after + 1,
            None => after >= self.stream.tail,
        }
    }

    /// Tells whether the stream has ended and nothing follows this page of what comes after number `after`.
    #[must_use]
    pub fn is_last(&self, after: i64) -> bool {
        self.stream.state.is_terminal() && self.last_seq(after) >= self.stream.tail
    }

    /// Returns the number of the last chunk here, after which the next page follows.
    #[must_use]
    pub fn last_seq(&self, after: i64) -> i64 {
        self.chunks.last().map_or(after, |chunk| chunk.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StreamId;
    use crate::stream::StreamEnd;

    fn append(first: i64, chunks: &[&str], end: Option<StreamState>) -> StreamAppend {
        StreamAppend {
            stream: StreamId::new(),
            fence: Fence(7),
            first: Some(first),
            chunks: chunks.iter().map(|chunk| chunk.as_bytes().to_vec()).collect(),
            end: end.map(|state| StreamEnd { state, reason: None }),
        }
    }

    fn head(tail: i64) -> StreamHead {
        StreamHead { state: StreamState::Open, fence: Fence(7), tail, bytes: tail }
    }

    #[test]
    fn only_chunks_that_are_not_stored_are_taken() {
        for (first, chunks, taken) in [
            (4, &["a", "b"][..], &["a", "b"][..]),
            (3, &["a", "b"], &["b"]),
            (2, &["a", "b"], &[]),
            (1, &["a", "b"], &[]),
            (1, &[], &[]),
            (4, &[], &[]),
        ] {
            let taken: Vec<Vec<u8>> = taken.iter().map(|chunk: &&str| chunk.as_bytes().to_vec()).collect();
            let mut head = head(3);
            assert_eq!(head.admit(&append(first, chunks, None)), Admission::Taken(&taken), "{first} {chunks:?}");
            assert_eq!((head.tail, head.bytes), (3 + taken.len() as i64, 3 + taken.len() as i64));
        }
        assert_eq!(head(3).admit(&append(5, &["a"], None)), Admission::Gap);
    }

    #[test]
    fn chunks_without_a_number_go_to_the_end() {
        let mut head = head(3);
        let at_end = |end| StreamAppend { first: None, ..append(1, &["a", "b"], end) };
        assert!(matches!(head.admit(&at_end(None)), Admission::Taken([_, _])));
        assert!(matches!(head.admit(&at_end(Some(StreamState::Completed))), Admission::Taken([_, _])));
        assert_eq!(head.tail, 7);
        assert_eq!(head.admit(&at_end(Some(StreamState::Completed))), Admission::Fenced, "they would be new ones");
        let nothing = StreamAppend { chunks: vec![], ..at_end(Some(StreamState::Completed)) };
        assert_eq!(head.admit(&nothing), Admission::Repeated);
    }

    #[test]
    fn an_end_is_final_and_can_be_repeated() {
        let mut head = head(3);
        let end = append(4, &["a"], Some(StreamState::Failed));
        assert!(matches!(head.admit(&end), Admission::Taken(_)));
        assert_eq!(head.admit(&end), Admission::Repeated);
        assert_eq!(head.admit(&append(5, &["b"], Some(StreamState::Failed))), Admission::Fenced);
        assert_eq!(head.admit(&append(5, &[], Some(StreamState::Completed))), Admission::Fenced);
        assert_eq!(head.admit(&append(5, &[], None)), Admission::Fenced);
    }

    #[test]
    fn an_old_fence_and_what_is_too_large_change_nothing() {
        let mut stale = append(4, &["a"], None);
        stale.fence = Fence(6);
        let large = StreamAppend { chunks: vec![vec![0; CHUNK_BYTES + 1]], ..append(4, &[], None) };
        let mut full = StreamHead { bytes: STREAM_BYTES, ..head(3) };
        let before = full.clone();
        assert_eq!(full.admit(&stale), Admission::Fenced);
        assert_eq!(full.admit(&large), Admission::TooLarge);
        assert_eq!(full.admit(&append(4, &["a"], None)), Admission::TooLarge);
        assert_eq!(full, before);
    }
}
