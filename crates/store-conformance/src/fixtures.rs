//! Builders and waiting: tasks, runs, rooms and events as the cases use them. Knows no backend.

use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use chrono::TimeDelta;
use futures_util::future::join_all;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use switchboard_model::Timestamp;
use switchboard_model::feed::{FeedCursor, Signal, SignalKind, Tick, TickRequest};
use switchboard_model::fire::{DueTask, FirePlan, PlannedRun};
use switchboard_model::identity::{Actor, ClientKey, PoolName, RoomName};
use switchboard_model::ids::{InstanceId, RoomId, RunId, TaskId};
use switchboard_model::instance::{NewInstance, Role};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::room::{MessageId, NewEvent, NewRoom, Retention, Room, RoomKind};
use switchboard_model::run::{DedupeScope, Ending, Finish, LeasedRun, NewRun, Run, RunState, Trigger};
use switchboard_model::schedule::{Every, Schedule};
use switchboard_model::span::Span;
use switchboard_model::task::{Task, TaskSpec};
use switchboard_store_api::{
    AppendOutcome, FinishOutcome, LeaseRequest, OnceClaim, OnceRecord, RoomCreateOutcome, RunFilter, StoreResult,
    Stores, TaskCreateOutcome, TriggerOutcome, WorkerKind, WriteContext, Written,
};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use crate::Backend;

/// A lease that outlives its case.
pub(crate) const LONG: Span = Span::from_secs(600);
/// A lease that is over as soon as a case waits for it.
pub(crate) const SHORT: Span = Span::from_millis(60);
/// How long a claim is remembered that no case outlives.
pub(crate) const HOUR: Span = Span::from_secs(3600);
/// The most that a case waits for a condition.
const DEADLINE: Duration = Duration::from_secs(120);
/// A page that holds all rows of a case.
pub(crate) const ALL: PageRequest = PageRequest { after: None, limit: 500 };

/// The waiting for one condition; the only place where a case lets time pass.
pub(crate) struct Patience {
    give_up: Instant,
}

impl Patience {
    /// Starts to wait.
    pub(crate) fn new() -> Self {
        Self { give_up: Instant::now() + DEADLINE }
    }

