//! Tasks: stored definitions of what runs, when, and under which policies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::{ConcurrencyKey, EventName, PoolName, RoomName, TaskName, UserId};
use crate::ids::TaskId;
use crate::json_text::JsonText;
use crate::schedule::{Schedule, ScheduleError};
use crate::span::Span;
use crate::wire::code::ErrorCode;

/// What happens to occurrences that were not fired within the misfire grace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MissedPolicy {
    /// The latest due occurrence runs; the missed ones before it are recorded as skipped.
    #[default]
    Coalesce,
    /// Every missed occurrence is recorded as skipped.
    Skip,
    /// The newest missed occurrences run, oldest first.
    CatchUp {
        /// The most occurrences to run.
        #[schemars(range(min = 1, max = 10_000))]
        max: u32,
        /// How far back to look.
        window: Span,
    },
}

/// What happens when a task is due while a run of it is active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Runs go side by side.
    #[default]
    Allow,
    /// The new occurrence is recorded as skipped.
    Skip,
    /// The new run waits until the active one has ended.
    Queue,
    /// The active run is cancelled; the new one starts when it has ended.
    Replace,
}

/// How long a failed attempt waits before the next: `min(cap, base · 2^(attempt−1))`, less up to the jitter share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// The delay after the first attempt.
    pub base: Span,
    /// The longest delay.
    pub cap: Span,
    /// The share of the delay that chance may take off, 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Span::from_secs(1), cap: Span::from_secs(600), jitter: 0.2 }
    }
}

impl Backoff {
    /// Returns the delay after `attempt` (1-based); `chance` is a random number in [0, 1).
    #[must_use]
    pub fn delay(&self, attempt: u32, chance: f64) -> Span {
        let doublings = attempt.saturating_sub(1).min(63);
        let full = self.base.as_millis().saturating_mul(1_u64 << doublings).min(self.cap.as_millis());
        let off = self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0);
        // Delays are far below 2^53 ms, so the product is exact enough and never negative.
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of at most 1000 years in milliseconds fits"
        )]
        let shortened = (full as f64 * (1.0 - off)) as u64;
        Span::from_millis(shortened)
    }
}

/// A fleet-wide limit on runs that go at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Concurrency {
    /// Runs with the same key share the limit, also over several tasks.
    pub key: ConcurrencyKey,
    /// The most runs at the same time, at least 1.
    #[schemars(range(min = 1))]
    pub max: u32,
}

/// What a run does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Publishes an event.
    Event(EventAction),
    /// Calls a function of the server.
    System(SystemAction),
}

impl Action {
    /// Names the kind of the action, as in its JSON form.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Event(_) => "event",
            Self::System(_) => "system",
        }
    }
}

/// Where an event goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventTarget {
    /// To a room.
    Room(RoomName),
    /// To all sockets of a user.
    User(UserId),
}

impl EventTarget {
    /// Returns the room that carries the event.
    #[must_use]
    pub fn room(&self) -> RoomName {
        match self {
            Self::Room(room) => room.clone(),
            Self::User(user) => user.room(),
        }
    }
}

/// Publishes an event to a room or a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventAction {
    /// Where it goes.
    pub to: EventTarget,
    /// What it is called.
    pub event: EventName,
    /// What it carries; the input of the run when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<JsonText>,
}

/// Calls a named function from the registry of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SystemAction {
    /// The name of the function.
    pub function: String,
}

/// Everything about a task that people decide.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// The unique name.
    pub name: TaskName,
    /// When it is due; absent means only when triggered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// What a run does.
    pub action: Action,
    /// Whether its schedule is in force.
    #[serde(default = "yes")]
    pub is_active: bool,
    /// What happens to missed occurrences.
    #[serde(default)]
    pub missed: MissedPolicy,
    /// What happens when it is due while active.
    #[serde(default)]
    pub overlap: Overlap,
    /// The most runs that may wait under the overlap policy `queue`.
    #[serde(default = "default_queue_max")]
    #[schemars(range(min = 1))]
    pub queue_max: u32,
    /// How long an attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// How many attempts a run has, at least 1.
    #[serde(default = "default_max_attempts")]
    #[schemars(range(min = 1, max = Self::MOST_ATTEMPTS))]
    pub max_attempts: u32,
    /// How long a failed attempt waits before the next.
    #[serde(default)]
    pub backoff: Backoff,
    /// Lower goes first; 0 is usual.
    #[serde(default)]
    pub priority: i16,
    /// The pool whose workers execute it.
    #[serde(default = "PoolName::default_pool")]
    pub pool: PoolName,
    /// A fleet-wide limit shared by runs with the same key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
}

fn yes() -> bool {
    true
}

fn default_queue_max() -> u32 {
    100
}

fn default_max_attempts() -> u32 {
    3
}

/// Why a task is refused, and which field is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct TaskSpecError {
    /// The field, as in the JSON form.
    pub field: &'static str,
    /// Whether the cause is a schedule without a future.
    pub never_fires: bool,
    /// What is wrong, and what would be right.
    pub reason: String,
}

/// The field of a zone, which is refused for one reason only: it is not known.
const ZONE_FIELD: &str = "schedule.cron.zone";

