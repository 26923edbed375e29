//! The lane of durable events: batches by natural batching, and busy rooms apart from all others.
//!
//! While one batch commits, the next one gathers, so that many publishers share a commit and a single one waits for
//! nothing. A room that somebody else holds is passed over: its events of the batch, and all that come after them,
//! gather beside the lane until the room is free, so that they stay in order and delay nobody.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use switchboard_model::identity::RoomName;
use switchboard_model::room::NewEvent;
use switchboard_store_api::{AppendOutcome, RoomStore, StoreError};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::hub::Hub;
use crate::publisher::{BATCH_EVENTS, LANE_JOBS, PublishError, store_failed, tell, with_retry};

/// How many busy rooms are waited for in the database at the same time; each takes a connection.
const WAITING_ROOMS: usize = 3;

/// Where what became of the events of a job goes.
type Reply = oneshot::Sender<Result<Vec<AppendOutcome>, PublishError>>;

/// Events of one room that are appended in one commit.
pub(crate) struct DurableJob {
    pub(crate) room: RoomName,
    pub(crate) events: Vec<NewEvent>,
    pub(crate) reply: Reply,
}

/// What has ended.
enum Done {
    /// A batch; these jobs found their rooms busy.
    Batch(Vec<DurableJob>),
    /// The wait for one room, whose jobs are done.
    Room(RoomName),
}

pub(crate) struct DurableLane {
    jobs: mpsc::Receiver<DurableJob>,
    rooms: Arc<dyn RoomStore>,
    hub: Arc<Hub>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    is_appending: bool,
    /// Rooms that are waited for, with the jobs that came since.
    busy: HashMap<RoomName, Vec<DurableJob>>,
    waits: Arc<Semaphore>,
}

impl DurableLane {
    pub(crate) fn new(jobs: mpsc::Receiver<DurableJob>, rooms: Arc<dyn RoomStore>, hub: Arc<Hub>) -> Self {
        Self {
            jobs,
            rooms,
            hub,
            running: FuturesUnordered::new(),
            is_appending: false,
            busy: HashMap::new(),
            waits: Arc::new(Semaphore::new(WAITING_ROOMS)),
        }
    }

    /// Works until `stop`, then finishes what was already handed over.
    pub(crate) async fn run(mut self, stop: &CancellationToken) {
        let (mut is_stopping, mut is_closed) = (false, false);
        while !is_closed || !self.running.is_empty() {
            tokio::select! {
                biased;
                Some(done) = self.running.next() => self.settle(done),
                job = self.jobs.recv(), if !self.is_appending && !is_closed => match job {
                    Some(job) => self.begin(job),
                    None => is_closed = true,
                },
                () = stop.cancelled(), if !is_stopping => {
                    is_stopping = true;
                    self.jobs.close();
                }
            }
        }
    }

    /// Starts a batch with whatever else is queued.
    fn begin(&mut self, first: DurableJob) {
        let mut batch = Vec::new();
        let (mut total, mut next) = (0, Some(first));
        while let Some(job) = next {
            if self.busy.contains_key(&job.room) {
                self.put_aside(job);
            } else {
                total += job.events.len();
                batch.push(job);
            }
            next = if total < BATCH_EVENTS { self.jobs.try_recv().ok() } else { None };
        }
        if !batch.is_empty() {
            self.is_appending = true;
            let (rooms, hub) = (Arc::clone(&self.rooms), Arc::clone(&self.hub));
            self.running.push(Box::pin(async move { Done::Batch(append_free(&*rooms, &hub, batch).await) }));
        }
    }

    fn settle(&mut self, done: Done) {
        match done {
            Done::Batch(busy) => {
                self.is_appending = false;
                let mut found = Vec::new();
                for job in busy {
                    if !self.busy.contains_key(&job.room) {
                        found.push(job.room.clone());
                        self.busy.insert(job.room.clone(), Vec::new());
                    }
                    self.put_aside(job);
                }
                metrics::counter!("switchboard_realtime_rooms_busy_total").increment(found.len() as u64);
                found.into_iter().for_each(|room| self.wait_for(room));
            }
            Done::Room(room) => self.wait_for(room),
        }
    }

