//! Runs: triggers, leases, permits and endings.

use async_trait::async_trait;
use switchboard_model::identity::PoolName;
use switchboard_model::ids::{Fence, InstanceId, RunId, TaskId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{Finish, LeasedRun, NewRun, Run, RunState};
use switchboard_model::span::Span;

use crate::StoreResult;
use crate::context::{WriteContext, Written};

/// What triggering a task gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerOutcome {
    /// The run exists, queued or scheduled.
    Created(RunId),
    /// An active run has the same deduplication key; nothing was made.
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

/// Asks for work.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Who will hold the leases.
    pub instance: InstanceId,
    /// The pools it serves.
    pub pools: Vec<PoolName>,
    /// The most runs to lease.
    pub limit: u32,
    /// How long the leases hold without renewal.
    pub lease: Span,
}

/// Leased runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseBatch {
    /// The runs, in the order of priority and due time.
    pub runs: Vec<LeasedRun>,
    /// Whether the pass skipped contended keys or moved runs to `waiting`, so that another pass may
    /// find more at once.
    pub again: bool,
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

/// What promoting did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromoteReport {
    /// Scheduled runs whose time had come.
    pub due: u64,
    /// Waiting runs for which a permit was free.
    pub permitted: u64,
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

    /// Leases ready runs. Each gets a new fence and counts an attempt; a run whose key has no
    /// permit moves to `waiting`. Leases nothing while the fleet is paused.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn lease(&self, request: &LeaseRequest) -> StoreResult<LeaseBatch>;

    /// Prolongs leases that have not expired; returns one outcome per renewal, in order.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn renew(&self, renewals: &[Renewal], lease: Span) -> StoreResult<Vec<RenewOutcome>>;

    /// Records endings and frees permits in one commit; returns one outcome per report, in order.
    ///
    /// The lease must still be the run's; one that expired without being recovered is accepted.
    /// [`switchboard_model::run::Ending::Retry`] becomes `scheduled` after its delay while attempts
    /// are left and `dead` otherwise; `Released` becomes `queued` and gives the attempt back. Of
    /// a run that is to be cancelled, both become `cancelled`.
    ///
    /// # Errors
    /// Fails when the database does; the outcome is then unknown and a repetition is safe.
    async fn finish(&self, finishes: &[Finish]) -> StoreResult<Vec<FinishOutcome>>;

    /// Takes up to `limit` runs whose lease has expired away from their holders: queued again while
    /// attempts are left, `dead` otherwise, `cancelled` when that was asked for.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn recover(&self, limit: u32) -> StoreResult<RecoverReport>;

    /// Makes up to `limit` scheduled runs ready whose time has come, and waiting runs for which a
    /// permit is free; signals their pools.
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

    /// Deletes up to `limit` runs that ended longer than `age` ago, and skipped ranges as old.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64>;
}
