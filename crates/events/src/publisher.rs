//! The publisher: every event of a replica goes through it, those without a once-key through its lanes.
//!
//! Durable events are appended with natural batching: while one batch commits, the next one gathers,
//! so that many publishers share a commit and a single one waits for nothing. Ephemeral events travel
//! in the change feed. A full lane makes publishers wait; nothing is dropped.

use std::sync::Arc;

use switchboard_model::feed::{Signal, SignalKind};
use switchboard_model::identity::{EventName, RoomName};
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{MessageId, NewEvent, RoomClass};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::EventFrame;
use switchboard_model::wire::limits::PAYLOAD_BYTES;
use switchboard_store_api::{AppendAnswer, AppendOutcome, FeedStore, RoomStore, StoreError, WriteContext, Written};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::feed::error_chain;
use crate::hub::Hub;

/// How many publishes wait for a batch before further ones wait for room.
const LANE_JOBS: usize = 1024;

/// The most events of one commit.
const BATCH_EVENTS: usize = 512;

/// How often a batch that collided with another is tried again.
const CONFLICT_TRIES: u32 = 5;

/// Why an event was not published, or why that is unknown.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PublishError {
    /// The database cannot be reached or failed; whether the event was stored is unknown.
    #[error("the event could not be stored")]
    Store(#[source] Arc<StoreError>),
    /// The replica is being stopped.
    #[error("the replica is being stopped")]
    Stopped,
}

/// An event that is not stored: delivered at most once to whoever is connected.
#[derive(Clone, Debug)]
pub struct EphemeralEvent {
    /// The room.
    pub room: RoomName,
    /// What it is called.
    pub event: EventName,
    /// What it carries.
    pub payload: JsonText,
    /// Its identity.
    pub msg_id: MessageId,
}

impl EphemeralEvent {
    /// Checks what would refuse the event.
    ///
    /// # Errors
    /// The code of the refusal.
    pub fn check(&self) -> Result<(), ErrorCode> {
        if self.payload.as_str().len() > PAYLOAD_BYTES {
            return Err(ErrorCode::PayloadTooLarge);
        }
        if self.room.class() == RoomClass::Malformed {
            return Err(ErrorCode::RoomNameInvalid);
        }
        Ok(())
    }
}

struct DurableJob {
    events: Vec<NewEvent>,
    reply: oneshot::Sender<Result<Vec<AppendOutcome>, PublishError>>,
}

struct EphemeralJob {
    event: EphemeralEvent,
    reply: oneshot::Sender<Result<(), PublishError>>,
}

/// The handle by which every part of a replica publishes.
#[derive(Clone)]
pub struct Publisher {
    durable: mpsc::Sender<DurableJob>,
    ephemeral: mpsc::Sender<EphemeralJob>,
    rooms: Arc<dyn RoomStore>,
    hub: Arc<Hub>,
}

/// The working side of a [`Publisher`].
pub struct PublisherLanes {
    durable: mpsc::Receiver<DurableJob>,
    ephemeral: mpsc::Receiver<EphemeralJob>,
    rooms: Arc<dyn RoomStore>,
    feed: Arc<dyn FeedStore>,
    hub: Arc<Hub>,
}

impl Publisher {
    /// Makes a publisher and its lanes, which must be run for anything to happen.
    #[must_use]
    pub fn new(rooms: Arc<dyn RoomStore>, feed: Arc<dyn FeedStore>, hub: Arc<Hub>) -> (Self, PublisherLanes) {
        let (durable, durable_jobs) = mpsc::channel(LANE_JOBS);
        let (ephemeral, ephemeral_jobs) = mpsc::channel(LANE_JOBS);
        let publisher = Self { durable, ephemeral, rooms: Arc::clone(&rooms), hub: Arc::clone(&hub) };
        (publisher, PublisherLanes { durable: durable_jobs, ephemeral: ephemeral_jobs, rooms, feed, hub })
    }

    /// Appends one event and returns what became of it.
    ///
    /// # Errors
    /// [`PublishError`] when the outcome is unknown or nothing was done.
    pub async fn publish(&self, event: NewEvent) -> Result<AppendOutcome, PublishError> {
        let outcomes = self.publish_batch(vec![event]).await?;
        outcomes.into_iter().next().ok_or(PublishError::Stopped)
    }

