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
            if !batch.is_empty() {
                self.streams.flush(batch, stop).await;
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                // A wake-up between the look and here is kept by `Notify`, so none is lost.
                () = self.streams.work.notified() => {}
                () = until(next) => {}
                Some(job) = self.jobs.recv() => {
                    batch.push((job.append, Origin::Outside(job.reply)));
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
            if batch.is_empty() {
                return;
            }
            self.streams.flush(batch, stop).await;
        }
    }

    /// Takes what producers outside have sent meanwhile.
    fn gather(&mut self, batch: &mut Vec<(StreamAppend, Origin)>) {
        while batch.len() < BATCH_APPENDS
            && let Ok(job) = self.jobs.try_recv()
        {
            batch.push((job.append, Origin::Outside(job.reply)));
        }
    }
}

impl Streams {
    /// Takes what is due of the producers here, forgets those that have ended, and says when the next is due.
    fn due(&self) -> (Vec<(StreamAppend, Origin)>, Option<Instant>) {
        let now = Instant::now();
        let (mut batch, mut next) = (Vec::new(), None::<Instant>);
        let has_ended = {
            let mut writers = self.writers.lock();
            let before = writers.len();
            writers.retain(|_, buffer| {
                let Some(due) = buffer.due(now) else { return false };
                if due <= now && batch.len() < BATCH_APPENDS {
                    batch.push((buffer.take(now), Origin::Writer(Arc::clone(buffer))));
                } else {
                    next = Some(next.map_or(due, |next| next.min(due)));
                }
                true
            });
            writers.len() < before
        };
        if has_ended {
            self.count_writers();
        }
        (batch, next)
    }

    async fn flush(&self, batch: Vec<(StreamAppend, Origin)>, stop: &CancellationToken) {
        let (mut appends, mut origins): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
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
