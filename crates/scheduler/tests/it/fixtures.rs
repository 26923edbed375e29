//! A database with any number of replicas on it, tasks and runs, and waiting for conditions.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use switchboard_model::feed::{Tick, TickRequest};
use switchboard_model::fire::MISFIRE_GRACE;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::{InstanceId, RunId, TaskId};
use switchboard_model::instance::Role;
use switchboard_model::json_text::JsonText;
use switchboard_model::page::PageRequest;
use switchboard_model::run::{DedupeScope, NewRun, Run, RunState, Trigger};
use switchboard_model::schedule::{Every, Schedule};
use switchboard_model::span::Span;
use switchboard_model::task::{Backoff, Task, TaskSpec};
use switchboard_scheduler::{
    HistoryAges, Scheduler, SchedulerHandle, SchedulerObserver, SchedulerOptions, SystemRegistry, SystemRunner,
};
use switchboard_store_api::{RunFilter, Stores, TaskCreateOutcome, TriggerOutcome, WriteContext, Written};
use switchboard_store_sqlite::SqliteOptions;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The most that a test waits for a condition; shorter than the backstop of the loops that the feed
/// and their own timers wake.
const DEADLINE: Duration = Duration::from_secs(20);

/// The most that a test waits for what happens at a time of its own, such as a renewal.
const LONG: Duration = Duration::from_secs(120);

/// Waits until `probe` gives something; panics with what it last saw.
pub(crate) async fn eventually<T, S, F>(probe: impl FnMut() -> F) -> T
where
    S: Debug,
    F: Future<Output = Result<T, S>>,
{
    eventually_within(DEADLINE, probe).await
}

