//! The lane over a store that a test steers: which rooms are busy, when a batch may commit, and what fails.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use parking_lot::Mutex;
use switchboard_model::identity::Actor;
use switchboard_model::ids::{InstanceId, RoomId};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::room::{HistoryPage, MessageId, NewRoom, Retention, Room, RoomKind};
use switchboard_store_api::{AppendAnswer, RoomCreateOutcome, RoomTop, StoreResult, Stores, WriteContext, Written};
use switchboard_store_sqlite::{SqliteOptions, open};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::*;
use crate::hub::HubOptions;

/// Rooms of a real store, some of which somebody holds.
struct Steered {
    store: Arc<dyn RoomStore>,
    held: Mutex<HashSet<RoomName>>,
    freed: Notify,
    /// One permit lets one batch of free rooms commit.
    turns: Semaphore,
    /// How many events each batch of free rooms had when it was asked for.
    batches: Mutex<Vec<usize>>,
    asked: Notify,
    is_failing: AtomicBool,
    /// How many rooms are waited for now, and the most there ever were.
    waiting: AtomicUsize,
    most_waiting: AtomicUsize,
}

impl Steered {
    fn hold(&self, names: &[&str]) {
        self.held.lock().extend(names.iter().map(|name| room(name)));
    }

    fn free(&self, name: &str) {
        self.held.lock().remove(&room(name));
        self.freed.notify_waiters();
    }

    fn is_held(&self, room: &RoomName) -> bool {
        self.held.lock().contains(room)
    }

    /// Waits until so many batches of free rooms were asked for.
    async fn until_batches(&self, count: usize) {
        while self.batches.lock().len() < count {
            self.asked.notified().await;
        }
    }
}

#[async_trait]
impl RoomStore for Steered {
    async fn create(&self, context: &WriteContext, room: &NewRoom) -> StoreResult<Written<RoomCreateOutcome>> {
        self.store.create(context, room).await
    }

    async fn find(&self, name: &RoomName) -> StoreResult<Option<Room>> {
        self.store.find(name).await
    }

    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Room>> {
        self.store.list(page).await
    }

    async fn delete(&self, context: &WriteContext, name: &RoomName) -> StoreResult<bool> {
        self.store.delete(context, name).await
    }

    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<AppendOutcome>> {
        self.most_waiting.fetch_max(self.waiting.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if events.iter().all(|event| !self.is_held(&event.room)) {
                break;
            }
            freed.await;
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.store.append(events).await
    }

    async fn append_unless_busy(&self, events: &[NewEvent]) -> StoreResult<Vec<Option<AppendOutcome>>> {
        self.batches.lock().push(events.len());
        self.asked.notify_one();
        if let Ok(turn) = self.turns.acquire().await {
            turn.forget();
        }
        if self.is_failing.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("the test says so".into()));
        }
        let is_held: Vec<bool> = events.iter().map(|event| self.is_held(&event.room)).collect();
        let free = events.iter().zip(&is_held).filter(|(_, is_held)| !**is_held);
        let free: Vec<NewEvent> = free.map(|(event, _)| event.clone()).collect();
        let mut outcomes = self.store.append(&free).await?.into_iter();
        Ok(is_held.into_iter().map(|is_held| if is_held { None } else { outcomes.next() }).collect())
    }

    async fn append_once(
        &self,
        context: &WriteContext,
        events: &[NewEvent],
        answer: &AppendAnswer,
    ) -> StoreResult<Written<Vec<AppendOutcome>>> {
        self.store.append_once(context, events, answer).await
    }

    async fn history(&self, name: &RoomName, after: i64, limit: u32) -> StoreResult<Option<HistoryPage>> {
        self.store.history(name, after, limit).await
    }

    async fn tops(&self, names: &[RoomName]) -> StoreResult<Vec<RoomTop>> {
        self.store.tops(names).await
    }

    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.store.sweep(limit).await
    }
}

/// A running lane.
struct Place {
    rooms: Arc<Steered>,
    jobs: mpsc::Sender<DurableJob>,
    stores: Stores,
    tracker: TaskTracker,
    stop: CancellationToken,
    _folder: TempDir,
}

