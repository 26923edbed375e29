//! What external workers say and are told: leases of runs, heartbeats and endings. Durations go beside the instants, so
//! that a worker needs no clock that agrees with the database.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Timestamp;
use crate::identity::{TaskName, WorkerName};
use crate::ids::{Fence, RunId, TaskId};
use crate::json_text::JsonText;
use crate::run::{LeasedRun, RunState};
use crate::span::Span;
use crate::text_enum::text_enum;

/// The most runs of one lease request.
pub const LEASE_RUNS: u32 = 100;
/// The shortest lease that an external worker can ask for.
pub const SHORTEST_LEASE: Span = Span::from_secs(1);
/// The longest lease that an external worker can ask for.
pub const LONGEST_LEASE: Span = Span::from_secs(600);

/// Asks for runs of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolLeaseRequest {
    /// Identifies the request. Repeated while leases of the first one hold, it gives those runs again.
    pub request_id: Uuid,
    /// What the worker calls itself; runs show it as who holds their lease.
    pub worker: WorkerName,
    /// The most runs to lease.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = LEASE_RUNS))]
    pub max: u32,
    /// How long the leases hold without a heartbeat, 1s to 10m; as long as those of the server when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Span>,
    /// How long to wait for a run when there is none; not at all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Span>,
}

fn one() -> u32 {
    1
}

/// The runs that a worker is to execute; none when nothing came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolLeaseResponse {
    /// The runs, in the order of priority and due time.
    pub runs: Vec<PulledRun>,
}

/// A run handed to an external worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PulledRun {
    /// Its identity.
    pub id: RunId,
    /// The task it executes.
    pub task_id: TaskId,
    /// The name of that task.
    pub task_name: TaskName,
    /// The number of this lease, which every report carries.
    pub fence: Fence,
    /// Which attempt this is, 1 for the first.
    pub attempt: u32,
    /// How many attempts it has.
    pub max_attempts: u32,
    /// Whether an earlier attempt lost its lease, so that its traces can be cleaned up first.
    pub reclaimed: bool,
    /// The occurrence it executes, if the schedule made it.
    pub scheduled_for: Option<Timestamp>,
    /// When it became ready.
    pub run_at: Timestamp,
    /// When it was leased.
    pub leased_at: Timestamp,
    /// Until when the lease holds without a heartbeat.
    pub lease_until: Timestamp,
    /// How long this attempt may take.
    pub timeout: Option<Span>,
    /// When this attempt times out; heartbeats prolong no lease beyond it.
    pub deadline_at: Option<Timestamp>,
    /// What it was given.
    pub input: Option<JsonText>,
}

impl From<LeasedRun> for PulledRun {
    fn from(run: LeasedRun) -> Self {
        Self {
            id: run.id,
            task_id: run.task_id,
            task_name: run.task_name,
            fence: run.fence,
            attempt: run.attempt,
            max_attempts: run.max_attempts,
            reclaimed: run.reclaimed,
            scheduled_for: run.scheduled_for,
            run_at: run.run_at,
            leased_at: run.leased_at,
            lease_until: run.lease_until,
            timeout: run.timeout,
            deadline_at: run.timeout.map(|timeout| run.leased_at + timeout.to_delta()),
            input: run.input,
        }
    }
}

/// Says that a worker goes on with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// The number of the lease.
    pub fence: Fence,
    /// How long the lease holds from now on, 1s to 10m; as long as those of the server when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Span>,
}

/// How a run that goes on is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeartbeatResponse {
    /// Until when the lease holds at least.
    pub lease_until: Timestamp,
    /// Whether somebody asked to cancel the run: the worker is to stop and release it.
    pub cancel_requested: bool,
}

/// Says that a run has succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishRequest {
    /// The number of the lease.
    pub fence: Fence,
    /// What the run returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JsonText>,
}

/// Says that an attempt has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FailRequest {
    /// The number of the lease.
    pub fence: Fence,
    /// What went wrong.
    pub error: String,
    /// Whether another attempt may help.
    #[serde(default = "retry")]
    pub kind: FailKind,
    /// How long to wait before the next attempt; as the task defines when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
}

fn retry() -> FailKind {
    FailKind::Retry
}

text_enum! {
    /// What follows a failed attempt.
    FailKind, "kind of failure" {
        /// Another attempt, if any is left.
        Retry = "retry",
        /// Nothing: the run has failed for good.
        Permanent = "permanent",
    }
}

/// Gives a run back as if it had not been leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The number of the lease.
    pub fence: Fence,
}

/// What a report of a worker led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReportResponse {
    /// The state of the run.
    pub state: RunState,
}