async fn eventually_within<T, S, F>(within: Duration, mut probe: impl FnMut() -> F) -> T
where
    S: Debug,
    F: Future<Output = Result<T, S>>,
{
    let give_up = Instant::now() + within;
    loop {
        match probe().await {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < give_up, "waited too long; last seen: {seen:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A fresh database.
pub(crate) struct Bench {
    pub(crate) stores: Stores,
    pub(crate) tracker: TaskTracker,
    stop: CancellationToken,
    _folder: TempDir,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tracker = TaskTracker::new();
        let stop = CancellationToken::new();
        let options = SqliteOptions::new(folder.path().join("scheduler.db"));
        let stores = switchboard_store_sqlite::open(&options, &tracker, stop.clone()).await.unwrap();
        Self { stores, tracker, stop, _folder: folder }
    }

    /// Starts a replica of all roles that calls the functions of `registry`.
    pub(crate) fn replica(&self, registry: SystemRegistry) -> Replica {
        self.replica_with(&self.stores, registry, |_| {})
    }

    /// Starts a replica that sees the database through `stores`, with options changed by `change`.
    pub(crate) fn replica_with(
        &self,
        stores: &Stores,
        registry: SystemRegistry,
        change: impl FnOnce(&mut SchedulerOptions),
    ) -> Replica {
        let replica = self.replica_without_feed(stores, registry, change);
        let (feed, observer, stop) = (self.stores.feed.clone(), replica.observer.clone(), self.stop.clone());
        let request = TickRequest { pools: vec![PoolName::default_pool()] };
        self.tracker.spawn(async move {
            let mut hints = feed.hints();
            let mut cursor = None;
            while !stop.is_cancelled() {
                if let Ok(tick) = feed.tick(cursor.as_ref(), &request).await {
                    observer.observe(&tick);
                    cursor = Some(tick.cursor);
                }
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = hints.changed() => {}
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                }
            }
        });
        replica
    }

    /// Starts a replica that learns nothing of changes, but through its observer.
    pub(crate) fn replica_without_feed(
        &self,
        stores: &Stores,
        registry: SystemRegistry,
        change: impl FnOnce(&mut SchedulerOptions),
    ) -> Replica {
        let mut options = SchedulerOptions {
            instance: InstanceId::boot("test"),
            roles: Role::ALL.to_vec(),
            pools: vec![PoolName::default_pool()],
            permits: 64,
            lease: Span::from_secs(15),
            misfire_grace: MISFIRE_GRACE,
            history: HistoryAges { runs: Span::from_secs(3_600), audit: Span::from_secs(3_600) },
        };
        change(&mut options);
        let scheduler = Scheduler::new(stores, options, vec![Arc::new(SystemRunner::new(registry))]);
        let (soft, hard) = (CancellationToken::new(), CancellationToken::new());
        let observer = scheduler.observer();
        let handle = scheduler.start(&self.tracker, soft.clone(), hard.clone());
        Replica { handle, observer, soft, hard }
    }

    /// Stops the database after its replicas; every task of theirs must end.
    pub(crate) async fn close(self, replicas: impl IntoIterator<Item = Replica>) {
        for replica in replicas {
            replica.soft.cancel();
            replica.hard.cancel();
            replica.handle.drained().await;
            assert_eq!(replica.handle.running(), 0);
        }
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(LONG, self.tracker.wait()).await.expect("every task ends");
    }

    /// Reads the feed from its beginning.
    pub(crate) async fn tick(&self) -> Tick {
        self.stores.feed.tick(None, &TickRequest { pools: vec![PoolName::default_pool()] }).await.unwrap()
    }

    pub(crate) async fn create(&self, spec: &TaskSpec) -> Task {
        let written = self.stores.tasks.create(&context(), TaskId::new(), spec).await.unwrap();
        match written {
            Written::Now(TaskCreateOutcome::Created(task)) => task,
            other => panic!("task not created: {other:?}"),
        }
    }

    pub(crate) async fn trigger(&self, task: &Task) -> RunId {
        let run = NewRun {
            id: RunId::new(),
            task_id: task.id,
            trigger: Trigger::Manual,
            input: None,
            delay: Span::default(),
            dedupe_key: None,
            dedupe_scope: DedupeScope::Active,
        };
        let outcome = self.stores.runs.trigger(&context(), &run).await.unwrap();
        assert_eq!(outcome, Written::Now(TriggerOutcome::Created(run.id)));
        run.id
    }

    /// Creates a task that calls `function` and triggers it once.
    pub(crate) async fn triggered(&self, function: &str, change: impl FnOnce(&mut TaskSpec)) -> RunId {
        let task = self.create(&spec(function, change)).await;
        self.trigger(&task).await
    }

    pub(crate) async fn run(&self, id: RunId) -> Run {
        self.stores.runs.get(id).await.unwrap().expect("the run exists")
    }

    /// Waits until a run passes `wanted`.
    pub(crate) async fn until(&self, id: RunId, wanted: impl Fn(&Run) -> bool) -> Run {
        eventually(async || {
            let run = self.run(id).await;
            if wanted(&run) { Ok(run) } else { Err(run) }
        })
        .await
    }

    /// Waits until the lease of a run is renewed.
    pub(crate) async fn until_renewed(&self, id: RunId) {
        let leased_until = self.run(id).await.lease_until;
        eventually_within(LONG, async || {
            let run = self.run(id).await;
            if run.lease_until > leased_until { Ok(()) } else { Err(run) }
        })
        .await;
    }

    /// Waits until a run is in a state.
    pub(crate) async fn until_state(&self, id: RunId, state: RunState) -> Run {
        self.until(id, |run| run.state == state).await
    }

    /// Lists the newest runs of a task, newest first.
    pub(crate) async fn runs(&self, task: TaskId) -> Vec<Run> {
        let filter = RunFilter { task_id: Some(task), state: None };
        self.stores.runs.list(&filter, &PageRequest { after: None, limit: 500 }).await.unwrap().items
    }
}

/// A running replica.
pub(crate) struct Replica {
    pub(crate) handle: SchedulerHandle,
    pub(crate) observer: SchedulerObserver,
    pub(crate) soft: CancellationToken,
    pub(crate) hard: CancellationToken,
}

pub(crate) fn context() -> WriteContext {
    WriteContext::system("test")
}

/// A task that only runs when triggered, calls `function` and never waits long between attempts.
pub(crate) fn spec(function: &str, change: impl FnOnce(&mut TaskSpec)) -> TaskSpec {
    let text = format!(r#"{{"name":"{function}","action":{{"system":{{"function":"{function}"}}}}}}"#);
    let mut spec: TaskSpec = serde_json::from_str(&text).unwrap();
    spec.backoff = Backoff { base: Span::from_millis(10), cap: Span::from_millis(40), jitter: 0.5 };
    change(&mut spec);
    spec
}

/// A task that is due every 100 ms.
pub(crate) fn every_100_ms(function: &str) -> TaskSpec {
    let every = Every { interval: Span::from_millis(100), anchor: None };
    spec(function, |spec| spec.schedule = Some(Schedule::Every(every)))
}

pub(crate) fn json(text: &str) -> JsonText {
    JsonText::parse(text).unwrap()
}
