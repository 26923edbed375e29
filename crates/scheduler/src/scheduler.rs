//! Wiring: from options and stores to running loops, and their two-phase stop.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use switchboard_model::identity::PoolName;
use switchboard_model::ids::InstanceId;
use switchboard_model::instance::Role;
use switchboard_model::span::Span;
use switchboard_store_api::{LeaseRequest, Stores, WorkerKind};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::actions::{ActionRunner, NoOutput, OutputSink};
use crate::activation::{Activity, LoopHandle, LoopStatus};
use crate::coverage::Coverage;
use crate::dispatch::Dispatch;
use crate::execute::Executor;
use crate::finish::{self, Finisher};
use crate::fire::Fire;
use crate::heartbeat::Heartbeat;
use crate::lease::Held;
use crate::loops::SchedulerLoop;
use crate::observer::{SchedulerObserver, Wakes};
use crate::promote::Promote;
use crate::pull::PullQueue;
use crate::recover::Recover;
use crate::relay::Relay;
use crate::replay::Replay;
use crate::sweep::HistoryAges;
use crate::system::{SystemRegistry, SystemRunner};

/// What a replica does and how much of it.
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Who will hold the leases.
    pub instance: InstanceId,
    /// What the replica does; loops of other roles are not started.
    pub roles: Vec<Role>,
    /// The pools that its worker serves, beside that of upkeep ([`PoolName::SYSTEM`]).
    pub pools: Vec<PoolName>,
    /// The most runs at the same time on this replica.
    pub permits: u32,
    /// How long a lease holds without renewal; it is renewed at a third.
    pub lease: Span,
    /// How late an occurrence may be noticed before it counts as missed.
    pub misfire_grace: Span,
    /// How long what has happened is remembered.
    pub history: HistoryAges,
}

/// The scheduler of one replica, not started yet.
pub struct Scheduler {
    stores: Stores,
    options: SchedulerOptions,
    runners: HashMap<&'static str, Arc<dyn ActionRunner>>,
    output: Arc<dyn OutputSink>,
    wakes: Arc<Wakes>,
    held: Arc<Held>,
}

impl Scheduler {
    /// Makes a scheduler that executes the actions for which there is a runner. Without one for
    /// `system`, it brings its own with the functions of [`SystemRegistry::standard`].
    #[must_use]
    pub fn new(stores: &Stores, mut options: SchedulerOptions, runners: Vec<Arc<dyn ActionRunner>>) -> Self {
        if !options.pools.iter().any(|pool| pool.as_str() == PoolName::SYSTEM) {
            options.pools.push(PoolName::system_pool());
        }
        let system = SystemRunner::new(SystemRegistry::standard(stores, options.history));
        let own: Arc<dyn ActionRunner> = Arc::new(system);
        let runners = std::iter::once(own).chain(runners).map(|runner| (runner.kind(), runner)).collect();
        let held = Arc::new(Held::new(options.lease));
        Self { stores: stores.clone(), options, runners, output: Arc::new(NoOutput), wakes: Arc::default(), held }
    }

    /// Says where the output of runs goes, which is nowhere otherwise.
    #[must_use]
    pub fn with_output(self, output: Arc<dyn OutputSink>) -> Self {
        Self { output, ..self }
    }

    /// Returns the pools that its worker serves, all of them.
    #[must_use]
    pub fn pools(&self) -> &[PoolName] {
        &self.options.pools
    }

    /// Returns what moves the schedule clock of the stores, if a test may do that.
    #[must_use]
    pub fn replay(&self) -> Option<Replay> {
        Replay::new(&self.stores, &self.wakes, &self.held)
    }

    /// Returns what the change feed is to call with each tick.
    #[must_use]
    pub fn observer(&self) -> SchedulerObserver {
        let serves = self.options.roles.contains(&Role::Worker);
        let pools = if serves { self.options.pools.clone().into() } else { Arc::default() };
        SchedulerObserver { wakes: self.wakes.clone(), held: self.held.clone(), pools }
    }

    /// Returns what external workers lease runs from.
    #[must_use]
    pub fn pull_queue(&self) -> PullQueue {
        PullQueue { runs: self.stores.runs.clone(), wakes: self.wakes.clone(), lease: self.options.lease }
    }

    /// Starts the loops on `tracker`.
    ///
    /// `soft` stops taking work: runs in flight go on and are renewed. `hard` stops them too: what
    /// does not end within half a second is given back, and the attempt does not count.
    #[must_use]
    pub fn start(self, tracker: &TaskTracker, soft: CancellationToken, hard: CancellationToken) -> SchedulerHandle {
        let work = TaskTracker::new();
        let stop = soft.child_token();
        let drained = CancellationToken::new();
        let mut start = Start { scheduler: &self, tracker, loops: vec![] };
        for each in SchedulerLoop::of(&self.options.roles) {
            match each {
                SchedulerLoop::Fire => start.fire(&stop),
                SchedulerLoop::Promote => start.promote(&stop),
                SchedulerLoop::Recover => start.recover(&stop),
                SchedulerLoop::Relay => start.relay(&stop),
                SchedulerLoop::Coverage => start.coverage(&stop),
                SchedulerLoop::Dispatch => start.dispatch(&work, &hard, &stop),
                // It goes on until the work has drained.
                SchedulerLoop::Heartbeat => start.heartbeat(&drained),
            }
        }
        let handle = SchedulerHandle { loops: start.loops, held: self.held.clone(), work: work.clone() };
        tracker.spawn(async move {
            tokio::select! {
                () = soft.cancelled() => {}
                () = hard.cancelled() => {}
            }
            stop.cancel();
            work.close();
            work.wait().await;
            drained.cancel();
        });
        handle
    }
}

