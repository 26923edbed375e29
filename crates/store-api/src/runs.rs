//! Runs: triggers, leases, permits and endings.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use switchboard_model::identity::PoolName;
use switchboard_model::ids::{Fence, InstanceId, RunId, TaskId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{Finish, LeasedRun, NewRun, OccurrenceRun, Run, RunState};
use switchboard_model::run_rule::Loss;
use switchboard_model::span::Span;
use uuid::Uuid;

use crate::StoreResult;
use crate::context::{WriteContext, Written};
use crate::tasks::OccurrenceRange;

/// What triggering a task gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriggerOutcome {
    /// The run exists, queued or scheduled.
    Created(RunId),
    /// This run has the same deduplication key and is active, or had it for ever; nothing was made.
    Duplicate(RunId),
    /// The overlap policy `skip` found this active run; nothing was made.
    Active(RunId),
    /// The overlap policy `skip` found this run, which has not started; it carries out the webhook too. A
    /// once-key remembers it as its result.
    Adopted(RunId),
    /// Under the overlap policy `queue`, as many runs as allowed are waiting; nothing was made.
    QueueFull,
    /// There is no such task.
    TaskNotFound,
}

/// What cancelling a run gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It had not started and is cancelled.
    Cancelled,
    /// It is running; its holder was asked to stop.
    Requested,
    /// It had ended before.
    Ended(RunState),
    /// There is no such run.
    NotFound,
}

/// What retrying a run gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOutcome {
    /// It is queued again; its attempts start over, its fence does not.
    Queued,
    /// It has not ended.
    NotEnded(RunState),
    /// This active run forbids a second one, by the overlap policy `skip` or `replace` of the task or by
    /// having the same deduplication key; nothing was changed.
    Active(RunId),
    /// There is no such run.
    NotFound,
}

/// What redriving ended runs gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedriveReport {
    /// Runs that are queued again.
    pub queued: u64,
    /// Runs that stay as they are, because an active run forbids a second one.
    pub refused: u64,
    /// The last run that was looked at, from which the next call goes on; `None` when there are no more.
    pub last: Option<RunId>,
}

/// Which ended runs are to be redriven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redrive {
    /// Only runs of this task.
    pub task_id: Option<TaskId>,
    /// Only runs in this state, which is a terminal one.
    pub state: RunState,
    /// Only runs that came into being after this one.
    pub after: Option<RunId>,
}

/// Who executes the runs that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerKind {
    /// A replica, which executes every action but `pull`.
    Replica,
    /// An external worker, which executes the runs of `pull` actions.
    External,
}

/// Asks for work.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Who will hold the leases: a replica, or what an external worker calls itself.
    pub holder: InstanceId,
    /// Who executes the runs.
    pub kind: WorkerKind,
    /// The pools it serves.
    pub pools: Vec<PoolName>,
    /// The most runs to lease.
    pub limit: u32,
    /// How long the leases hold without renewal.
    pub lease: Span,
    /// Identifies the request. A repetition, while leases of the first one hold, is given those runs and no others,
    /// whatever its limit, and prolongs the leases, so that a lost answer loses nothing. Absent when the request will
    /// not be repeated.
    pub request: Option<Uuid>,
}

/// Leased runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseBatch {
    /// The runs, in the order of priority and due time.
    pub runs: Vec<LeasedRun>,
    /// Whether the pass skipped contended keys or moved runs to `waiting`, so that another pass may
    /// find more at once.
    pub again: bool,
    /// When the next run may start that waits for a rate limit which this pass met, counted from now.
    pub paced_for: Option<Span>,
    /// Whether the maximum of a pool ended the pass, so that a run which ends may make room for another.
    pub is_full: bool,
}

/// A lease to be prolonged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The run.
    pub id: RunId,
    /// The lease.
    pub fence: Fence,
}

/// What became of one renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The lease holds for another full length.
    Renewed,
    /// The lease holds, and somebody asked to cancel the run.
    CancelRequested,
    /// The lease is lost: it had expired, or the run was taken or ended.
    Lost,
}

/// What became of one report of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishOutcome {
    /// It was accepted; this is the state that followed.
    Accepted(RunState),
    /// The end of this very lease had been accepted before; this is the state the run is in now.
    Repeated(RunState),
    /// The lease was lost before; nothing was changed.
    Fenced,
}

/// What recovering expired leases did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoverReport {
    /// Runs that are queued again.
    pub requeued: u64,
    /// Runs that had no attempt left.
    pub dead: u64,
    /// Runs that were to be cancelled and now are.
    pub cancelled: u64,
    /// Runs whose deadline had passed: queued again or dead like the others, but counted here only.
    pub timed_out: u64,
}

impl RecoverReport {
    /// Counts a run under what decided on it.
    pub fn count(&mut self, loss: Loss) {
        let counted = match loss {
            Loss::Cancelled => &mut self.cancelled,
            Loss::TimedOut => &mut self.timed_out,
            Loss::Requeued => &mut self.requeued,
            Loss::Dead => &mut self.dead,
        };
        *counted += 1;
    }
}

