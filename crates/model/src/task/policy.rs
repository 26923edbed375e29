//! Policies of a task: what happens to occurrences and attempts that cannot go the straight way.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::ConcurrencyKey;
use crate::ids::TaskId;
use crate::limit::Rate;
use crate::span::Span;

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

/// A fleet-wide limit on how often runs start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Runs with the same key share the limit, also over several tasks; the task's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ConcurrencyKey>,
    /// How many runs may start, such as `10/1s burst 5`.
    pub rate: Rate,
}

impl RateLimit {
    /// Returns the key under which the limit is counted for runs of this task.
    #[must_use]
    pub fn pace_key(&self, task: TaskId) -> String {
        match &self.key {
            Some(key) => format!("runs:key:{key}"),
            None => format!("runs:task:{task}"),
        }
    }
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
}