    /// Appends events in order, in one commit, and returns what became of each.
    ///
    /// # Errors
    /// [`PublishError`] when the outcome is unknown or nothing was done.
    pub async fn publish_batch(&self, events: Vec<NewEvent>) -> Result<Vec<AppendOutcome>, PublishError> {
        let (fitting, oversized) = Oversized::sort_out(events);
        let outcomes = if fitting.is_empty() { Vec::new() } else { self.append(fitting).await? };
        Ok(oversized.put_back(outcomes))
    }

    /// Appends events in order under the once-key of `context`, in a commit of their own. The key remembers what
    /// `answer` makes of the outcomes, unless every event was refused; a repetition gets that and appends nothing.
    ///
    /// # Errors
    /// [`PublishError`] when the outcome is unknown or nothing was done; repeating it with the same key is safe.
    pub async fn publish_once(
        &self,
        context: &WriteContext,
        events: Vec<NewEvent>,
        answer: AppendAnswer,
    ) -> Result<Written<Vec<AppendOutcome>>, PublishError> {
        let (fitting, oversized) = Oversized::sort_out(events);
        if fitting.is_empty() && !oversized.0.is_empty() {
            return Ok(Written::Now(oversized.put_back(Vec::new())));
        }
        let answer: AppendAnswer = Arc::new({
            let oversized = oversized.clone();
            move |outcomes| answer(&oversized.put_back(outcomes.to_vec()))
        });
        let append = || self.rooms.append_once(context, &fitting, &answer);
        match with_retry(append).await.map_err(store_failed)? {
            Written::Now(outcomes) => {
                for (event, outcome) in fitting.iter().zip(&outcomes) {
                    tell(&self.hub, &event.room, outcome);
                }
                Ok(Written::Now(oversized.put_back(outcomes)))
            }
            Written::Replayed(record) => Ok(Written::Replayed(record)),
            Written::Mismatch => Ok(Written::Mismatch),
        }
    }

    async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<AppendOutcome>, PublishError> {
        let (reply, answer) = oneshot::channel();
        self.durable.send(DurableJob { events, reply }).await.map_err(|_| PublishError::Stopped)?;
        answer.await.map_err(|_| PublishError::Stopped)?
    }

    /// Sends an event to whoever is connected, on any replica; the inner error refuses the event.
    ///
    /// # Errors
    /// [`PublishError`] when the event may not have been sent.
    pub async fn publish_ephemeral(&self, event: EphemeralEvent) -> Result<Result<(), ErrorCode>, PublishError> {
        if let Err(code) = event.check() {
            return Ok(Err(code));
        }
        let (reply, answer) = oneshot::channel();
        self.ephemeral.send(EphemeralJob { event, reply }).await.map_err(|_| PublishError::Stopped)?;
        answer.await.map_err(|_| PublishError::Stopped)?.map(Ok)
    }
}

/// The places of events that are too large to be stored.
#[derive(Clone)]
struct Oversized(Vec<usize>);

impl Oversized {
    /// Takes the events out that are too large.
    fn sort_out(events: Vec<NewEvent>) -> (Vec<NewEvent>, Self) {
        let is_too_large = |event: &NewEvent| event.payload.as_str().len() > PAYLOAD_BYTES;
        let places = events.iter().enumerate().filter(|(_, event)| is_too_large(event)).map(|(index, _)| index);
        let oversized = Self(places.collect());
        (events.into_iter().filter(|event| !is_too_large(event)).collect(), oversized)
    }

    /// Completes the outcomes of the others with the refusals of those.
    fn put_back(&self, mut outcomes: Vec<AppendOutcome>) -> Vec<AppendOutcome> {
        for index in &self.0 {
            outcomes.insert(*index, AppendOutcome::Refused(ErrorCode::PayloadTooLarge));
        }
        outcomes
    }
}