type Answer = oneshot::Receiver<Result<Vec<AppendOutcome>, PublishError>>;

impl Place {
    /// Starts a lane over some rooms; `turns` batches may commit.
    async fn new(names: &[&str], turns: usize) -> Self {
        let folder = TempDir::new().unwrap();
        let options = SqliteOptions::new(folder.path().join("lane.db"));
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let stores = open(&options, &TaskTracker::new(), CancellationToken::new()).await.unwrap();
        for name in names {
            let new = NewRoom {
                id: RoomId::new(),
                name: room(name),
                kind: RoomKind::Public,
                retention: Retention::default(),
            };
            stores.rooms.create(&WriteContext::system("test"), &new).await.unwrap();
        }
        let rooms = Arc::new(Steered {
            store: Arc::clone(&stores.rooms),
            held: Mutex::default(),
            freed: Notify::new(),
            turns: Semaphore::new(turns),
            batches: Mutex::default(),
            asked: Notify::new(),
            is_failing: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            most_waiting: AtomicUsize::new(0),
        });
        let options = HubOptions { instance: InstanceId::boot("test"), sockets_per_user: 1 };
        let hub = Hub::new(&stores, options, TaskTracker::new(), stop.clone());
        let (jobs, waiting) = mpsc::channel(LANE_JOBS);
        let lane = DurableLane::new(waiting, rooms.clone(), hub);
        let stopped = stop.clone();
        tracker.spawn(async move { lane.run(&stopped).await });
        tracker.close();
        Self { rooms, jobs, stores, tracker, stop, _folder: folder }
    }

    /// Hands one event over, without waiting for what becomes of it.
    fn give(&self, name: &str, payload: usize) -> Answer {
        let (reply, answer) = oneshot::channel();
        let event = NewEvent {
            room: room(name),
            event: "note".parse().unwrap(),
            payload: JsonText::parse(payload.to_string()).unwrap(),
            msg_id: MessageId::given_or_new(None),
            sender: Actor::System("test"),
        };
        assert!(self.jobs.try_send(DurableJob { room: room(name), events: vec![event], reply }).is_ok());
        answer
    }

    /// Reads what was stored in a room, in order.
    async fn payloads(&self, name: &str) -> Vec<usize> {
        let page = self.stores.rooms.history(&room(name), 0, 500).await.unwrap().unwrap();
        page.events.iter().map(|event| event.payload.as_str().parse().unwrap()).collect()
    }
}

fn room(name: &str) -> RoomName {
    name.parse().unwrap()
}

/// Waits for the answer of a job, which must have appended its event.
async fn appended(answer: Answer) {
    let outcomes = answer.await.unwrap().unwrap();
    assert!(matches!(outcomes[..], [AppendOutcome::Appended { .. }]), "{outcomes:?}");
}

async fn all_appended(answers: Vec<Answer>) {
    join_all(answers.into_iter().map(appended)).await;
}

