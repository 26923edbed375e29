//! The flusher: stores what all producers of a replica have written, many streams in each commit.
//!
//! While one batch commits the next one gathers. A batch that cannot be stored now is tried again for the producers of
//! this replica; producers outside are told, and repeat it.

use std::sync::Arc;
use std::time::Duration;

use switchboard_model::stream::StreamAppend;
use switchboard_store_api::{StoreError, StoreResult, StreamAppendOutcome};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::writer::{Buffer, WriteError};
use super::{Streams, until};
use crate::feed::error_chain;
use crate::publisher::with_retry;

/// The most appends of one commit.
const BATCH_APPENDS: usize = 512;

/// How many bytes one commit has at most, beside the last append that begins below that.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// How many of them the producers here fill, so that those outside find room beside them.
const OWN_BYTES: usize = BATCH_BYTES / 2;

/// How long a batch that cannot be stored waits before it is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// An append of a producer outside.
pub(super) struct Job {
    pub(super) append: StreamAppend,
    pub(super) reply: oneshot::Sender<StoreResult<StreamAppendOutcome>>,
}

/// Whom an append is for.
enum Origin {
    Writer(Arc<Buffer>),
    Outside(oneshot::Sender<StoreResult<StreamAppendOutcome>>),
}

/// The appends of one commit.
#[derive(Default)]
struct Batch {
    appends: Vec<(StreamAppend, Origin)>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, append: StreamAppend, origin: Origin) {
        self.bytes += append.chunks.iter().map(Vec::len).sum::<usize>();
        self.appends.push((append, origin));
    }

    /// Tells whether more goes in below so many bytes.
    fn has_room(&self, bytes: usize) -> bool {
        self.appends.len() < BATCH_APPENDS && self.bytes < bytes
    }
}

/// The working side of [`Streams`].
pub struct StreamLanes {
    streams: Arc<Streams>,
    jobs: mpsc::Receiver<Job>,
}

impl StreamLanes {
    pub(super) fn new(streams: Arc<Streams>, jobs: mpsc::Receiver<Job>) -> Self {
        Self { streams, jobs }
    }

    /// Stores chunks and ends streams of lost producers until `stop`; then every stream that is produced here ends.
    pub async fn run(mut self, stop: CancellationToken) {
        let streams = Arc::clone(&self.streams);
        tokio::join!(self.flush_all(&stop), streams.interrupt(&stop));
    }

    async fn flush_all(&mut self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let (mut batch, next) = self.streams.due();
            self.gather(&mut batch);
            if !batch.appends.is_empty() {
                self.streams.flush(batch, stop).await;
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                // A wake-up between the look and here is kept by `Notify`, so none is lost.
                () = self.streams.work.notified() => {}
                () = until(next) => {}
                Some(job) = self.jobs.recv() => {
                    batch.add(job.append, Origin::Outside(job.reply));
                    self.gather(&mut batch);
                    self.streams.flush(batch, stop).await;
                }
            }
        }
        self.jobs.close();
        self.streams.writers.lock().values().for_each(|buffer| buffer.abandon("the replica was stopped"));
        loop {
            let (mut batch, _) = self.streams.due();
            self.gather(&mut batch);
            if batch.appends.is_empty() {
                return;
            }
            self.streams.flush(batch, stop).await;
        }
    }

    /// Takes what producers outside have sent meanwhile.
    fn gather(&mut self, batch: &mut Batch) {
        while batch.has_room(BATCH_BYTES)
            && let Ok(job) = self.jobs.try_recv()
        {
            batch.add(job.append, Origin::Outside(job.reply));
        }
    }
}

impl Streams {
    /// Takes what is due of the producers here, those first that have waited longest, forgets those that have ended, and
    /// says when the next is due.
    fn due(&self) -> (Batch, Option<Instant>) {
        let now = Instant::now();
        let mut producing = Vec::new();
        let has_ended = {
            let mut writers = self.writers.lock();
            let before = writers.len();
            writers.retain(|_, buffer| {
                let due = buffer.due(now);
                producing.extend(due.map(|at| (at, Arc::clone(buffer))));
                due.is_some()
            });
            writers.len() < before
        };
        if has_ended {
            self.count_writers();
        }
        producing.sort_unstable_by_key(|(at, _)| *at);
        let mut batch = Batch::default();
        for (at, buffer) in producing {
            if at > now || !batch.has_room(OWN_BYTES) {
                // What found no room is due since then, and goes with the next batch.
                return (batch, Some(at));
            }
            batch.add(buffer.take(now), Origin::Writer(buffer));
        }
        (batch, None)
    }

    async fn flush(&self, batch: Batch, stop: &CancellationToken) {
        let (mut appends, mut origins): (Vec<_>, Vec<_>) = batch.appends.into_iter().unzip();
        while !appends.is_empty() {
            match with_retry(|| self.store.append(&appends)).await {
                Ok(outcomes) => {
                    for ((append, origin), outcome) in appends.iter().zip(origins).zip(outcomes) {
                        self.settle(append, origin, Ok(outcome));
                    }
                    return;
                }
                Err(error) if error.is_transient() => {
                    tracing::debug!(error = %error_chain(&error), streams = appends.len(), "chunks cannot be stored now");
                    (appends, origins) = only_of_writers(appends, origins);
                    if stop.is_cancelled() {
                        for (append, origin) in appends.iter().zip(origins) {
                            let stopped = StoreError::Unavailable("the replica is being stopped".into());
                            self.settle(append, origin, Err(stopped));
                        }
                        return;
                    }
                    sleep(RETRY).await;
                }
                Err(error) => {
                    tracing::error!(error = %error_chain(&error), streams = appends.len(), "chunks were refused");
                    return self.flush_alone(appends, origins).await;
                }
            }
        }
    }