impl PublisherLanes {
    /// Works until `stop`, then finishes what was already handed over.
    pub async fn run(self, stop: CancellationToken) {
        let Self { durable, ephemeral, rooms, feed, hub } = self;
        tokio::join!(
            run_lane(durable, &stop, |jobs| append_jobs(&*rooms, &hub, jobs), |job| job.events.len()),
            run_lane(ephemeral, &stop, |jobs| emit_jobs(&*feed, &hub, jobs), |_| 1),
        );
    }
}

/// Gathers jobs while the previous batch is worked on. After `stop`, works off what is queued.
async fn run_lane<J, F: Future<Output = ()>>(
    mut jobs: mpsc::Receiver<J>,
    stop: &CancellationToken,
    work: impl Fn(Vec<J>) -> F,
    weight: impl Fn(&J) -> usize,
) {
    loop {
        let first = tokio::select! {
            biased;
            job = jobs.recv() => job,
            () = stop.cancelled() => {
                jobs.close();
                jobs.recv().await
            }
        };
        let Some(first) = first else { return };
        let mut total = weight(&first);
        let mut batch = vec![first];
        while total < BATCH_EVENTS {
            let Ok(job) = jobs.try_recv() else { break };
            total += weight(&job);
            batch.push(job);
        }
        work(batch).await;
    }
}

async fn append_jobs(rooms: &dyn RoomStore, hub: &Arc<Hub>, jobs: Vec<DurableJob>) {
    let mut events = Vec::new();
    let mut waiting = Vec::with_capacity(jobs.len());
    for job in jobs {
        waiting.push((job.events.len(), job.reply));
        events.extend(job.events);
    }
    match with_retry(|| rooms.append(&events)).await {
        Ok(outcomes) => {
            let mut outcomes = outcomes.into_iter().zip(events).map(|(outcome, event)| {
                tell(hub, &event.room, &outcome);
                outcome
            });
            for (count, reply) in waiting {
                // A caller that went away does not need its answer.
                let _ = reply.send(Ok(outcomes.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            let error = store_failed(error);
            for (_, reply) in waiting {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

/// Tells the sessions of this replica of an event that was stored, before the change feed does.
fn tell(hub: &Hub, room: &RoomName, outcome: &AppendOutcome) {
    if let AppendOutcome::Appended { position, event } = outcome {
        metrics::counter!("switchboard_realtime_events_appended_total").increment(1);
        hub.appended(room, position, event);
    }
}

fn store_failed(error: StoreError) -> PublishError {
    tracing::warn!(error = %error_chain(&error), "a batch of events could not be stored");
    PublishError::Store(Arc::new(error))
}

/// Tries a batch that was rolled back again; any other failure may have been committed and is final.
pub(crate) async fn with_retry<T, F: Future<Output = Result<T, StoreError>>>(
    append: impl Fn() -> F,
) -> Result<T, StoreError> {
    let mut tries = 1;
    loop {
        match append().await {
            Err(StoreError::Conflict(_)) if tries < CONFLICT_TRIES => tries += 1,
            result => return result,
        }
    }
}

async fn emit_jobs(feed: &dyn FeedStore, hub: &Hub, jobs: Vec<EphemeralJob>) {
    let (events, replies): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.event, job.reply)).unzip();
    // Before the first tick nobody is connected who could see the time.
    let now_ms = hub.now().map_or(0, |now| now.timestamp_millis());
    let signals: Vec<Signal> = events.into_iter().filter_map(|event| ephemeral_signal(event, now_ms)).collect();
    let result = feed.emit(&signals).await.map_err(Arc::new);
    for reply in replies {
        let _ = reply.send(result.clone().map_err(PublishError::Store));
    }
}

/// Writes the frame as clients will see it into the body of a signal; every replica passes it on as it is.
fn ephemeral_signal(event: EphemeralEvent, now_ms: i64) -> Option<Signal> {
    let key = event.room.as_str().to_owned();
    let frame = EventFrame {
        event: event.event,
        room: event.room,
        payload: event.payload,
        ts: now_ms,
        msg_id: event.msg_id.to_string(),
        offset: None,
        epoch: None,
    };
    let body = JsonText::encode(&frame).ok()?;
    Some(Signal { kind: SignalKind::Ephemeral, key, pos: 0, body: Some(body) })
}
