//! Tasks: stored definitions of what runs, when, and under which policies.

mod action;
mod http;
mod http_header;
mod policy;
mod reference;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::action::{Action, EventAction, EventTarget, PullAction, SystemAction};
pub(crate) use self::http::check_url;
pub use self::http::{HttpAction, HttpMethod};
pub use self::http_header::{HttpHeader, SecretHeader};
pub use self::policy::{Backoff, Concurrency, MissedPolicy, Overlap, RateLimit};
pub use self::reference::TaskRef;
use crate::Timestamp;
use crate::identity::{PoolName, TaskName};
use crate::ids::TaskId;
use crate::limit::Rate;
use crate::schedule::{Schedule, ScheduleError};
use crate::span::Span;
use crate::wire::code::ErrorCode;

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
    #[schemars(range(min = 1, max = Self::MOST_QUEUED))]
    pub queue_max: u32,
    /// How long after it became due a run may start; later it is not executed any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_deadline: Option<Span>,
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
    /// A fleet-wide limit on how often runs start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// How long ended runs are kept; as long as the operator configured when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Span>,
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
    /// The most runs that may wait under the overlap policy `queue`, which are counted for each new one.
    pub const MOST_QUEUED: u32 = 1_000;
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
        if !(1..=Self::MOST_QUEUED).contains(&self.queue_max) {
            return refuse(
                "queue_max",
                "must be between 1 and 1000; for more, let runs share a concurrency key instead",
            );
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
        let spans = [("start_deadline", self.start_deadline), ("timeout", self.timeout), ("retention", self.retention)];
        if let Some((field, _)) = spans.into_iter().find(|(_, span)| span.is_some_and(|span| span.as_millis() == 0)) {
            return refuse(field, "must be longer than 0s");
        }
        if let MissedPolicy::CatchUp { max: 0 | 10_001.., .. } = self.missed {
            return refuse("missed.catch_up.max", "must be between 1 and 10000");
        }
        if let Action::Event(action) = &self.action
            && action.event.is_reserved()
        {
            return refuse("action.event.event", "has a prefix that is reserved to the server; choose another name");
        }
        if let Action::Http(action) = &self.action {
            action.check()?;
        }
        if self.pool.as_str() == PoolName::SYSTEM && !matches!(self.action, Action::System(_)) {
            return refuse("pool", "is for functions of the server itself; choose another name");
        }
        if let Some(schedule) = self.schedule.take() {
            self.schedule = Some(schedule.anchored(now)?);
        }
        Ok(self)
    }

    /// Returns what a run of this task takes with it when it comes into being.
    #[must_use]
    pub fn terms(&self, id: TaskId) -> RunTerms<'_> {
        RunTerms {
            pool: &self.pool,
            is_pull: self.action.is_pull(),
            priority: self.priority,
            max_attempts: self.max_attempts,
            timeout: self.timeout,
            start_deadline: self.start_deadline,
            retention: self.retention,
            permit: self.permit(id),
            pace: self.rate_limit.as_ref().map(|limit| (limit.pace_key(id), limit.rate)),
        }
    }

    /// Returns the permit that each run of this task needs: its key and the most holders.
    fn permit(&self, id: TaskId) -> Option<(String, u32)> {
        match (&self.concurrency, self.overlap) {
            (Some(limit), _) => Some((format!("key:{}", limit.key), limit.max)),
            (None, Overlap::Allow) => None,
            (None, _) => Some((task_permit_key(id), 1)),
        }
    }

    /// Returns how many runs may come into being beside `active` ones that have not ended. Under `replace` these give
    /// way to a new one.
    #[must_use]
    pub fn room(&self, active: u64) -> u64 {
        match self.overlap {
            Overlap::Allow | Overlap::Replace => u64::MAX,
            Overlap::Skip => u64::from(active == 0),
            Overlap::Queue => u64::from(self.queue_max).saturating_sub(active),
        }
    }

    /// Gives an interval that names no anchor the one it had, if it is the same interval.
    #[must_use]
    pub fn keeping_anchor(mut self, before: Option<&Self>) -> Self {
        if let Some(Schedule::Every(new)) = &mut self.schedule
            && let Some(Schedule::Every(old)) = before.and_then(|before| before.schedule.as_ref())
            && new.anchor.is_none()
            && new.interval == old.interval
        {
            new.anchor = old.anchor;
        }
        self
    }

    /// Tells whether an edit from `before` to `self` must recompute the next occurrence.
    #[must_use]
    pub fn moves_next_run(&self, before: &Self) -> bool {
        self.schedule != before.schedule || self.missed != before.missed || self.overlap != before.overlap
    }
}

/// What a run takes from its task when it comes into being; later edits of the task do not change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTerms<'a> {
    /// The pool whose workers execute it.
    pub pool: &'a PoolName,
    /// Whether it waits for an external worker.
    pub is_pull: bool,
    /// Lower goes first.
    pub priority: i16,
    /// How many attempts it has.
    pub max_attempts: u32,
    /// How long an attempt may take.
    pub timeout: Option<Span>,
    /// How long after it became due it may start.
    pub start_deadline: Option<Span>,
    /// How long it is kept after its end, if not as long as others.
    pub retention: Option<Span>,
    /// The permit that it needs while it runs: the key and the most holders.
    pub permit: Option<(String, u32)>,
    /// The rate limit that it takes one unit from when it starts: the key and the rate.
    pub pace: Option<(String, Rate)>,
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
    /// From which instant on its occurrences are held back, while it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_from: Option<Timestamp>,
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

    #[test]
    fn the_pool_of_upkeep_is_for_functions_of_the_server() {
        let spec =
            |action: &str| serde_json::from_str::<TaskSpec>(&format!(r#"{{"name":"x","pool":"system",{action}}}"#));
        let now = "2027-01-01T00:00:00Z".parse().unwrap();
        assert!(spec(r#""action":{"system":{"function":"sweep"}}"#).unwrap().checked(now).is_ok());
        for action in [r#"{"pull":{}}"#, r#"{"http":{"url":"https://a.example"}}"#] {
            let spec = spec(&format!(r#""action":{action}"#)).unwrap();
            let refused = spec.checked(now).unwrap_err();
            assert_eq!(refused.field, "pool", "{action}");
        }
    }
}
