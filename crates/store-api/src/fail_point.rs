//! Fail points: named places at which a test makes the process die or stand still.
//!
//! They exist in debug builds only; in a release build [`hit`] is empty and nothing can be armed.

/// A place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailPoint {
    /// Runs were leased; none has started.
    AfterClaim,
    /// A batch of endings was written inside its transaction.
    BeforeFinishCommit,
    /// A batch of endings was committed; no worker knows it yet.
    AfterFinishCommit,
    /// A renewal is about to be sent.
    DuringRenewal,
    /// A batch of events was written inside its transaction.
    BeforeAppendCommit,
    /// A batch of events was committed; no publisher knows it yet.
    AfterAppendCommit,
    /// A triggered run was written inside its transaction.
    BeforeTriggerCommit,
    /// A triggered run was committed; whoever triggered it does not know yet.
    AfterTriggerCommit,
}

impl FailPoint {
    /// Every place.
    pub const ALL: [Self; 8] = [
        Self::AfterClaim,
        Self::BeforeFinishCommit,
        Self::AfterFinishCommit,
        Self::DuringRenewal,
        Self::BeforeAppendCommit,
        Self::AfterAppendCommit,
        Self::BeforeTriggerCommit,
        Self::AfterTriggerCommit,
    ];

    /// Returns the name by which a test arms it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AfterClaim => "after_claim",
            Self::BeforeFinishCommit => "before_finish_commit",
            Self::AfterFinishCommit => "after_finish_commit",
            Self::DuringRenewal => "during_renewal",
            Self::BeforeAppendCommit => "before_append_commit",
            Self::AfterAppendCommit => "after_append_commit",
            Self::BeforeTriggerCommit => "before_trigger_commit",
            Self::AfterTriggerCommit => "after_trigger_commit",
        }
    }
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::FailPoint;

    static ARMED: OnceLock<Vec<(FailPoint, AtomicU32)>> = OnceLock::new();

    /// Arms points once, from a text such as `after_claim` or `after_claim:3,during_renewal`: the
    /// process aborts at the first, or the given, passage.
    ///
    /// # Errors
    /// Names the part that is no fail point.
    pub fn arm(text: &str) -> Result<(), String> {
        let mut points = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, passage) = part.split_once(':').unwrap_or((part, "1"));
            let point = FailPoint::ALL.into_iter().find(|point| point.name() == name);
            match (point, passage.parse::<u32>()) {
                (Some(point), Ok(passage @ 1..)) => points.push((point, AtomicU32::new(passage))),
                _ => return Err(format!("unknown fail point {part:?}")),
            }
        }
        ARMED.set(points).map_err(|_| "fail points are armed already".to_owned())
    }

    /// Passes a fail point; the process aborts here when it is armed and its passage has come.
    pub fn hit(point: FailPoint) {
        for (armed, left) in ARMED.get().into_iter().flatten() {
            if *armed == point && left.fetch_sub(1, Ordering::SeqCst) == 1 {
                tracing::warn!(point = point.name(), "aborting at a fail point");
                std::process::abort();
            }
        }
    }
}

#[cfg(debug_assertions)]
pub use armed::{arm, hit};

/// Passes a fail point; does nothing in a release build.
#[cfg(not(debug_assertions))]
pub const fn hit(_point: FailPoint) {}