    /// Lets a moment pass; panics with what was seen when it took too long.
    pub(crate) async fn wait(&self, seen: &impl Debug) {
        assert!(Instant::now() < self.give_up, "waited too long; last seen: {seen:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls `probe` until it is `Ok`; panics with the last state that it saw.
pub(crate) async fn eventually<T, S, F>(mut probe: impl FnMut() -> F) -> T
where
    S: Debug,
    F: Future<Output = Result<T, S>>,
{
    let patience = Patience::new();
    loop {
        match probe().await {
            Ok(found) => return found,
            Err(seen) => patience.wait(&seen).await,
        }
    }
}

/// Reads until `wanted` holds for what was read, and returns that.
pub(crate) async fn until<T: Debug, F: Future<Output = T>>(read: impl Fn() -> F, wanted: impl Fn(&T) -> bool) -> T {
    eventually(async || {
        let found = read().await;
        if wanted(&found) { Ok(found) } else { Err(found) }
    })
    .await
}

/// Makes the random numbers of a case; a failing test shows the seed.
pub(crate) fn random() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// Opens several replicas on one database.
pub(crate) async fn replicas(backend: &dyn Backend, count: usize) -> Vec<Stores> {
    join_all((0..count).map(|_| backend.stores())).await
}

/// Returns database time.
pub(crate) async fn database_time(stores: &Stores) -> Timestamp {
    stores.feed.tick(None, &TickRequest::default()).await.unwrap().now
}

/// Waits until database time is past `instant`.
pub(crate) async fn wait_past(stores: &Stores, instant: Timestamp) {
    until(|| database_time(stores), |now| *now > instant).await;
}

/// Reads a whole list in pages of `limit` rows.
pub(crate) async fn pages<T>(limit: u32, list: impl AsyncFn(PageRequest) -> StoreResult<Page<T>>) -> Vec<T> {
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = list(PageRequest { after, limit }).await.unwrap();
        assert!(page.items.len() <= limit as usize, "a page holds no more than it may");
        assert!(page.next_cursor.is_none() || !page.items.is_empty(), "a page makes progress");
        found.extend(page.items);
        after = page.next_cursor;
        if after.is_none() {
            return found;
        }
    }
}

// Contexts.

/// A context without any claim or audit entry.
pub(crate) fn system() -> WriteContext {
    WriteContext::system("conformance")
}

/// A context that claims `key` for a request with the given body.
pub(crate) fn once(key: &str, body: u8, ttl: Span) -> WriteContext {
    let claim = OnceClaim { scope: "tests".to_owned(), key: key.to_owned(), request_hash: [body; 32], ttl };
    WriteContext { once: Some(claim), ..system() }
}

/// Unwraps the outcome of a write that carried no once-key.
pub(crate) fn now<T: Debug>(written: Written<T>) -> T {
    match written {
        Written::Now(outcome) => outcome,
        other => panic!("expected an effect, found {other:?}"),
    }
}

/// What a repeated request is answered with whose first one made `result_id`.
pub(crate) fn replayed<T>(result_id: Uuid) -> Written<T> {
    Written::Replayed(OnceRecord { result_id, result: None })
}

// Tasks.

/// A task that only runs when triggered, changed by `change`.
pub(crate) fn spec(name: &str, change: impl FnOnce(&mut TaskSpec)) -> TaskSpec {
    let text = r#"{"name":"x","action":{"system":{"function":"nothing"}}}"#;
    let mut spec: TaskSpec = serde_json::from_str(text).unwrap();
    spec.name = name.parse().unwrap();
    change(&mut spec);
    spec
}

/// A schedule on a grid that goes through the start of the year 2020.
pub(crate) fn every(interval: Span) -> Option<Schedule> {
    Some(Schedule::Every(Every { interval, anchor: Some("2020-01-01T00:00:00Z".parse().unwrap()) }))
}

/// A task of the grid whose occurrences lie so far apart that none comes during a case.
pub(crate) fn scheduled(name: &str, change: impl FnOnce(&mut TaskSpec)) -> TaskSpec {
    spec(name, |spec| {
        spec.schedule = every(Span::from_secs(100 * 365 * 86_400));
        change(spec);
    })
}

/// Creates a task.
pub(crate) async fn create(stores: &Stores, spec: &TaskSpec) -> Task {
    match now(stores.tasks.create(&system(), TaskId::new(), spec).await.unwrap()) {
        TaskCreateOutcome::Created(task) => task,
        other => panic!("task not created: {other:?}"),
    }
}

/// Reads a task that must exist.
pub(crate) async fn task(stores: &Stores, id: TaskId) -> Task {
    stores.tasks.get(id).await.unwrap().expect("the task exists")
}

/// Plans runs of a task at `count` instants, a second apart from 2025 on, whatever its schedule says; the next
/// occurrence moves by an hour.
pub(crate) fn plan(task: &Task, first: u32, count: u32) -> FirePlan {
    let next_run_at = task.next_run_at.expect("the task is armed");
    let runs = (first..first + count).map(|n| PlannedRun { scheduled_for: occurrence(n), is_catch_up: false });
    FirePlan {
        task: DueTask { id: task.id, spec: task.spec.clone(), next_run_at, version: task.version },
        runs: runs.collect(),
        skips: vec![],
        next_run_at: Some(next_run_at + TimeDelta::hours(1)),
    }
}

/// The instants at which [`plan`] puts its runs.
pub(crate) fn occurrence(n: u32) -> Timestamp {
    "2025-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + TimeDelta::seconds(n.into())
}

/// Creates a task under `spec` and fires `count` runs of it at once.
pub(crate) async fn fired(stores: &Stores, spec: &TaskSpec, count: u32) -> Task {
    let task = create(stores, spec).await;
    let report = stores.tasks.fire(&[plan(&task, 0, count)]).await.unwrap();
    assert_eq!(report.runs, u64::from(count));
    task
}

// Runs.

/// A manual run without input, delay or key.
pub(crate) fn new_run(task_id: TaskId) -> NewRun {
    NewRun {
        id: RunId::new(),
        task_id,
        trigger: Trigger::Manual,
        input: None,
        delay: Span::default(),
        dedupe_key: None,
        dedupe_scope: DedupeScope::Active,
    }
}

/// Makes a run that must be accepted.
pub(crate) async fn trigger(stores: &Stores, run: NewRun) -> RunId {
    let outcome = now(stores.runs.trigger(&system(), &run).await.unwrap());
    assert_eq!(outcome, TriggerOutcome::Created(run.id));
    run.id
}

/// Creates a task under `spec` and triggers `count` runs of it, oldest first.
pub(crate) async fn triggered(stores: &Stores, spec: &TaskSpec, count: usize) -> Vec<RunId> {
    let task = create(stores, spec).await;
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(trigger(stores, new_run(task.id)).await);
    }
    ids
}

/// Asks for runs of the default pool.
pub(crate) fn request(limit: u32, lease: Span) -> LeaseRequest {
    LeaseRequest {
        holder: InstanceId::boot("worker"),
        kind: WorkerKind::Replica,
        pools: vec![PoolName::default_pool()],
        limit,
        lease,
        request: None,
    }
}

/// Leases until a pass says that nothing more can be had.
pub(crate) async fn lease(stores: &Stores, limit: u32, lease: Span) -> Vec<LeasedRun> {
    let mut request = request(limit, lease);
    let mut runs = Vec::new();
    let patience = Patience::new();
    loop {
        let batch = stores.runs.lease(&request).await.unwrap();
        request.limit -= u32::try_from(batch.runs.len()).unwrap();
        runs.extend(batch.runs);
        if !batch.again || request.limit == 0 {
            return runs;
        }
        patience.wait(&runs).await;
    }
}

/// Leases the one run that can be leased.
pub(crate) async fn lease_one(stores: &Stores, length: Span) -> LeasedRun {
    let mut runs = lease(stores, 10, length).await;
    assert_eq!(runs.len(), 1, "one run to lease, found {runs:?}");
    runs.remove(0)
}

/// Reports the ending of one leased run.
pub(crate) async fn finish(stores: &Stores, run: &LeasedRun, ending: Ending) -> FinishOutcome {
    let outcomes = stores.runs.finish(&[Finish { id: run.id, fence: run.fence, ending }]).await.unwrap();
    assert_eq!(outcomes.len(), 1);
    outcomes[0]
}

/// Reads a run that must exist.
pub(crate) async fn run(stores: &Stores, id: RunId) -> Run {
    stores.runs.get(id).await.unwrap().expect("the run exists")
}

/// Reads the states of runs, in the order of `ids`.
pub(crate) async fn states(stores: &Stores, ids: &[RunId]) -> Vec<RunState> {
    join_all(ids.iter().map(|id| run(stores, *id))).await.iter().map(|run| run.state).collect()
}

/// Lists all runs that pass the filter; a case has at most a few pages of them.
pub(crate) async fn list(stores: &Stores, filter: RunFilter) -> Vec<Run> {
    let mut page = ALL;
    let mut runs = Vec::new();
    loop {
        let found = stores.runs.list(&filter, &page).await.unwrap();
        runs.extend(found.items);
        match found.next_cursor {
            Some(cursor) => page.after = Some(cursor),
            None => return runs,
        }
    }
}

/// Lists all runs in a state.
pub(crate) async fn in_state(stores: &Stores, state: RunState) -> Vec<Run> {
    list(stores, RunFilter { state: Some(state), ..RunFilter::default() }).await
}

/// Waits until the lease of a run has expired.
pub(crate) async fn expire(stores: &Stores, id: RunId) {
    let until = run(stores, id).await.lease_until.expect("the run is leased");
    wait_past(stores, until).await;
}

// Rooms.

/// Parses a room name.
pub(crate) fn named(name: &str) -> RoomName {
    name.parse().unwrap()
}

/// A public room with the default retention.
pub(crate) fn new_room(name: &str) -> NewRoom {
    NewRoom { id: RoomId::new(), name: named(name), kind: RoomKind::Public, retention: Retention::default() }
}

/// Creates a room.
pub(crate) async fn create_room(stores: &Stores, room: &NewRoom) -> Room {
    match now(stores.rooms.create(&system(), room).await.unwrap()) {
        RoomCreateOutcome::Created(room) => room,
        other => panic!("room not created: {other:?}"),
    }
}

/// An event of the system, with a payload and without a message id of its own.
pub(crate) fn event(room: &str, payload: &str) -> NewEvent {
    NewEvent {
        room: named(room),
        event: "note".parse().unwrap(),
        payload: json(payload),
        msg_id: MessageId::given_or_new(None),
        sender: Actor::System("conformance"),
    }
}

/// The same event with a message id that its sender gave.
pub(crate) fn with_id(event: NewEvent, id: &str) -> NewEvent {
    NewEvent { msg_id: MessageId::Given(id.parse::<ClientKey>().unwrap()), ..event }
}

/// Appends events that must all be accepted, and returns their offsets.
pub(crate) async fn append(stores: &Stores, events: &[NewEvent]) -> Vec<i64> {
    let outcomes = stores.rooms.append(events).await.unwrap();
    let offset = |outcome: &AppendOutcome| match outcome {
        AppendOutcome::Appended { position, .. } => position.offset,
        other => panic!("event not appended: {other:?}"),
    };
    outcomes.iter().map(offset).collect()
}

/// Parses opaque JSON.
pub(crate) fn json(text: &str) -> JsonText {
    JsonText::parse(text).unwrap()
}

// The feed.

/// One replica that follows the feed.
pub(crate) struct Reader {
    stores: Stores,
    cursor: FeedCursor,
}

impl Reader {
    /// Starts at the end of the feed.
    pub(crate) async fn start(stores: &Stores) -> Self {
        let tick = stores.feed.tick(None, &TickRequest::default()).await.unwrap();
        Self { stores: stores.clone(), cursor: tick.cursor }
    }