    /// Stores each append alone after their batch was refused, so that a bad one does not take its neighbours along.
    async fn flush_alone(&self, appends: Vec<StreamAppend>, origins: Vec<Origin>) {
        for (append, origin) in appends.iter().zip(origins) {
            let outcome = with_retry(|| self.store.append(std::slice::from_ref(append))).await;
            let outcome = outcome.map(|outcomes| outcomes.first().copied().unwrap_or(StreamAppendOutcome::NotFound));
            self.settle(append, origin, outcome);
        }
    }

    fn settle(&self, append: &StreamAppend, origin: Origin, outcome: StoreResult<StreamAppendOutcome>) {
        if let Ok(StreamAppendOutcome::Appended { tail, .. }) = outcome {
            metrics::counter!("switchboard_streams_chunks_total").increment(append.chunks.len() as u64);
            if let Some(topic) = self.topic(append.stream) {
                // Where chunks without a number went is learned from the signal, as on other replicas.
                if let Some(first) = append.first
                    && tail + 1 == first + append.chunks.len() as i64
                {
                    topic.appended(first, &append.chunks);
                }
                if append.end.is_some() {
                    topic.mark();
                }
            }
        }
        match origin {
            Origin::Writer(buffer) => buffer.settle(append, outcome.map_err(|_| WriteError::Refused)),
            // A caller that went away does not need its answer.
            Origin::Outside(reply) => drop(reply.send(outcome)),
        }
    }
}

/// Lets go of the appends of producers outside, which try again themselves.
fn only_of_writers(appends: Vec<StreamAppend>, origins: Vec<Origin>) -> (Vec<StreamAppend>, Vec<Origin>) {
    let unavailable = || StoreError::Unavailable("the chunks could not be stored; append them again".into());
    let kept = appends.into_iter().zip(origins).filter_map(|(append, origin)| match origin {
        Origin::Writer(_) => Some((append, origin)),
        Origin::Outside(reply) => {
            drop(reply.send(Err(unavailable())));
            None
        }
    });
    kept.unzip()
}

#[cfg(test)]
mod tests {
    use switchboard_model::ids::{Fence, InstanceId, StreamId};
    use switchboard_model::stream::{NewStream, StreamContent};
    use switchboard_store_api::WriteContext;
    use switchboard_store_sqlite::{SqliteOptions, open};
    use tokio_util::task::TaskTracker;

    use super::*;

    /// As much as a producer may have waiting.
    const PIECE: usize = 256 * 1024;

    fn size(batch: &Batch) -> usize {
        batch.appends.iter().flat_map(|(append, _)| &append.chunks).map(Vec::len).sum()
    }

    fn streams_of(batch: &Batch) -> Vec<StreamId> {
        batch.appends.iter().map(|(append, _)| append.stream).collect()
    }

    #[tokio::test]
    async fn a_commit_is_bounded_in_bytes_and_whoever_waits_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("switchboard.db"));
        let stores = open(&options, &TaskTracker::new(), CancellationToken::new()).await.unwrap();
        let (streams, mut lanes) = Streams::new(stores.streams.clone());
        let mut waiting = Vec::new();
        for _ in 0..20 {
            let new = NewStream {
                id: StreamId::new(),
                content: StreamContent::Binary,
                user_id: None,
                run_id: None,
                fence: None,
                producer: InstanceId::boot("test"),
            };
            let opened = stores.streams.open(&WriteContext::system("test"), &new).await.unwrap().now().unwrap();
            let buffer = Arc::new(Buffer::new(&opened));
            assert!(buffer.put(&[0; PIECE]).unwrap());
            streams.writers.lock().insert(new.id, buffer);
            waiting.push(new.id);
        }
        let mut answers = Vec::new();
        for _ in 0..50 {
            let chunks = vec![vec![0; PIECE / 4]; 4];
            let append = StreamAppend { stream: StreamId::new(), fence: Fence(1), first: Some(1), chunks, end: None };
            let (reply, answer) = oneshot::channel();
            assert!(streams.jobs.try_send(Job { append, reply }).is_ok());
            answers.push(answer);
        }
        let (mut batch, next) = streams.due();
        assert_eq!((size(&batch), batch.bytes), (OWN_BYTES, OWN_BYTES));
        assert!(next.is_some_and(|at| at <= Instant::now()), "the others are due, too");
        let own = batch.appends.len();
        assert_eq!(streams_of(&batch), waiting[..own]);
        lanes.gather(&mut batch);
        assert_eq!(size(&batch), BATCH_BYTES, "those outside find room beside them");
        let (second, _) = streams.due();
        assert_eq!(streams_of(&second), waiting[own..own * 2]);
    }
}
