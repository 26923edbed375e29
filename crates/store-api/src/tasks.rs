//! Tasks: definitions, edits and firing.

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::fire::{DueTask, FirePlan};
use switchboard_model::identity::TaskName;
use switchboard_model::ids::TaskId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::run::{SkipRange, StoredSkip};
use switchboard_model::span::Span;
use switchboard_model::task::{Task, TaskSpec};

use crate::StoreResult;
use crate::context::{WriteContext, Written};

/// What creating a task gave.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskCreateOutcome {
    /// The task was created.
    Created(Task),
    /// A task of this name exists; nothing was changed.
    NameTaken(TaskId),
    /// The definition was refused.
    Refused(switchboard_model::task::TaskSpecError),
}

/// What editing a task gave.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskUpdateOutcome {
    /// The task was edited, or the edit changed nothing.
    Updated(Task),
    /// There is no such task.
    NotFound,
    /// The task was edited in between; this is its version now.
    VersionMismatch(i64),
    /// Another task has the new name.
    NameTaken(TaskId),
    /// The definition was refused.
    Refused(switchboard_model::task::TaskSpecError),
}

/// The tasks that are due, and the database time at which they were read.
#[derive(Clone, Debug, PartialEq)]
pub struct DueTasks {
    /// Database time, or the test clock.
    pub now: Timestamp,
    /// The due tasks, the longest due first.
    pub tasks: Vec<DueTask>,
}

/// What a firing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FireReport {
    /// Tasks whose plan was applied.
    pub fired: u64,
    /// Tasks that another replica fired, or somebody edited, in between.
    pub lost: u64,
    /// Runs that came into being.
    pub runs: u64,
    /// Occurrences that were recorded as skipped.
    pub skipped: u64,
}

/// A range of time whose occurrences are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OccurrenceRange {
    /// The first instant of the range.
    pub from: Timestamp,
    /// The last instant of the range.
    pub to: Timestamp,
    /// The most rows to return, the newest ones.
    pub limit: u32,
}

/// What repairing unarmed tasks gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnarmedReport {
    /// Active scheduled tasks that had no next occurrence; the invariant is 0.
    pub found: u64,
    /// Those of them that are no longer so: they have one again, or were deactivated.
    pub repaired: u64,
}

/// Task definitions. Names are unique among tasks that are not deleted.
#[async_trait]
pub trait TaskStore: Send + Sync {
    /// Checks and stores a task, anchors its schedule at database time, arms it and signals it. The schedule is planned
    /// before the transaction ([`crate::arm_all`]).
    ///
    /// # Errors
    /// Fails when the database does.
    async fn create(
        &self,
        context: &WriteContext,
        id: TaskId,
        spec: &TaskSpec,
    ) -> StoreResult<Written<TaskCreateOutcome>>;

    /// Creates many tasks in one commit, each as [`TaskStore::create`] does; returns one outcome per task, in order,
    /// each seeing the ones before it. A once-key remembers the first identity, and all outcomes as a JSON list of
    /// identities, with `null` for a task that was not created. One signal with the key `*` stands for all. When no
    /// task is created, nothing is kept, neither the claim nor the audit entry.
    ///
    /// # Errors
    /// Fails when the database does; then no task was created.
    async fn create_many(
        &self,
        context: &WriteContext,
        tasks: &[(TaskId, TaskSpec)],
    ) -> StoreResult<Written<Vec<TaskCreateOutcome>>>;

    /// Reads a task that is not deleted.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn get(&self, id: TaskId) -> StoreResult<Option<Task>>;

    /// Finds a task by name.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find(&self, name: &TaskName) -> StoreResult<Option<Task>>;

    /// Lists tasks in the order of their creation. One that cannot be read is left out, so a page
    /// may hold fewer than its limit while its cursor leads on.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Task>>;

    /// Replaces a definition if it still has version `expected`. The next occurrence is recomputed
    /// from now when the schedule or a policy changed ([`TaskSpec::moves_next_run`]); it stays
    /// otherwise, and an edit without any change keeps the version too. What was due before it moved and not fired is
    /// recorded as missed ([`switchboard_model::fire::rearm`]). Runs that have not ended follow an action that becomes
    /// or stops being one of external workers. A schedule that is given
    /// without an anchor keeps the anchor it had if nothing else of it changed.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn update(
        &self,
        context: &WriteContext,
        id: TaskId,
        expected: i64,
        spec: &TaskSpec,
    ) -> StoreResult<TaskUpdateOutcome>;

    /// Pauses (`active == false`) or resumes a task; one whose schedule is over stays paused. A resume follows the missed policy: of the occurrences from the
    /// one that was next at the pause to the resume, those that the policy keeps become due at once, and the others
    /// are recorded as one skipped range with cause `paused` ([`switchboard_model::fire::resume`]). An update that
    /// changes `is_active` does the same. Pausing a paused or resuming an active task changes nothing.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn set_active(&self, context: &WriteContext, id: TaskId, active: bool) -> StoreResult<Option<Task>>;

    /// Deletes a task softly; its runs stay, active ones go on and are signed as before. `false` means that there is none.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn delete(&self, context: &WriteContext, id: TaskId) -> StoreResult<bool>;

    /// Reads up to `limit` due tasks without locking. A row that this binary cannot read is parked
    /// with its error, does not stop the others and is not returned.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn due(&self, limit: u32) -> StoreResult<DueTasks>;

    /// Applies plans in one transaction: locks the tasks in order, skipping locked ones, drops the
    /// plans whose task changed, applies the overlap policy to the rest, inserts their runs and
    /// skips, advances or deactivates the tasks, and signals the pools.
    ///
    /// Overlap, with active meaning not terminal: `skip` inserts the first planned run if no run is
    /// active and records the rest as `overlap`; `queue` inserts until `queue_max` runs are active
    /// and records the rest as `limit`; `replace` asks to cancel the active runs, inserts the last
    /// planned run and records the rest as `overlap`; `allow` inserts all. A skipped range that begins
    /// with the occurrence after the newest range of the task extends it if cause and schedule are the same.
    ///
    /// # Errors
    /// Fails when the database does; then nothing was changed.
    async fn fire(&self, plans: &[FirePlan]) -> StoreResult<FireReport>;

    /// Lists the skipped ranges of a task, newest first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn skips(&self, id: TaskId, page: &PageRequest) -> StoreResult<Page<SkipRange>>;

    /// Lists the skipped ranges of a task that touch a range of time, those that end last first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn skips_between(&self, id: TaskId, range: &OccurrenceRange) -> StoreResult<Vec<StoredSkip>>;

    /// Counts active scheduled tasks that have no next occurrence; the invariant is 0.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn count_unarmed(&self) -> StoreResult<u64>;

    /// Arms up to `limit` active scheduled tasks that have no next occurrence: it lies after now, or the task is
    /// deactivated when its schedule has no future. One that cannot be read is parked.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn repair_unarmed(&self, limit: u32) -> StoreResult<UnarmedReport>;

    /// Removes up to `limit` tasks that were deleted longer than `age` ago and have neither runs nor skipped ranges left,
    /// and their deduplication keys.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64>;
}
