//! The streams of a replica: producers write into buffers that one flusher stores, readers share what was read.
//!
//! The database is the truth: who may write, what is stored and how a stream ended. Signals only say when to look.

mod awaited;
mod flusher;
mod reader;
mod topic;
mod writer;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use switchboard_model::feed::{SignalKind, Tick};
use switchboard_model::ids::StreamId;
use switchboard_model::stream::{NewStream, StreamAppend, StreamContent};
use switchboard_store_api::{StoreError, StoreResult, StreamAppendOutcome, StreamStore, WriteContext};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use awaited::OutputWait;
pub use flusher::StreamLanes;
pub use reader::StreamReader;
pub use writer::{StreamWriter, WriteError};

use crate::feed::{FeedObserver, error_chain};
use awaited::Awaited;
use flusher::Job;
use topic::Topic;
use writer::Buffer;

/// How many appends of other programs wait for a batch before further ones wait for room.
const LANE_JOBS: usize = 256;

/// The most streams that are ended in one commit because their producer was lost.
const INTERRUPT_BATCH: u32 = 500;

/// How many streams this replica remembers the content of.
const KNOWN_CONTENTS: usize = 10_000;

/// The streams of one replica.
pub struct Streams {
    store: Arc<dyn StreamStore>,
    /// Wakes the flusher.
    work: Notify,
    jobs: mpsc::Sender<Job>,
    writers: Mutex<HashMap<StreamId, Arc<Buffer>>>,
    topics: Mutex<HashMap<StreamId, Weak<Topic>>>,
    /// Who waits for runs that have written nothing.
    awaited: Awaited,
    /// What the chunks of some streams are, which never changes.
    contents: Mutex<HashMap<StreamId, StreamContent>>,
    /// When the next lease of a producer ends.
    due: watch::Sender<Option<Instant>>,
}

impl Streams {
    /// Makes the streams of a replica and their lanes, which must be run for anything to happen.
    #[must_use]
    pub fn new(store: Arc<dyn StreamStore>) -> (Arc<Self>, StreamLanes) {
        let (jobs, waiting) = mpsc::channel(LANE_JOBS);
        let streams = Arc::new(Self {
            store,
            work: Notify::new(),
            jobs,
            writers: Mutex::default(),
            topics: Mutex::default(),
            awaited: Awaited::default(),
            contents: Mutex::default(),
            due: watch::Sender::new(None),
        });
        (Arc::clone(&streams), StreamLanes::new(streams, waiting))
    }

    /// Opens a stream that this replica produces.
    ///
    /// # Errors
    /// Fails when the database does.
    pub async fn open(self: &Arc<Self>, stream: &NewStream) -> StoreResult<StreamWriter> {
        let opened = self.store.open(&WriteContext::system("streams"), stream).await?;
        let opened = opened.now().ok_or(StoreError::Fenced)?;
        let buffer = Arc::new(Buffer::new(&opened));
        self.writers.lock().insert(opened.stream.id, Arc::clone(&buffer));
        self.count_writers();
        Ok(StreamWriter::new(Arc::clone(self), buffer))
    }

    /// Adds chunks of a producer outside, in a commit that it may share with others.
    ///
    /// # Errors
    /// Fails when the database does; repeating the append is safe.
    pub async fn append(&self, append: StreamAppend) -> StoreResult<StreamAppendOutcome> {
        let stopped = || StoreError::Unavailable("the replica is being stopped".into());
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { append, reply }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Returns what the chunks of a stream are; `None` when there is no such stream. One that was deleted since it was
    /// last asked for may still be known here.
    ///
    /// # Errors
    /// Fails when the database does.
    pub async fn content(&self, stream: StreamId) -> StoreResult<Option<StreamContent>> {
        if let Some(content) = self.contents.lock().get(&stream) {
            return Ok(Some(*content));
        }
        let found = self.store.find(stream).await?.map(|stream| stream.content);
        if let Some(content) = found {
            let mut contents = self.contents.lock();
            if contents.len() >= KNOWN_CONTENTS {
                contents.clear();
            }
            contents.insert(stream, content);
        }
        Ok(found)
    }

    /// Follows a stream after the chunk with number `after`.
    #[must_use]
    pub fn reader(self: &Arc<Self>, stream: StreamId, after: i64) -> StreamReader {
        let topic = {
            let mut topics = self.topics.lock();
            let known = topics.get(&stream).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let topic = Arc::new(Topic::default());
                topics.insert(stream, Arc::downgrade(&topic));
                topic
            })
        };
        StreamReader::new(Arc::clone(self), topic, stream, after)
    }

    /// Ends streams whose producers are lost, when the first lease ends, until `stop`. Every replica does so; a lease
    /// that has run out ends its stream once.
    async fn interrupt(&self, stop: &CancellationToken) {
        let mut due = self.due.subscribe();
        loop {
            let at = *due.borrow_and_update();
            let is_due = tokio::select! {
                () = stop.cancelled() => return,
                _ = due.changed() => false,
                () = until(at) => true,
            };
            if is_due {
                self.interrupt_due().await;
                // The next tick says what is due then.
                self.due.send_if_modified(|due| due.take().is_some());
            }
        }
    }

    async fn interrupt_due(&self) {
        loop {
            match self.store.interrupt(INTERRUPT_BATCH).await {
                Ok(interrupted) => {
                    metrics::counter!("switchboard_streams_interrupted_total").increment(interrupted);
                    if interrupted < u64::from(INTERRUPT_BATCH) {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(error = %error_chain(&error), "streams of lost producers cannot be ended now");
                    return;
                }
            }
        }
    }

    fn topic(&self, stream: StreamId) -> Option<Arc<Topic>> {
        self.topics.lock().get(&stream)?.upgrade()
    }

    /// Forgets a topic after its last reader.
    fn forget(&self, stream: StreamId) {
        let mut topics = self.topics.lock();
        if topics.get(&stream).is_some_and(|topic| topic.strong_count() == 0) {
            topics.remove(&stream);
        }
    }

    fn count_writers(&self) {
        let count = self.writers.lock().len();
        // Counts of streams are far below 2^52.
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        metrics::gauge!("switchboard_streams_produced").set(count as f64);
    }
}

impl FeedObserver for Streams {
    fn observe(&self, tick: &Tick) {
        for signal in &tick.signals {
            if signal.kind == SignalKind::OutputBegan {
                if let Ok(run) = signal.key.parse() {
                    self.awaited.wake(run);
                }
                continue;
            }
            let Ok(stream) = signal.key.parse::<StreamId>() else { continue };
            match signal.kind {
                SignalKind::StreamGrew => {
                    if let Some(topic) = self.topic(stream) {
                        topic.mark();
                    }
                }
                SignalKind::StreamStopped => {
                    if let Some(buffer) = self.writers.lock().get(&stream) {
                        buffer.ask_to_stop();
                    }
                }
                _ => {}
            }
        }
        if tick.resync {
            let topics: Vec<_> = self.topics.lock().values().filter_map(Weak::upgrade).collect();
            topics.iter().for_each(|topic| topic.mark());
            self.awaited.wake_all();
        }
        let due = tick.next.stream.map(|at| Instant::now() + (at - tick.now).to_std().unwrap_or_default());
        self.due.send_replace(due);
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