/// What promoting did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromoteReport {
    /// Scheduled runs whose time had come.
    pub due: u64,
    /// Waiting runs for which a permit was free.
    pub permitted: u64,
    /// Waiting runs that their rate limit lets go on.
    pub paced: u64,
    /// Runs that were cancelled because their start deadline had passed.
    pub expired: u64,
    /// When the next run may start that waits for a rate limit, counted from now.
    pub paced_for: Option<Span>,
}

/// Which runs a list shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Only runs of this task.
    pub task_id: Option<TaskId>,
    /// Only runs in this state.
    pub state: Option<RunState>,
}

/// Runs and their leases. Lease and expiry use real database time; `run_at` may use a test clock.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// Makes a run of a task under its overlap policy, and signals its pool. Under `skip`, a webhook adopts the
    /// active run when it is queued, scheduled or waiting and has not been leased yet; a running one refuses it.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn trigger(&self, context: &WriteContext, run: &NewRun) -> StoreResult<Written<TriggerOutcome>>;

    /// Makes many runs in one commit, each as [`RunStore::trigger`] does; returns one outcome per run, in order, each
    /// seeing the ones before it. A once-key remembers all outcomes: [`TriggerOutcome`]s in their JSON form are the
    /// result of the record. When no run is made or adopts, nothing is kept, neither the claim nor the audit entry.
    ///
    /// # Errors
    /// Fails when the database does; then no run was made.
    async fn trigger_many(&self, context: &WriteContext, runs: &[NewRun]) -> StoreResult<Written<Vec<TriggerOutcome>>>;

    /// Reads a run.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn get(&self, id: RunId) -> StoreResult<Option<Run>>;

    /// Lists runs, newest first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, filter: &RunFilter, page: &PageRequest) -> StoreResult<Page<Run>>;

    /// Lists the runs of occurrences of a task in a range of time, newest first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn of_occurrences(&self, task: TaskId, range: &OccurrenceRange) -> StoreResult<Vec<OccurrenceRun>>;

    /// Leases ready runs. Each gets a new fence and counts an attempt; a run whose key has no
    /// permit moves to `waiting`, and so does one that its rate limit holds back. A rate limit gives one unit for each
    /// lease. A run whose start deadline has passed is left to [`RunStore::promote`]; the first lease ends that
    /// deadline. While the fleet is paused, leases from the pool [`PoolName::SYSTEM`] only. Leases from no pool more than
    /// its maximum leaves, which counts the running runs of the pool under a lock.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn lease(&self, request: &LeaseRequest) -> StoreResult<LeaseBatch>;

    /// Prolongs leases that have not expired; returns one outcome per renewal, in order. Those of replicas go before
    /// all other work of the database, those of external workers do not.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn renew(&self, by: WorkerKind, renewals: &[Renewal], lease: Span) -> StoreResult<Vec<RenewOutcome>>;

    /// Records endings and frees permits in one commit; returns one outcome per report, in order. Where a run leaves a
    /// pool that was full and others wait for the room, the pool is signalled, unless a replica executed the run and
    /// only replicas wait: it looks by itself.
    ///
    /// The lease must still be the run's; one that expired without being recovered is accepted. To report the end of a
    /// lease again is [`FinishOutcome::Repeated`]; recovery raises the fence, so that an end which comes after it is
    /// told apart.
    /// [`switchboard_model::run::Ending::Retry`] becomes `scheduled` after its delay while attempts
    /// are left and `dead` otherwise; `Released` becomes `queued` and gives the attempt back. Of
    /// a run that is to be cancelled, both become `cancelled`.
    ///
    /// # Errors
    /// Fails when the database does; the outcome is then unknown and a repetition is safe.
    async fn finish(&self, finishes: &[Finish]) -> StoreResult<Vec<FinishOutcome>>;

    /// Takes up to `limit` runs whose lease has expired away from their holders: queued again while
    /// attempts are left, `dead` otherwise, `cancelled` when that was asked for. Signals the pools that got runs, and
    /// those that were full and have room for runs that wait.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn recover(&self, limit: u32) -> StoreResult<RecoverReport>;

    /// Makes up to `limit` scheduled runs ready whose time has come, and waiting runs for which a
    /// permit is free or as many as their rate limit allows now; signals their pools. Cancels runs whose start
    /// deadline has passed, with the reason as their error.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn promote(&self, limit: u32) -> StoreResult<PromoteReport>;

    /// Cancels a run that has not started, or asks the holder of a running one to stop.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn cancel(&self, context: &WriteContext, id: RunId) -> StoreResult<CancelOutcome>;

    /// Queues an ended run again as if it were new: its trigger becomes `retry`, and what its attempts
    /// left behind is forgotten.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn retry(&self, context: &WriteContext, id: RunId) -> StoreResult<RetryOutcome>;

    /// Does to up to `limit` ended runs what [`RunStore::retry`] does to one, in one commit, oldest first.
    ///
    /// # Errors
    /// Fails when the database does; then nothing was changed.
    async fn redrive(&self, context: &WriteContext, which: &Redrive, limit: u32) -> StoreResult<RedriveReport>;

    /// Deletes up to `limit` runs that ended longer than `age` ago, or longer than their own retention says, skipped
    /// ranges as old, and permit keys that no run needs any more.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64>;
}