    /// Ticks once.
    pub(crate) async fn tick(&mut self) -> Tick {
        let tick = self.stores.feed.tick(Some(&self.cursor), &TickRequest::default()).await.unwrap();
        assert!(!tick.resync, "the feed lost something");
        self.cursor = tick.cursor.clone();
        tick
    }

    /// Returns every signal that was committed before this call and not read yet.
    pub(crate) async fn signals(&mut self) -> Vec<Signal> {
        let end = Signal { kind: SignalKind::Ephemeral, key: "end".to_owned(), pos: 0, body: Some(JsonText::null()) };
        self.stores.feed.emit(std::slice::from_ref(&end)).await.unwrap();
        let mut found = Vec::new();
        let patience = Patience::new();
        loop {
            found.extend(self.tick().await.signals);
            if let Some(index) = found.iter().position(|signal| *signal == end) {
                found.remove(index);
                return found;
            }
            patience.wait(&found).await;
        }
    }

    /// Returns the kinds and keys of [`Self::signals`], sorted.
    pub(crate) async fn changes(&mut self) -> Vec<(SignalKind, String)> {
        let mut changes: Vec<_> = self.signals().await.into_iter().map(|signal| (signal.kind, signal.key)).collect();
        changes.sort();
        changes
    }
}

// Replicas.

/// A replica that boots under `name`.
pub(crate) fn new_instance(name: &str, roles: &[Role]) -> NewInstance {
    NewInstance {
        id: InstanceId::boot(name),
        name: name.to_owned(),
        version: "1.2.3".to_owned(),
        schema_version: 4,
        roles: roles.to_vec(),
        pools: vec![PoolName::default_pool()],
        pool_size: 10,
        key_check: "a=1 b=2".to_owned(),
    }
}

// Races.

/// Runs futures in parallel and returns what they gave, in the order in which they ended.
pub(crate) async fn together<F>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    futures.into_iter().collect::<JoinSet<_>>().join_all().await
}

/// Starts `count` contenders, spread over the replicas, and returns what they gave.
pub(crate) async fn contend<F>(
    stores: &[Stores],
    count: usize,
    contender: impl Fn(Stores, usize) -> F,
) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    together((0..count).map(|n| contender(stores[n % stores.len()].clone(), n))).await
}

/// Polls a future at most `polls` times and then drops it, as a caller that goes away does.
pub(crate) async fn abandoned<F: Future>(future: F, mut polls: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if polls <= 1 => Poll::Ready(None),
        Poll::Pending => {
            polls -= 1;
            Poll::Pending
        }
    })
    .await
}
