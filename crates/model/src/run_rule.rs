//! Rules of runs: what follows when an attempt ends or is lost, and which report still counts. Knows no store.

use crate::ids::Fence;
use crate::json_text::JsonText;
use crate::run::{Ending, RunState, clean_error};
use crate::span::Span;

/// What is left to a run that is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How many attempts were leased, the present one included.
    pub attempt: u32,
    /// How many attempts it has.
    pub max_attempts: u32,
    /// Whether somebody asked to cancel it.
    pub is_to_be_cancelled: bool,
    /// Whether the present attempt has taken longer than it may.
    pub is_past_deadline: bool,
}

/// How a run leaves its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The state that follows.
    pub state: RunState,
    /// How many attempts count from now on.
    pub attempt: u32,
    /// How long it is not ready; it stays ready since when it was if absent.
    pub delay: Option<Span>,
    /// Whether it was taken from a holder that is gone; its fence then rises, so that the holder comes too late.
    pub is_reclaimed: bool,
    /// What is remembered of the attempt; absent when nothing new is known.
    pub note: Option<Note>,
}

/// What is remembered of an attempt, in place of what was remembered of the one before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Note {
    /// What it returned.
    pub result: Option<JsonText>,
    /// Why it failed.
    pub error: Option<String>,
}

impl Note {
    /// Remembers why a run did not succeed.
    #[must_use]
    pub fn of_error(error: &str) -> Self {
        Self { result: None, error: Some(clean_error(error)) }
    }
}

/// Why a run was taken from a holder that is gone, and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It was to be cancelled and now is.
    Cancelled,
    /// Its deadline had passed, whatever became of it.
    TimedOut,
    /// It is queued again.
    Requeued,
    /// It had no attempt left.
    Dead,
}

impl Step {
    /// Leaves for another state and changes nothing else.
    #[must_use]
    pub const fn to(state: RunState, attempt: u32) -> Self {
        Self { state, attempt, delay: None, is_reclaimed: false, note: None }
    }
}

impl Standing {
    /// Says what follows from the report of a worker.
    #[must_use]
    pub fn after(&self, ending: &Ending) -> Step {
        let has_attempts_left = self.attempt < self.max_attempts;
        let (state, delay) = match (final_state(ending), ending) {
            (Some(state), _) => (state, None),
            _ if self.is_to_be_cancelled => (RunState::Cancelled, None),
            (_, Ending::Retry { delay, .. }) if has_attempts_left => (RunState::Scheduled, Some(*delay)),
            (_, Ending::Retry { .. }) => (RunState::Dead, None),
            _ => (RunState::Queued, None),
        };
        // The worker gave the run back untouched.
        let attempt = if state == RunState::Queued { self.attempt.saturating_sub(1) } else { self.attempt };
        let note = note_of(ending).or_else(|| (state == RunState::Succeeded && attempt > 1).then(Note::default));
        Step { delay, note, ..Step::to(state, attempt) }
    }

    /// Says what follows when the holder is gone.
    #[must_use]
    pub fn after_loss(&self) -> (Step, Loss) {
        let step = |state| Step { is_reclaimed: true, ..Step::to(state, self.attempt) };
        if self.is_to_be_cancelled {
            return (step(RunState::Cancelled), Loss::Cancelled);
        }
        let (state, loss) = if self.attempt < self.max_attempts {
            (RunState::Queued, Loss::Requeued)
        } else {
            (RunState::Dead, Loss::Dead)
        };
        let (error, loss) = if self.is_past_deadline {
            ("the attempt timed out and its worker did not report it", Loss::TimedOut)
        } else {
            ("the worker lost its lease", loss)
        };
        (Step { note: Some(Note::of_error(error)), ..step(state) }, loss)
    }
}

/// Returns the state that follows an ending whatever the run is like; `None` when that depends on the run.
#[must_use]
pub const fn final_state(ending: &Ending) -> Option<RunState> {
    match ending {
        Ending::Succeeded(_) => Some(RunState::Succeeded),
        Ending::Failed(_) => Some(RunState::Failed),
        Ending::Cancelled => Some(RunState::Cancelled),
        Ending::Retry { .. } | Ending::Released => None,
    }
}

/// Returns what a report says of its attempt. A success without a result says nothing, but the error of an earlier
/// attempt must not outlive it.
#[must_use]
pub fn note_of(ending: &Ending) -> Option<Note> {
    match ending {
        Ending::Succeeded(result) => result.clone().map(|result| Note { result: Some(result), error: None }),
        Ending::Failed(error) | Ending::Retry { error, .. } => Some(Note::of_error(error)),
        Ending::Cancelled | Ending::Released => None,
    }
}

/// What a report of an ending counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It ends the lease that it is about.
    Current,
    /// The end of that lease was accepted before.
    Repeated,
    /// The run was taken from its holder before, or it never had that lease.
    Stale,
}

