//! The publisher: every event of a replica goes through it, those without a once-key through its lanes.
//!
//! Durable events are appended by a lane of their own (`lane.rs`). Ephemeral events are served here and travel to
//! the other replicas by hints or the change feed. A full lane makes publishers wait; nothing is dropped.

use std::sync::Arc;

use switchboard_model::feed::Signal;
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
use crate::lane::{DurableJob, DurableLane};

/// How many publishes wait for a batch before further ones wait for room.
pub(crate) const LANE_JOBS: usize = 1024;

/// The most events of one commit.
pub(crate) const BATCH_EVENTS: usize = 512;

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
    durable: DurableLane,
    ephemeral: mpsc::Receiver<EphemeralJob>,
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
        let lane = DurableLane::new(durable_jobs, rooms, Arc::clone(&hub));
        (publisher, PublisherLanes { durable: lane, ephemeral: ephemeral_jobs, feed, hub })
    }

    /// Appends one event and returns what became of it.
    ///
    /// # Errors
    /// [`PublishError`] when the outcome is unknown or nothing was done.
    pub async fn publish(&self, event: NewEvent) -> Result<AppendOutcome, PublishError> {
        let outcomes = self.publish_batch(vec![event]).await?;
        outcomes.into_iter().next().ok_or(PublishError::Stopped)
    }

    /// Appends events in order, those of one room in one commit, and returns what became of each.
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

    /// Hands the events of each room over as one job, so that a busy room delays no other.
    async fn append(&self, events: Vec<NewEvent>) -> Result<Vec<AppendOutcome>, PublishError> {
        let mut by_room: Vec<(RoomName, Vec<usize>, Vec<NewEvent>)> = Vec::new();
        for (place, event) in events.into_iter().enumerate() {
            match by_room.iter_mut().find(|(room, ..)| *room == event.room) {
                Some((_, places, events)) => {
                    places.push(place);
                    events.push(event);
                }
                None => by_room.push((event.room.clone(), vec![place], vec![event])),
            }
        }
        let mut answers = Vec::with_capacity(by_room.len());
        for (room, places, events) in by_room {
            let (reply, answer) = oneshot::channel();
            self.durable.send(DurableJob { room, events, reply }).await.map_err(|_| PublishError::Stopped)?;
            answers.push((places, answer));
        }
        let mut outcomes = Vec::new();
        for (places, answer) in answers {
            outcomes.extend(places.into_iter().zip(answer.await.map_err(|_| PublishError::Stopped)??));
        }
        outcomes.sort_unstable_by_key(|(place, _)| *place);
        Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
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
        tokio::join!(self.durable.run(&stop), run_ephemeral(self.ephemeral, &*self.feed, &self.hub, &stop));
    }
}

/// Tells the sessions of this replica of an event that was stored, before the change feed does.
pub(crate) fn tell(hub: &Hub, room: &RoomName, outcome: &AppendOutcome) {
    if let AppendOutcome::Appended { position, event } = outcome {
        metrics::counter!("switchboard_realtime_events_appended_total").increment(1);
        hub.appended(room, &position.epoch, event);
    }
}

pub(crate) fn store_failed(error: StoreError) -> PublishError {
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

/// Sends events in batches: the next one gathers while the previous one is on its way. After `stop`, works off what is
/// queued.
async fn run_ephemeral(
    mut jobs: mpsc::Receiver<EphemeralJob>,
    feed: &dyn FeedStore,
    hub: &Hub,
    stop: &CancellationToken,
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
        let more = std::iter::from_fn(|| jobs.try_recv().ok());
        let (events, replies): (Vec<_>, Vec<_>) =
            std::iter::once(first).chain(more).take(BATCH_EVENTS).map(|job| (job.event, job.reply)).unzip();
        // Before the first tick nobody is connected who could see the time.
        let now_ms = hub.now().map_or(0, |now| now.timestamp_millis());
        let signals: Vec<Signal> = events.into_iter().filter_map(|event| serve(hub, event, now_ms)).collect();
        let result = feed.broadcast(&signals).await.map_err(Arc::new);
        for reply in replies {
            let _ = reply.send(result.clone().map_err(PublishError::Store));
        }
    }
}

/// Writes the frame as clients will see it, gives it to those of this replica, and returns the signal for the others,
/// which pass it on as it is.
fn serve(hub: &Hub, event: EphemeralEvent, now_ms: i64) -> Option<Signal> {
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
    Some(hub.serve_ephemeral(&frame.room, body))
}