impl TaskSpecError {
    /// Returns the error code that answers a request with such a task.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self.field {
            _ if self.never_fires => ErrorCode::ScheduleNeverFires,
            ZONE_FIELD => ErrorCode::ZoneUnknown,
            _ => ErrorCode::ValidationFailed,
        }
    }
}

impl From<ScheduleError> for TaskSpecError {
    fn from(error: ScheduleError) -> Self {
        let field = match &error {
            ScheduleError::IntervalTooShort | ScheduleError::NeverFires => "schedule",
            ScheduleError::ExpressionInvalid(_) => "schedule.cron.expression",
            ScheduleError::ZoneUnknown(_) => ZONE_FIELD,
        };
        Self { field, never_fires: error == ScheduleError::NeverFires, reason: error.to_string() }
    }
}

impl TaskSpec {
    /// The most attempts that a run may have.
    pub const MOST_ATTEMPTS: u32 = 1_000_000;

    /// Checks the policies against each other and anchors the schedule at `now`.
    ///
    /// # Errors
    /// [`TaskSpecError`] names the first field that is wrong.
    pub fn checked(mut self, now: Timestamp) -> Result<Self, TaskSpecError> {
        let refuse = |field, reason: &str| Err(TaskSpecError { field, never_fires: false, reason: reason.to_owned() });
        if !(1..=Self::MOST_ATTEMPTS).contains(&self.max_attempts) {
            return refuse("max_attempts", "must be between 1 and 1000000");
        }
        if self.queue_max == 0 {
            return refuse("queue_max", "must be at least 1");
        }
        if self.concurrency.as_ref().is_some_and(|limit| limit.max == 0) {
            return refuse("concurrency.max", "must be at least 1");
        }
        if self.concurrency.is_some() && matches!(self.overlap, Overlap::Queue | Overlap::Replace) {
            return refuse(
                "concurrency",
                "cannot be combined with overlap queue or replace, which hold a key of their own",
            );
        }
        if !(0.0..=1.0).contains(&self.backoff.jitter) {
            return refuse("backoff.jitter", "must be between 0 and 1");
        }
        if self.timeout.is_some_and(|timeout| timeout.as_millis() == 0) {
            return refuse("timeout", "must be longer than 0s");
        }
        if let MissedPolicy::CatchUp { max: 0 | 10_001.., .. } = self.missed {
            return refuse("missed.catch_up.max", "must be between 1 and 10000");
        }
        if let Action::Event(action) = &self.action
            && action.event.is_reserved()
        {
            return refuse("action.event.event", "has a prefix that is reserved to the server; choose another name");
        }
        if let Some(schedule) = self.schedule.take() {
            self.schedule = Some(schedule.anchored(now)?);
        }
        Ok(self)
    }

    /// Returns the permit that each run of this task needs: its key and the most holders.
    #[must_use]
    pub fn permit(&self, id: TaskId) -> Option<(String, u32)> {
        match (&self.concurrency, self.overlap) {
            (Some(limit), _) => Some((format!("key:{}", limit.key), limit.max)),
            (None, Overlap::Allow) => None,
            (None, _) => Some((task_permit_key(id), 1)),
        }
    }

    /// Tells whether an edit from `before` to `self` must recompute the next occurrence.
    #[must_use]
    pub fn moves_next_run(&self, before: &Self) -> bool {
        self.schedule != before.schedule || self.missed != before.missed || self.overlap != before.overlap
    }
}

/// The permit key by which an overlap policy admits one run of a task at a time.
#[must_use]
pub fn task_permit_key(id: TaskId) -> String {
    format!("task:{id}")
}

/// A stored task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// Its identity.
    pub id: TaskId,
    /// What people decided.
    pub spec: TaskSpec,
    /// When it is due next; present whenever it is active and has a schedule with a future.
    pub next_run_at: Option<Timestamp>,
    /// Grows with every edit.
    pub version: i64,
    /// Why the stored definition cannot be fired, if so.
    pub parked: Option<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last edited.
    pub updated_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_saturates_and_never_exceeds_the_cap() {
        let backoff = Backoff { base: Span::from_secs(1), cap: Span::from_secs(60), jitter: 0.5 };
        assert_eq!(backoff.delay(1, 0.0), Span::from_secs(1));
        assert_eq!(backoff.delay(3, 0.0), Span::from_secs(4));
        assert_eq!(backoff.delay(3, 0.5), Span::from_secs(3));
        assert_eq!(backoff.delay(1_000_000, 0.0), Span::from_secs(60));
    }

    #[test]
    fn json_form_is_what_the_documentation_shows() {
        let text = r#"{"name":"tick","schedule":{"every":{"interval":"1s"}},
            "action":{"event":{"to":{"room":"lobby"},"event":"tick","payload":{"a":"\ud800"}}},
            "missed":{"catch_up":{"max":3,"window":"1h"}},"overlap":"queue"}"#;
        let spec: TaskSpec = serde_json::from_str(text).unwrap();
        let Action::Event(action) = &spec.action else { panic!("event expected") };
        assert_eq!(action.payload.as_ref().unwrap().as_str(), r#"{"a":"\ud800"}"#);
        let again: TaskSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
        assert_eq!(again, spec);
        assert!(
            serde_json::from_str::<TaskSpec>(r#"{"name":"x","action":{"system":{"function":"sweep"}},"colour":1}"#)
                .is_err()
        );
    }
}
