//! Arming: what creation, edits, pauses and their ends do to the next occurrence of a task, and which occurrences they
//! leave behind. Every occurrence that was due is fired later or recorded as skipped here, never both.

use chrono::TimeDelta;

use super::{gaps, kept};
use crate::Timestamp;
use crate::run::{SkipCause, SkipRange, StoredSkip};
use crate::schedule::{Schedule, ScheduleError};
use crate::task::{MissedPolicy, TaskSpec, TaskSpecError};

/// Whether, when and since when a schedule is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arming {
    /// Whether it is in force.
    pub is_active: bool,
    /// The next occurrence.
    pub next_run_at: Option<Timestamp>,
    /// The first instant whose occurrence a pause holds back.
    pub paused_from: Option<Timestamp>,
}

/// What a creation or an edit makes of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Armed {
    /// The definition, checked and anchored.
    pub spec: TaskSpec,
    /// How it is armed.
    pub arming: Arming,
    /// The occurrences that are skipped by it.
    pub skips: Vec<StoredSkip>,
}

/// What the end of a pause does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The first occurrence that the missed policy keeps, which is due at once, or else the next one after now.
    pub next_run_at: Option<Timestamp>,
    /// The occurrences that do not run.
    pub skips: Vec<SkipRange>,
}

/// Ends a pause at `now` that held occurrences back from `paused_from` on. The newest ones are kept as the missed
/// policy says, the latest one under `coalesce`; the others are one skipped range.
#[must_use]
pub fn resume(schedule: &Schedule, missed: MissedPolicy, paused_from: Timestamp, now: Timestamp) -> Resumed {
    let before = paused_from - TimeDelta::microseconds(1);
    let held_back = schedule.next_after(before).and_then(|first| schedule.between(first, now));
    let kept = held_back.map_or(0, |all| kept(all, missed, now));
    let dropped = held_back.map_or(0, |all| all.count - kept);
    let first_kept = held_back.and_then(|all| all.skip(dropped)).map(|kept| kept.first);
    let next_run_at = first_kept.or_else(|| schedule.next_after(now));
    let paused = held_back.and_then(|all| all.take(dropped)).map(|paused| paused.skipped(SkipCause::Paused));
    let skips = paused.into_iter().chain(gaps(schedule, before, next_run_at.unwrap_or(now))).collect();
    Resumed { next_run_at, skips }
}

/// Checks a new definition and arms it at `now`.
///
/// # Errors
/// [`TaskSpecError`] says why it is refused; one that is active needs an occurrence in the future.
pub fn arm(spec: TaskSpec, now: Timestamp) -> Result<Armed, TaskSpecError> {
    let spec = spec.checked(now)?;
    let (arming, gaps) = from_now(&spec, now);
    let skips = stored(gaps, spec.schedule.as_ref());
    with_future(Armed { spec, arming, skips })
}

/// Checks an edit of a task that is armed as `was` and [rearms](rearm) it at `now`. `None` means that nothing changed.
///
/// # Errors
/// [`TaskSpecError`] says why it is refused; one that comes into force needs an occurrence in the future.
pub fn edit(
    before: Option<&TaskSpec>,
    was: Arming,
    wanted: TaskSpec,
    now: Timestamp,
) -> Result<Option<Armed>, TaskSpecError> {
    let spec = wanted.keeping_anchor(before).checked(now)?;
    if before == Some(&spec) { Ok(None) } else { rearm(before, was, spec, now).map(Some) }
}

