//! Runs: executions of tasks, their states and what may follow what.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::{ClientKey, PoolName, TaskName};
use crate::ids::{Fence, InstanceId, RunId, TaskId};
use crate::json_text::JsonText;
use crate::schedule::Schedule;
use crate::span::Span;
use crate::task::{Action, Backoff};
use crate::text_enum::text_enum;

text_enum! {
    /// Where a run is in its life.
    RunState, "run state" {
        /// It becomes ready at an instant in the future.
        Scheduled = "scheduled",
        /// It is ready.
        Queued = "queued",
        /// It is ready, but its key has no free permit.
        Waiting = "waiting",
        /// It is leased.
        Running = "running",
        /// Its action succeeded.
        Succeeded = "succeeded",
        /// Its action failed for good.
        Failed = "failed",
        /// It was cancelled.
        Cancelled = "cancelled",
        /// Its attempts are used up.
        Dead = "dead",
    }
}

impl RunState {
    /// Tells whether the run has ended.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::Dead)
    }
}

text_enum! {
    /// What made a run exist.
    Trigger, "trigger" {
        /// An occurrence of the schedule.
        Schedule = "schedule",
        /// A person or program.
        Manual = "manual",
        /// A signed webhook.
        Webhook = "webhook",
        /// A retry of an ended run.
        Retry = "retry",
        /// A missed occurrence that was caught up.
        CatchUp = "catch_up",
        /// The function `switchboard.trigger()` in a transaction of an application.
        Sql = "sql",
    }
}

text_enum! {
    /// Why occurrences did not run.
    SkipCause, "skip cause" {
        /// A run of the task was active.
        Overlap = "overlap",
        /// It was noticed too late.
        Missed = "missed",
        /// Its start deadline had passed.
        Deadline = "deadline",
        /// The local time did not exist on that day.
        Gap = "gap",
        /// Too many runs were waiting.
        Limit = "limit",
        /// The task was paused.
        Paused = "paused",
    }
}

/// A stored run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Its identity.
    pub id: RunId,
    /// The task it executes.
    pub task_id: TaskId,
    /// Where it is in its life.
    pub state: RunState,
    /// What made it exist.
    pub trigger: Trigger,
    /// The pool whose workers execute it.
    pub pool: PoolName,
    /// Lower goes first.
    pub priority: i16,
    /// When it becomes or became ready.
    pub run_at: Timestamp,
    /// The occurrence it executes, if the schedule made it.
    pub scheduled_for: Option<Timestamp>,
    /// How many attempts were leased.
    pub attempt: u32,
    /// How many attempts it has.
    pub max_attempts: u32,
    /// The number of its latest lease.
    pub fence: Fence,
    /// Who holds the lease, or held the latest one.
    pub leased_by: Option<InstanceId>,
    /// Until when the lease holds.
    pub lease_until: Option<Timestamp>,
    /// When the running attempt times out.
    pub deadline_at: Option<Timestamp>,
    /// When somebody asked to cancel it.
    pub cancel_requested_at: Option<Timestamp>,
    /// The permit it needs.
    pub key: Option<String>,
    /// The rate limit it takes from when it starts.
    pub pace_key: Option<String>,
    /// Until when it must have started; past that it is cancelled.
    pub start_by: Option<Timestamp>,
    /// The caller's key against doubles.
    pub dedupe_key: Option<ClientKey>,
    /// When it came into being.
    pub created_at: Timestamp,
    /// When its latest attempt started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// What it was given.
    pub input: Option<JsonText>,
    /// What it returned.
    pub result: Option<JsonText>,
    /// Why its latest attempt failed.
    pub error: Option<String>,
}

/// A run that a caller asks for.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// The identity it will have.
    pub id: RunId,
    /// The task to execute.
    pub task_id: TaskId,
    /// What makes it exist.
    pub trigger: Trigger,
    /// What it is given.
    pub input: Option<JsonText>,
    /// How long it waits before it is ready.
    pub delay: Span,
    /// A key against doubles.
    pub dedupe_key: Option<ClientKey>,
    /// How long the key forbids a second run.
    pub dedupe_scope: DedupeScope,
}

/// How long a deduplication key forbids a second run of the same task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DedupeScope {
    /// While a run with the key is active.
    #[default]
    Active,
    /// For ever, also after that run has ended and was pruned.
    Forever,
}