#[tokio::test]
async fn what_comes_while_a_batch_commits_shares_the_next_one() {
    let place = Place::new(&["a", "b"], 0).await;
    let mut answers = vec![place.give("a", 0)];
    place.rooms.until_batches(1).await;
    answers.extend((1..=40).map(|n| place.give(if n % 2 == 0 { "a" } else { "b" }, n)));
    place.rooms.turns.add_permits(2);
    all_appended(answers).await;
    assert_eq!(*place.rooms.batches.lock(), [1, 40]);
    assert_eq!(place.payloads("a").await, (0..=40).step_by(2).collect::<Vec<_>>());
    assert_eq!(place.payloads("b").await, (1..=40).step_by(2).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_batch_has_a_bounded_number_of_events() {
    let place = Place::new(&["a"], 0).await;
    let mut answers = vec![place.give("a", 0)];
    place.rooms.until_batches(1).await;
    answers.extend((1..=BATCH_EVENTS + 10).map(|n| place.give("a", n)));
    place.rooms.turns.add_permits(3);
    all_appended(answers).await;
    assert_eq!(*place.rooms.batches.lock(), [1, BATCH_EVENTS, 10]);
}

#[tokio::test]
async fn a_busy_room_keeps_its_order_and_delays_no_other() {
    let place = Place::new(&["busy", "free"], Semaphore::MAX_PERMITS).await;
    place.rooms.hold(&["busy"]);
    let mut busy = vec![place.give("busy", 0)];
    appended(place.give("free", 0)).await;
    for n in 1..=20 {
        busy.push(place.give("busy", n));
        appended(place.give("free", n)).await;
    }
    assert!(busy.iter_mut().all(|answer| answer.now_or_never().is_none()), "they wait");
    assert!(place.payloads("busy").await.is_empty());
    place.rooms.free("busy");
    all_appended(busy).await;
    assert_eq!(place.payloads("busy").await, (0..=20).collect::<Vec<_>>());
    assert_eq!(place.payloads("free").await, (0..=20).collect::<Vec<_>>());
    // It is a room like any other again.
    let batches = place.rooms.batches.lock().len();
    appended(place.give("busy", 21)).await;
    assert_eq!(place.rooms.batches.lock().len(), batches + 1);
}

#[tokio::test]
async fn only_so_many_busy_rooms_are_waited_for_at_once() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let place = Place::new(&names, Semaphore::MAX_PERMITS).await;
    place.rooms.hold(&names);
    let answers: Vec<Answer> = names.iter().map(|name| place.give(name, 7)).collect();
    while place.rooms.waiting.load(Ordering::SeqCst) < WAITING_ROOMS {
        tokio::task::yield_now().await;
    }
    for name in names {
        place.rooms.free(name);
    }
    all_appended(answers).await;
    assert_eq!(place.rooms.most_waiting.load(Ordering::SeqCst), WAITING_ROOMS);
}

#[tokio::test]
async fn a_busy_room_has_bounded_room_beside_the_lane() {
    let place = Place::new(&["busy", "free"], Semaphore::MAX_PERMITS).await;
    place.rooms.hold(&["busy"]);
    let mut waiting = vec![place.give("busy", 0)];
    // The first one is on its way; the others gather behind it.
    while place.rooms.waiting.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    for n in 0..LANE_JOBS {
        waiting.push(place.give("busy", n + 1));
        if n % 100 == 0 {
            // The channel itself is bounded, too: this waits until it is empty.
            appended(place.give("free", n)).await;
        }
    }
    let refused = place.give("busy", 0).await.unwrap();
    assert!(matches!(refused, Err(PublishError::Store(_))), "{refused:?}");
    appended(place.give("free", 0)).await;
    place.rooms.free("busy");
    all_appended(waiting).await;
    assert_eq!(place.stores.rooms.tops(&[room("busy")]).await.unwrap()[0].top, 1 + LANE_JOBS as i64);
}

#[tokio::test]
async fn a_batch_that_fails_is_told_to_everybody_in_it_and_the_next_one_goes_on() {
    let place = Place::new(&["a"], 1).await;
    place.rooms.is_failing.store(true, Ordering::SeqCst);
    let failed = place.give("a", 0).await.unwrap();
    assert!(matches!(failed, Err(PublishError::Store(_))), "{failed:?}");
    place.rooms.is_failing.store(false, Ordering::SeqCst);
    place.rooms.turns.add_permits(1);
    appended(place.give("a", 1)).await;
    assert_eq!(place.payloads("a").await, [1]);
}

#[tokio::test]
async fn a_lane_that_stops_finishes_what_it_was_given() {
    let place = Place::new(&["a", "busy"], 0).await;
    place.rooms.hold(&["busy"]);
    let mut answers = vec![place.give("a", 0)];
    place.rooms.until_batches(1).await;
    answers.extend([place.give("busy", 1), place.give("a", 2)]);
    place.stop.cancel();
    place.jobs.closed().await;
    place.rooms.turns.add_permits(2);
    place.rooms.until_batches(2).await;
    place.rooms.free("busy");
    all_appended(answers).await;
    place.tracker.wait().await;
}