    /// Keeps a job of a busy room. When too many wait already, it is refused rather than let delay other rooms.
    fn put_aside(&mut self, job: DurableJob) {
        let waiting = self.busy.get_mut(&job.room).filter(|waiting| waiting.len() < LANE_JOBS);
        match waiting {
            Some(waiting) => waiting.push(job),
            None => {
                let error = StoreError::Unavailable("too many events wait for a room that somebody else holds".into());
                let _ = job.reply.send(Err(store_failed(error)));
            }
        }
    }

    /// Appends what has gathered for a busy room as soon as that is free; a room for which nothing has is busy no more.
    fn wait_for(&mut self, room: RoomName) {
        let Some(waiting) = self.busy.get_mut(&room) else { return };
        let mut total = 0;
        let before = waiting.iter().map_while(|job| {
            let before = total;
            total += job.events.len();
            (before < BATCH_EVENTS).then_some(())
        });
        let count = before.count();
        let jobs: Vec<DurableJob> = waiting.drain(..count).collect();
        if jobs.is_empty() {
            self.busy.remove(&room);
            return;
        }
        let (rooms, hub, waits) = (Arc::clone(&self.rooms), Arc::clone(&self.hub), Arc::clone(&self.waits));
        self.running.push(Box::pin(async move {
            // Nobody closes the semaphore.
            let _permit = waits.acquire().await;
            append_all(&*rooms, &hub, jobs).await;
            Done::Room(room)
        }));
    }
}

/// Appends the jobs whose rooms are free, and returns the others.
async fn append_free(rooms: &dyn RoomStore, hub: &Hub, jobs: Vec<DurableJob>) -> Vec<DurableJob> {
    let (batch, events) = Batch::new(jobs);
    let outcomes = with_retry(|| rooms.append_unless_busy(&events)).await;
    batch.settle(hub, events, outcomes)
}

/// Appends jobs, however long others hold their room.
async fn append_all(rooms: &dyn RoomStore, hub: &Hub, jobs: Vec<DurableJob>) {
    let (batch, events) = Batch::new(jobs);
    let outcomes = with_retry(|| rooms.append(&events)).await;
    batch.settle(hub, events, outcomes.map(|outcomes| outcomes.into_iter().map(Some).collect()));
}

/// Who waits for a batch: the room, the number of events, and where the answer goes.
struct Batch(Vec<(RoomName, usize, Reply)>);

impl Batch {
    fn new(jobs: Vec<DurableJob>) -> (Self, Vec<NewEvent>) {
        let mut events = Vec::new();
        let mut waiting = Vec::with_capacity(jobs.len());
        for job in jobs {
            waiting.push((job.room, job.events.len(), job.reply));
            events.extend(job.events);
        }
        (Self(waiting), events)
    }

    /// Tells the sessions of this replica and the publishers; returns the jobs whose rooms were busy.
    fn settle(
        self,
        hub: &Hub,
        events: Vec<NewEvent>,
        outcomes: Result<Vec<Option<AppendOutcome>>, StoreError>,
    ) -> Vec<DurableJob> {
        let mut busy = Vec::new();
        let (mut events, mut outcomes) = match outcomes {
            Ok(outcomes) => (events.into_iter(), outcomes.into_iter()),
            Err(error) => {
                let error = store_failed(error);
                for (.., reply) in self.0 {
                    let _ = reply.send(Err(error.clone()));
                }
                return busy;
            }
        };
        for (room, count, reply) in self.0 {
            let events: Vec<NewEvent> = events.by_ref().take(count).collect();
            let outcomes: Vec<_> = outcomes.by_ref().take(count).collect();
            match outcomes.into_iter().collect::<Option<Vec<_>>>() {
                Some(outcomes) => {
                    outcomes.iter().for_each(|outcome| tell(hub, &room, outcome));
                    // A caller that went away does not need its answer.
                    let _ = reply.send(Ok(outcomes));
                }
                None => busy.push(DurableJob { room, events, reply }),
            }
        }
        busy
    }
}

#[cfg(test)]
mod tests;