/// Arms an edited task at `now` that is armed as `was`. A definition that cannot be read is replaced as a whole:
/// `before` is absent.
///
/// Under the same schedule and policies, an active task keeps its next occurrence. One that becomes active under the
/// same schedule is [resumed](resume). Otherwise what was due by the old definition and not fired is recorded, as
/// missed or paused, and the new one counts from now.
///
/// # Errors
/// A schedule that comes into force without an occurrence in the future is refused.
pub fn rearm(before: Option<&TaskSpec>, was: Arming, spec: TaskSpec, now: Timestamp) -> Result<Armed, TaskSpecError> {
    let had = before.and_then(|before| before.schedule.as_ref());
    let stays = before.is_some_and(|before| !spec.moves_next_run(before));
    let is_same_schedule = before.is_some() && had == spec.schedule.as_ref();
    let (arming, skips) = match (was.is_active, spec.is_active, was.paused_from) {
        (true, true, _) | (false, false, _) if stays => return Ok(Armed { spec, arming: was, skips: vec![] }),
        (true, false, _) if stays => {
            // An occurrence that is due and not fired yet belongs to the pause.
            let paused_from = Some(was.next_run_at.unwrap_or(now));
            (Arming { is_active: false, next_run_at: None, paused_from }, vec![])
        }
        (false, true, Some(paused_from)) if is_same_schedule && let Some(schedule) = had => {
            let Resumed { next_run_at, skips } = resume(schedule, spec.missed, paused_from, now);
            (Arming { is_active: true, next_run_at, paused_from: None }, stored(skips, had))
        }
        _ => {
            let (arming, gaps) = from_now(&spec, now);
            let left = stored(left_behind(had, was, now), had);
            (arming, left.into_iter().chain(stored(gaps, spec.schedule.as_ref())).collect())
        }
    };
    with_future(Armed { spec, arming, skips })
}

/// Lets the schedule count from now; returns the occurrences too that a gap skips before the first one.
fn from_now(spec: &TaskSpec, now: Timestamp) -> (Arming, Vec<SkipRange>) {
    let next = spec.schedule.as_ref().and_then(|schedule| schedule.next_after(now));
    if !spec.is_active {
        return (Arming { is_active: false, next_run_at: None, paused_from: Some(next.unwrap_or(now)) }, vec![]);
    }
    let gaps = spec.schedule.iter().flat_map(|schedule| gaps(schedule, now, next.unwrap_or(now))).collect();
    (Arming { is_active: true, next_run_at: next, paused_from: None }, gaps)
}

/// Returns what was due by a schedule that is no longer in force.
fn left_behind(schedule: Option<&Schedule>, was: Arming, now: Timestamp) -> Vec<SkipRange> {
    let (from, cause) = match (was.next_run_at, was.paused_from) {
        (Some(next), _) => (next, SkipCause::Missed),
        (None, Some(from)) => (from, SkipCause::Paused),
        (None, None) => return vec![],
    };
    let Some(schedule) = schedule else {
        // What cannot be read is known to have been due once.
        let known = SkipRange { from, to: from, count: 1, cause };
        return was.next_run_at.filter(|next| *next <= now).map(|_| known).into_iter().collect();
    };
    let before = from - TimeDelta::microseconds(1);
    let first = was.next_run_at.or_else(|| schedule.next_after(before));
    let due = first.and_then(|first| schedule.between(first, now));
    due.map(|due| due.skipped(cause)).into_iter().chain(gaps(schedule, before, now)).collect()
}

fn stored(ranges: Vec<SkipRange>, schedule: Option<&Schedule>) -> Vec<StoredSkip> {
    ranges.into_iter().map(|range| StoredSkip { range, schedule: schedule.cloned() }).collect()
}