/// A run handed to a worker together with all it needs to execute it.
#[derive(Clone, Debug, PartialEq)]
pub struct LeasedRun {
    /// Its identity.
    pub id: RunId,
    /// The task it executes.
    pub task_id: TaskId,
    /// The name of that task.
    pub task_name: TaskName,
    /// The number of this lease.
    pub fence: Fence,
    /// Which attempt this is, 1 for the first.
    pub attempt: u32,
    /// How many attempts it has.
    pub max_attempts: u32,
    /// Whether an earlier attempt lost its lease, so that a handler can clean up first.
    pub reclaimed: bool,
    /// How often it was queued again after it had ended.
    pub retries: u32,
    /// The occurrence it executes, if the schedule made it.
    pub scheduled_for: Option<Timestamp>,
    /// When it became ready.
    pub run_at: Timestamp,
    /// Database time of the lease.
    pub leased_at: Timestamp,
    /// Until when the lease holds.
    pub lease_until: Timestamp,
    /// How long this attempt may take.
    pub timeout: Option<Span>,
    /// How long a failed attempt waits.
    pub backoff: Backoff,
    /// What to do.
    pub action: Action,
    /// What it was given.
    pub input: Option<JsonText>,
}

impl LeasedRun {
    /// Returns what receivers tell the effect of this run from others by: the same for each of its attempts, another
    /// one once the ended run was queued again.
    #[must_use]
    pub fn effect_id(&self) -> String {
        match self.retries {
            0 => self.id.to_string(),
            retries => format!("{}.{retries}", self.id),
        }
    }
}

/// The most characters of an error that are kept.
pub const ERROR_CHARS: usize = 2_000;

/// Cleans an error text for storage: control characters become spaces and the length is bounded.
#[must_use]
pub fn clean_error(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ERROR_CHARS).collect()
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// The action succeeded.
    Succeeded(Option<JsonText>),
    /// The action failed for good.
    Failed(String),
    /// The action failed; another attempt follows after the delay if any is left.
    Retry {
        /// What went wrong.
        error: String,
        /// How long to wait.
        delay: Span,
    },
    /// The action stopped because somebody asked for it.
    Cancelled,
    /// The worker gives the run back untouched; the attempt does not count.
    Released,
}

/// The report of a worker on one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The run.
    pub id: RunId,
    /// The lease under which it was executed.
    pub fence: Fence,
    /// How it ended.
    pub ending: Ending,
}

/// A range of occurrences that did not run, with one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkipRange {
    /// The first occurrence of the range.
    pub from: Timestamp,
    /// The last occurrence of the range.
    pub to: Timestamp,
    /// How many occurrences it spans.
    pub count: u64,
    /// Why they did not run.
    pub cause: SkipCause,
}

/// A skipped range with the schedule that it is counted by.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSkip {
    /// The range.
    pub range: SkipRange,
    /// The schedule at that time; absent when it was not kept.
    pub schedule: Option<Schedule>,
}

impl StoredSkip {
    /// Returns one range for both if `next` goes on with the same cause, by the same schedule, at the occurrence after
    /// the last one of this range.
    #[must_use]
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let (range, new) = (&self.range, &next.range);
        let schedule = self.schedule.as_ref().filter(|_| self.schedule == next.schedule && range.cause == new.cause)?;
        let joined = SkipRange { to: new.to, count: range.count + new.count, ..range.clone() };
        (schedule.next_after(range.to) == Some(new.from)).then(|| Self { range: joined, ..self.clone() })
    }
}

/// The run of an occurrence, as the occurrences of a task show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OccurrenceRun {
    /// The run.
    pub id: RunId,
    /// The occurrence.
    #[serde(skip)]
    pub scheduled_for: Timestamp,
    /// Where it is in its life.
    pub state: RunState,
    /// What made it exist.
    pub trigger: Trigger,
    /// When its latest attempt started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Why its latest attempt failed, or why it was not executed.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_read_back_and_know_their_end() {
        for state in RunState::ALL {
            assert_eq!(state.as_str().parse::<RunState>().unwrap(), *state);
        }
        assert_eq!(RunState::ALL.iter().filter(|state| state.is_terminal()).count(), 4);
    }

    #[test]
    fn errors_are_cleaned_and_bounded() {
        assert_eq!(clean_error("a\u{0}b\nc"), "a b c");
        assert_eq!(clean_error(&"é".repeat(5_000)).chars().count(), ERROR_CHARS);
    }
}