/// A scheduler being started.
struct Start<'a> {
    scheduler: &'a Scheduler,
    tracker: &'a TaskTracker,
    loops: Vec<LoopHandle>,
}

impl Start<'_> {
    fn fire(&mut self, stop: &CancellationToken) {
        let Scheduler { stores, options, wakes, .. } = self.scheduler;
        let fire = Fire {
            tasks: stores.tasks.clone(),
            settings: stores.settings.clone(),
            wakes: wakes.clone(),
            grace: options.misfire_grace,
            is_outdated: false,
            is_enabled: false,
            upcoming: None,
        };
        self.spawn(SchedulerLoop::Fire, fire, stop);
    }

    fn promote(&mut self, stop: &CancellationToken) {
        let Scheduler { stores, wakes, .. } = self.scheduler;
        let promote = Promote { runs: stores.runs.clone(), wakes: wakes.clone() };
        self.spawn(SchedulerLoop::Promote, promote, stop);
    }

    fn recover(&mut self, stop: &CancellationToken) {
        let Scheduler { stores, wakes, .. } = self.scheduler;
        let recover = Recover { runs: stores.runs.clone(), wakes: wakes.clone() };
        self.spawn(SchedulerLoop::Recover, recover, stop);
    }

    fn relay(&mut self, stop: &CancellationToken) {
        let Scheduler { stores, wakes, .. } = self.scheduler;
        let relay = Relay { outbox: stores.outbox.clone(), wakes: wakes.clone() };
        self.spawn(SchedulerLoop::Relay, relay, stop);
    }

    fn coverage(&mut self, stop: &CancellationToken) {
        let coverage = Coverage { instances: self.scheduler.stores.instances.clone(), uncovered: BTreeSet::new() };
        self.spawn(SchedulerLoop::Coverage, coverage, stop);
    }

    fn heartbeat(&mut self, drained: &CancellationToken) {
        let Scheduler { stores, held, .. } = self.scheduler;
        self.spawn(SchedulerLoop::Heartbeat, Heartbeat { runs: stores.runs.clone(), held: held.clone() }, drained);
    }

    /// Starts the dispatch, and the finisher, which ends with the last executor.
    fn dispatch(&mut self, work: &TaskTracker, hard: &CancellationToken, stop: &CancellationToken) {
        let Scheduler { stores, options, runners, output, wakes, held } = self.scheduler;
        let (finishes, ends) = mpsc::channel(finish::BATCH);
        let finisher = Finisher { runs: stores.runs.clone(), wakes: wakes.clone() };
        self.tracker.spawn(finisher.run(ends));
        let executor = Executor {
            runners: runners.clone(),
            output: output.clone(),
            held: held.clone(),
            wakes: wakes.clone(),
            finishes,
            hard: hard.clone(),
            tracker: self.tracker.clone(),
            work: work.clone(),
        };
        let dispatch = Dispatch {
            runs: stores.runs.clone(),
            wakes: wakes.clone(),
            permits: Arc::new(Semaphore::new(options.permits as usize)),
            executor: Arc::new(executor),
            request: LeaseRequest {
                holder: options.instance.clone(),
                kind: WorkerKind::Replica,
                pools: options.pools.clone(),
                limit: 0,
                lease: options.lease,
                request: None,
            },
        };
        // Work is drained once nothing can start any more and nothing is in flight.
        let running = self.prepare(SchedulerLoop::Dispatch, dispatch, stop);
        self.tracker.spawn(work.track_future(running));
    }

    fn spawn<A: Activity>(&mut self, which: SchedulerLoop, activity: A, stop: &CancellationToken) {
        let running = self.prepare(which, activity, stop);
        self.tracker.spawn(running);
    }

    fn prepare<A: Activity>(
        &mut self,
        which: SchedulerLoop,
        activity: A,
        stop: &CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<A> {
        let Scheduler { options, wakes, .. } = self.scheduler;
        let wake = match which {
            SchedulerLoop::Fire => &wakes.fire,
            SchedulerLoop::Promote => &wakes.promote,
            SchedulerLoop::Recover => &wakes.recover,
            SchedulerLoop::Relay => &wakes.relay,
            SchedulerLoop::Coverage => &wakes.coverage,
            SchedulerLoop::Dispatch => &wakes.dispatch,
            SchedulerLoop::Heartbeat => &wakes.heartbeat,
        };
        let (handle, running) = which.activation(wake, options.lease).into_loop(activity, stop.clone());
        self.loops.push(handle);
        running
    }
}

/// Watches a running scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerHandle {
    loops: Vec<LoopHandle>,
    held: Arc<Held>,
    work: TaskTracker,
}

impl SchedulerHandle {
    /// Counts the runs in flight: leased, and their end not acknowledged yet.
    #[must_use]
    pub fn running(&self) -> usize {
        self.held.len()
    }

    /// Waits, after a soft or hard stop, until all runs in flight have ended and the database has
    /// acknowledged their ends, or their leases were lost.
    pub async fn drained(&self) {
        self.work.close();
        self.work.wait().await;
    }

    /// Tells how the loops are doing and brings the gauges of their ages up to date.
    #[must_use]
    pub fn loops(&self) -> Vec<LoopStatus> {
        self.loops.iter().map(LoopHandle::status).collect()
    }
}