/// Refuses to put a schedule into force that has no occurrence left.
fn with_future(armed: Armed) -> Result<Armed, TaskSpecError> {
    let Armed { spec, arming, .. } = &armed;
    if spec.is_active && spec.schedule.is_some() && arming.next_run_at.is_none() {
        return Err(ScheduleError::NeverFires.into());
    }
    Ok(armed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Every;
    use crate::span::Span;
    use crate::task::Overlap;
    use crate::timetable::{Cron, DstGap};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Every minute, active, with the given policy.
    fn minutely(missed: MissedPolicy) -> TaskSpec {
        let mut spec: TaskSpec = serde_json::from_str(r#"{"name":"t","action":{"pull":{}}}"#).unwrap();
        let every = Every { interval: Span::from_secs(60), anchor: Some(at("2027-01-01T00:00:00Z")) };
        (spec.missed, spec.schedule) = (missed, Some(Schedule::Every(every)));
        spec
    }

    fn active(next: &str) -> Arming {
        Arming { is_active: true, next_run_at: Some(at(next)), paused_from: None }
    }

    fn range(from: &str, to: &str, count: u64, cause: SkipCause) -> SkipRange {
        SkipRange { from: at(from), to: at(to), count, cause }
    }

    fn ranges(armed: &Armed) -> Vec<SkipRange> {
        armed.skips.iter().map(|skip| skip.range.clone()).collect()
    }

    const NOON: &str = "2027-01-01T12:00:00Z";
    const TEN_PAST: &str = "2027-01-01T12:10:30Z";

    #[test]
    fn a_resume_keeps_what_the_missed_policy_keeps() {
        let window = Span::from_secs(240);
        for (missed, next, kept) in [
            (MissedPolicy::Skip, "2027-01-01T12:11:00Z", 0),
            (MissedPolicy::Coalesce, "2027-01-01T12:10:00Z", 1),
            (MissedPolicy::CatchUp { max: 3, window: Span::from_secs(3600) }, "2027-01-01T12:08:00Z", 3),
            (MissedPolicy::CatchUp { max: 100, window }, "2027-01-01T12:07:00Z", 4),
            (MissedPolicy::CatchUp { max: 100, window: Span::from_secs(3600) }, NOON, 11),
        ] {
            let spec = minutely(missed);
            let resumed = resume(spec.schedule.as_ref().unwrap(), missed, at(NOON), at(TEN_PAST));
            assert_eq!(resumed.next_run_at, Some(at(next)), "{missed:?}");
            let skipped: u64 = resumed.skips.iter().map(|skip| skip.count).sum();
            assert_eq!(skipped + kept, 11, "{missed:?}");
            assert!(resumed.skips.iter().all(|skip| skip.cause == SkipCause::Paused && skip.from == at(NOON)));

            // The pass that follows finds the kept ones due and keeps the same.
            let task = crate::fire::DueTask { id: crate::ids::TaskId::new(), spec, next_run_at: at(next), version: 2 };
            let plan = crate::fire::plan(task, at(TEN_PAST), crate::fire::MISFIRE_GRACE);
            assert_eq!((plan.runs.len() as u64, plan.skips), (kept, vec![]), "{missed:?}");
        }
    }

    #[test]
    fn a_pause_begins_with_the_next_occurrence_and_an_edit_of_it_changes_nothing_else() {
        let before = minutely(MissedPolicy::Skip);
        let paused = TaskSpec { is_active: false, ..before.clone() };
        let armed = edit(Some(&before), active(NOON), paused.clone(), at(TEN_PAST)).unwrap().unwrap();
        let arming = Arming { is_active: false, next_run_at: None, paused_from: Some(at(NOON)) };
        assert_eq!((armed.arming, armed.skips), (arming, vec![]));
        assert_eq!(edit(Some(&paused), arming, paused.clone(), at(TEN_PAST)).unwrap(), None);
        let renamed = TaskSpec { priority: 3, ..paused.clone() };
        let armed = edit(Some(&paused), arming, renamed, at(TEN_PAST)).unwrap().unwrap();
        assert_eq!((armed.arming, armed.skips), (arming, vec![]));
        let resumed = edit(Some(&paused), arming, before, at(TEN_PAST)).unwrap().unwrap();
        assert_eq!(resumed.arming, active("2027-01-01T12:11:00Z"));
        assert_eq!(ranges(&resumed), [range(NOON, "2027-01-01T12:10:00Z", 11, SkipCause::Paused)]);
    }

    #[test]
    fn an_edit_of_the_schedule_or_a_policy_leaves_what_was_due_as_missed() {
        let before = minutely(MissedPolicy::Skip);
        let due = [range(NOON, "2027-01-01T12:10:00Z", 11, SkipCause::Missed)];
        let mut slower = before.clone();
        slower.schedule = Some(Schedule::Cron(Cron::new("0 * * * *", "UTC")));
        let armed = edit(Some(&before), active(NOON), slower.clone(), at(TEN_PAST)).unwrap().unwrap();
        assert_eq!(armed.arming, active("2027-01-01T13:00:00Z"));
        assert_eq!(ranges(&armed), due);
        assert_eq!(armed.skips[0].schedule, before.schedule);

        let queueing = TaskSpec { overlap: Overlap::Queue, ..before.clone() };
        let armed = edit(Some(&before), active(NOON), queueing, at(TEN_PAST)).unwrap().unwrap();
        assert_eq!((armed.arming, ranges(&armed)), (active("2027-01-01T12:11:00Z"), due.to_vec()));

        let paused = TaskSpec { is_active: false, ..slower };
        let armed = edit(Some(&before), active(NOON), paused.clone(), at(TEN_PAST)).unwrap().unwrap();
        assert_eq!(ranges(&armed), due);
        assert_eq!(armed.arming.paused_from, Some(at("2027-01-01T13:00:00Z")));
    }

    #[test]
    fn a_pause_that_goes_on_under_another_schedule_is_recorded_so_far() {
        let before = TaskSpec { is_active: false, ..minutely(MissedPolicy::Coalesce) };
        let was = Arming { is_active: false, next_run_at: None, paused_from: Some(at(NOON)) };
        let mut hourly = before.clone();
        hourly.schedule = Some(Schedule::Cron(Cron::new("0 * * * *", "UTC")));
        let paused = [range(NOON, "2027-01-01T12:10:00Z", 11, SkipCause::Paused)];
        let armed = edit(Some(&before), was, hourly.clone(), at(TEN_PAST)).unwrap().unwrap();
        assert_eq!(ranges(&armed), paused);
        assert_eq!(armed.arming.paused_from, Some(at("2027-01-01T13:00:00Z")));
        // It also ends so, if the schedule changes with the resume.
        hourly.is_active = true;
        let armed = edit(Some(&before), was, hourly, at(TEN_PAST)).unwrap().unwrap();
        assert_eq!((armed.arming, ranges(&armed)), (active("2027-01-01T13:00:00Z"), paused.to_vec()));
    }

    #[test]
    fn what_is_over_cannot_come_into_force() {
        let mut once = minutely(MissedPolicy::Skip);
        once.schedule = Some(Schedule::At(at(NOON)));
        assert!(arm(once.clone(), at(TEN_PAST)).unwrap_err().never_fires);
        once.is_active = false;
        arm(once.clone(), at(TEN_PAST)).unwrap();
        let was = Arming { is_active: false, next_run_at: None, paused_from: Some(at(NOON)) };
        let resumed = TaskSpec { is_active: true, ..once.clone() };
        assert!(edit(Some(&once), was, resumed.clone(), at(TEN_PAST)).unwrap_err().never_fires);
        let coalescing = TaskSpec { missed: MissedPolicy::Coalesce, ..resumed };
        let armed = edit(Some(&once), was, coalescing, at(TEN_PAST)).unwrap().unwrap();
        assert_eq!((armed.arming, armed.skips), (active(NOON), vec![]), "the policy of the edit counts");
    }

    #[test]
    fn gaps_are_recorded_also_before_the_first_occurrence_and_within_a_pause() {
        let mut spec = minutely(MissedPolicy::Skip);
        let skipping = Cron { dst_gap: DstGap::Skip, ..Cron::new("30 2 * * *", "America/New_York") };
        spec.schedule = Some(Schedule::Cron(skipping));
        let gap = range("2027-03-14T07:00:00Z", "2027-03-14T07:00:00Z", 1, SkipCause::Gap);
        let made = arm(spec.clone(), at("2027-03-14T00:00:00Z")).unwrap();
        assert_eq!(ranges(&made), std::slice::from_ref(&gap));
        assert_eq!(made.arming.next_run_at, Some(at("2027-03-15T06:30:00Z")));

        let resumed = resume(
            spec.schedule.as_ref().unwrap(),
            spec.missed,
            at("2027-03-13T07:30:00Z"),
            at("2027-03-15T12:00:00Z"),
        );
        let paused = range("2027-03-13T07:30:00Z", "2027-03-15T06:30:00Z", 2, SkipCause::Paused);
        assert_eq!(resumed.skips, [paused, gap]);
    }

    #[test]
    fn a_definition_that_could_not_be_read_leaves_the_occurrence_at_which_it_was_due() {
        let armed = edit(None, active(NOON), minutely(MissedPolicy::Skip), at(TEN_PAST)).unwrap().unwrap();
        assert_eq!(armed.arming, active("2027-01-01T12:11:00Z"));
        assert_eq!(armed.skips, [StoredSkip { range: range(NOON, NOON, 1, SkipCause::Missed), schedule: None }]);
    }
}