impl Report {
    /// Judges a report under the fence `reported` on a run in `state` under the fence `current`. A lease ends by its
    /// report, which keeps the fence, or by its loss, which raises it.
    #[must_use]
    pub fn judge(reported: Fence, current: Fence, state: RunState) -> Self {
        match state {
            // A run that was never leased has no fence yet.
            _ if reported != current || current == Fence::default() => Self::Stale,
            RunState::Running => Self::Current,
            _ => Self::Repeated,
        }
    }
}

/// Tells whether a run gives its permit key back when it leaves `running` for `next`. A key that keeps the runs of a
/// task apart is held until the run has ended, back-off included; any other only while it runs.
#[must_use]
pub fn frees_key(key: &str, next: RunState) -> bool {
    next.is_terminal() || !key.starts_with("task:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TaskId;
    use crate::task::task_permit_key;

    const FIRST_OF_TWO: Standing =
        Standing { attempt: 1, max_attempts: 2, is_to_be_cancelled: false, is_past_deadline: false };
    const LAST: Standing = Standing { attempt: 2, ..FIRST_OF_TWO };
    const UNWANTED: Standing = Standing { is_to_be_cancelled: true, ..FIRST_OF_TWO };

    fn retry() -> Ending {
        Ending::Retry { error: "no\n".to_owned(), delay: Span::from_secs(3) }
    }

    fn error(text: &str) -> Option<Note> {
        Some(Note { result: None, error: Some(text.to_owned()) })
    }

    #[test]
    fn a_retry_follows_while_attempts_are_left_and_nobody_wants_the_run_to_stop() {
        let scheduled = Step::to(RunState::Scheduled, 1);
        let waits = Step { delay: Some(Span::from_secs(3)), note: error("no "), ..scheduled };
        assert_eq!(FIRST_OF_TWO.after(&retry()), waits);
        assert_eq!(LAST.after(&retry()), Step { note: error("no "), ..Step::to(RunState::Dead, 2) });
        assert_eq!(UNWANTED.after(&retry()), Step { note: error("no "), ..Step::to(RunState::Cancelled, 1) });
    }

    #[test]
    fn a_released_run_gets_its_attempt_back_unless_it_is_to_be_cancelled() {
        assert_eq!(LAST.after(&Ending::Released), Step::to(RunState::Queued, 1));
        assert_eq!(UNWANTED.after(&Ending::Released), Step::to(RunState::Cancelled, 1));
    }

    #[test]
    fn final_endings_count_whatever_was_asked_for() {
        assert_eq!(UNWANTED.after(&Ending::Succeeded(None)), Step::to(RunState::Succeeded, 1));
        assert_eq!(LAST.after(&Ending::Cancelled), Step::to(RunState::Cancelled, 2));
        let failed = Step { note: error("bad"), ..Step::to(RunState::Failed, 1) };
        assert_eq!(FIRST_OF_TWO.after(&Ending::Failed("bad".to_owned())), failed);
        let forgets = Step { note: Some(Note::default()), ..Step::to(RunState::Succeeded, 2) };
        assert_eq!(LAST.after(&Ending::Succeeded(None)), forgets, "the error of the first attempt is forgotten");
        let result = Note { result: Some(JsonText::null()), error: None };
        assert_eq!(LAST.after(&Ending::Succeeded(Some(JsonText::null()))).note, Some(result));
    }

    #[test]
    fn a_lost_run_goes_on_dies_or_is_cancelled_and_is_counted_under_what_decided() {
        let lost = |standing: Standing| {
            let (step, loss) = standing.after_loss();
            assert!(step.is_reclaimed);
            (step.state, loss)
        };
        assert_eq!(lost(FIRST_OF_TWO), (RunState::Queued, Loss::Requeued));
        assert_eq!(lost(LAST), (RunState::Dead, Loss::Dead));
        assert_eq!(lost(UNWANTED), (RunState::Cancelled, Loss::Cancelled));
        assert_eq!(lost(Standing { is_past_deadline: true, ..FIRST_OF_TWO }), (RunState::Queued, Loss::TimedOut));
        assert_eq!(lost(Standing { is_past_deadline: true, ..LAST }), (RunState::Dead, Loss::TimedOut));
        assert_eq!(UNWANTED.after_loss().0.note, None);
    }

    #[test]
    fn reports_are_told_apart_by_fence_and_state() {
        let judge = |reported, state| Report::judge(Fence(reported), Fence(7), state);
        assert_eq!(judge(7, RunState::Running), Report::Current);
        for state in [RunState::Scheduled, RunState::Queued, RunState::Cancelled, RunState::Succeeded] {
            assert_eq!(judge(7, state), Report::Repeated);
            assert_eq!(judge(6, state), Report::Stale);
        }
        assert_eq!(judge(8, RunState::Running), Report::Stale);
        assert_eq!(Report::judge(Fence(0), Fence(0), RunState::Queued), Report::Stale);
    }

    #[test]
    fn only_the_key_of_a_task_outlives_the_attempt() {
        let of_task = task_permit_key(TaskId::new());
        assert!(!frees_key(&of_task, RunState::Scheduled));
        assert!(!frees_key(&of_task, RunState::Queued));
        assert!(frees_key(&of_task, RunState::Dead));
        assert!(frees_key("key:shared", RunState::Scheduled));
    }
}
