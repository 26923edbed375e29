//! Planning a firing: which due occurrences of a task become runs and which are recorded as skipped.
//!
//! A plan follows the missed policy and the start deadline. The overlap policy needs the active runs, which the store
//! counts under the lock of the task. What edits and pauses do to the schedule is beside.

mod arming;

pub use self::arming::{Armed, Arming, Resumed, arm, edit, rearm, resume};
use crate::Timestamp;
use crate::ids::TaskId;
use crate::run::{SkipCause, SkipRange, StoredSkip};
use crate::schedule::{Occurrences, Schedule, ScheduleError};
use crate::span::Span;
use crate::task::{MissedPolicy, Overlap, TaskSpec};

/// How late an occurrence may be noticed before it counts as missed.
pub const MISFIRE_GRACE: Span = Span::from_secs(60);

/// The most runs that one firing of a task makes; what is left fires in the next pass.
pub const MOST_RUNS_PER_FIRE: u64 = 1_000;

/// A task that is due, as read before any lock.
#[derive(Clone, Debug, PartialEq)]
pub struct DueTask {
    /// Its identity.
    pub id: TaskId,
    /// Its definition.
    pub spec: TaskSpec,
    /// The occurrence at which it is due.
    pub next_run_at: Timestamp,
    /// The version of the definition that was read.
    pub version: i64,
}

impl DueTask {
    /// Takes a task as it was read, unless its schedule is one that this version cannot use.
    ///
    /// # Errors
    /// [`ScheduleError`] says why the task must be parked.
    pub fn new(id: TaskId, spec: TaskSpec, next_run_at: Timestamp, version: i64) -> Result<Self, ScheduleError> {
        spec.schedule.as_ref().map(Schedule::check).transpose()?;
        Ok(Self { id, spec, next_run_at, version })
    }
}

/// An occurrence that becomes a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRun {
    /// The occurrence.
    pub scheduled_for: Timestamp,
    /// Whether it was missed and is now caught up.
    pub is_catch_up: bool,
}

/// What firing a task changes, provided that nobody fired or edited it in between.
#[derive(Clone, Debug, PartialEq)]
pub struct FirePlan {
    /// The task as it was read.
    pub task: DueTask,
    /// The occurrences that become runs, oldest first.
    pub runs: Vec<PlannedRun>,
    /// The occurrences that are recorded as skipped.
    pub skips: Vec<SkipRange>,
    /// When the task is due next; `None` deactivates it.
    pub next_run_at: Option<Timestamp>,
}

impl FirePlan {
    /// Applies the overlap policy: with `active` runs of the task that have not ended, returns the planned runs that
    /// come into being, and the occurrences that are left out.
    #[must_use]
    pub fn admit(&self, active: u64) -> (&[PlannedRun], Option<SkipRange>) {
        let spec = &self.task.spec;
        let planned = self.runs.len();
        let (runs, rest, cause) = match spec.overlap {
            Overlap::Replace => {
                let (rest, runs) = self.runs.split_at(planned.saturating_sub(1));
                (runs, rest, SkipCause::Overlap)
            }
            Overlap::Skip => {
                let (runs, rest) = self.runs.split_at(planned.min(usize::from(active == 0)));
                (runs, rest, SkipCause::Overlap)
            }
            Overlap::Allow | Overlap::Queue => {
                let room = usize::try_from(spec.room(active)).unwrap_or(planned);
                let (runs, rest) = self.runs.split_at(planned.min(room));
                (runs, rest, SkipCause::Limit)
            }
        };
        let left_out = rest.first().zip(rest.last()).map(|(first, last)| SkipRange {
            from: first.scheduled_for,
            to: last.scheduled_for,
            count: rest.len() as u64,
            cause,
        });
        (runs, left_out)
    }

    /// Returns skipped occurrences as they are stored, with the schedule that they are counted by.
    #[must_use]
    pub fn stored(&self, range: SkipRange) -> StoredSkip {
        StoredSkip { range, schedule: self.task.spec.schedule.clone() }
    }
}

/// Plans the firing of a due task at database time `now`.
///
/// Of what the missed policy keeps, occurrences whose start deadline has passed are skipped too. Skips in a gap of
/// local time are recorded by the plan that moves the task past the gap, which may be before the clocks get there. The
/// schedule must be one that [`check`](crate::schedule::Schedule::check) accepts.
#[must_use]
pub fn plan(task: DueTask, now: Timestamp, grace: Span) -> FirePlan {
    let nothing = |task: DueTask| FirePlan { next_run_at: Some(task.next_run_at), task, runs: vec![], skips: vec![] };
    let Some(schedule) = task.spec.schedule.clone() else {
        return FirePlan { next_run_at: None, ..nothing(task) };
    };
    let Some(due) = schedule.between(task.next_run_at, now) else {
        return nothing(task);
    };
    let misfired = now - grace.to_delta();
    let missed = due.count_before(misfired);
    let keeps_none = task.spec.missed == MissedPolicy::Coalesce && missed < due.count;
    let caught_up = due.take(missed).filter(|_| !keeps_none).map_or(0, |missed| kept(missed, task.spec.missed, now));
    let (dropped, wanted) = (due.take(missed - caught_up), due.skip(missed - caught_up));
    let in_time = |deadline: Span| wanted.map_or(0, |wanted| wanted.count_before(now - deadline.to_delta()));
    let late = task.spec.start_deadline.map_or(0, in_time);

    let planned = wanted.and_then(|wanted| wanted.skip(late)).and_then(|runs| runs.take(MOST_RUNS_PER_FIRE));
    let planned = planned.into_iter().flat_map(Occurrences::iter);
    let runs: Vec<_> = planned.map(|at| PlannedRun { scheduled_for: at, is_catch_up: at < misfired }).collect();
    let last_handled = runs.last().map_or(due.last(), |run| run.scheduled_for);
    let next_run_at = schedule.next_after(last_handled);
    let dropped = dropped.map(|range| range.skipped(SkipCause::Missed));
    let late = wanted.and_then(|wanted| wanted.take(late)).map(|range| range.skipped(SkipCause::Deadline));
    let gaps = gaps(&schedule, task.next_run_at, next_run_at.unwrap_or(now));
    let skips = dropped.into_iter().chain(late).chain(gaps).collect();
    FirePlan { task, runs, skips, next_run_at }
}

/// Counts the newest of the missed occurrences that the policy keeps.
fn kept(missed: Occurrences, policy: MissedPolicy, now: Timestamp) -> u64 {
    match policy {
        MissedPolicy::Skip => 0,
        MissedPolicy::Coalesce => 1,
        MissedPolicy::CatchUp { max, window } => {
            let in_window = missed.count - missed.count_before(now - window.to_delta());
            in_window.min(u64::from(max))
        }
    }
}

fn gaps(schedule: &Schedule, after: Timestamp, before: Timestamp) -> impl Iterator<Item = SkipRange> + use<> {
    let gaps = schedule.gaps(after, before).into_iter();
    gaps.map(|at| SkipRange { from: at, to: at, count: 1, cause: SkipCause::Gap })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Every;
    use crate::timetable::{Cron, DstGap};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn due(missed: MissedPolicy) -> DueTask {
        let mut spec: TaskSpec =
            serde_json::from_str(r#"{"name":"t","action":{"system":{"function":"sweep"}}}"#).unwrap();
        spec.missed = missed;
        spec.schedule =
            Some(Schedule::Every(Every { interval: Span::from_secs(5), anchor: Some(at("2027-01-01T00:00:00Z")) }));
        DueTask { id: TaskId::new(), spec, next_run_at: at("2027-01-01T00:00:05Z"), version: 1 }
    }

    const BACK: &str = "2027-01-15T00:00:02Z";
    const ALL: u64 = 14 * 17_280;

    #[test]
    fn on_time_occurrences_all_run() {
        let plan = plan(due(MissedPolicy::Skip), at("2027-01-01T00:00:16Z"), MISFIRE_GRACE);
        let runs: Vec<_> = plan.runs.iter().map(|run| run.scheduled_for).collect();
        assert_eq!(runs, [at("2027-01-01T00:00:05Z"), at("2027-01-01T00:00:10Z"), at("2027-01-01T00:00:15Z")]);
        assert_eq!(plan.next_run_at, Some(at("2027-01-01T00:00:20Z")));
        assert!(plan.skips.is_empty());
    }

    #[test]
    fn fourteen_days_down_are_one_range_under_skip_and_coalesce() {
        for policy in [MissedPolicy::Skip, MissedPolicy::Coalesce] {
            let plan = plan(due(policy), at(BACK), MISFIRE_GRACE);
            // 23:59:05 (57 s ago) to 00:00:00 are on time.
            assert_eq!(plan.runs.len(), 12, "{policy:?}");
            assert_eq!(
                plan.skips,
                [SkipRange {
                    from: at("2027-01-01T00:00:05Z"),
                    to: at("2027-01-14T23:59:00Z"),
                    count: ALL - 12,
                    cause: SkipCause::Missed,
                }]
            );
        }
    }

    #[test]
    fn coalesce_keeps_the_latest_when_all_were_missed() {
        let mut task = due(MissedPolicy::Coalesce);
        task.spec.schedule = Some(Schedule::At(at("2027-01-01T00:00:05Z")));
        let plan = plan(task, at(BACK), MISFIRE_GRACE);
        assert_eq!(plan.runs, [PlannedRun { scheduled_for: at("2027-01-01T00:00:05Z"), is_catch_up: true }]);
        assert_eq!(plan.next_run_at, None);
        assert!(plan.skips.is_empty());
    }

    #[test]
    fn catch_up_keeps_the_newest_in_its_window_oldest_first() {
        let policy = MissedPolicy::CatchUp { max: 3, window: Span::from_secs(3600) };
        let plan = plan(due(policy), at(BACK), MISFIRE_GRACE);
        let caught_up: Vec<_> = plan.runs.iter().filter(|run| run.is_catch_up).map(|run| run.scheduled_for).collect();
        assert_eq!(caught_up, [at("2027-01-14T23:58:50Z"), at("2027-01-14T23:58:55Z"), at("2027-01-14T23:59:00Z")]);
        assert_eq!(plan.runs.len(), 15);
        assert_eq!(plan.skips[0].count, ALL - 15);
    }

    #[test]
    fn what_is_past_its_start_deadline_is_skipped_for_that() {
        let mut task = due(MissedPolicy::CatchUp { max: 3, window: Span::from_secs(3600) });
        task.spec.start_deadline = Some(Span::from_secs(62));
        let plan = plan(task, at(BACK), MISFIRE_GRACE);
        // 23:59:00 is late by 62 s to the second and may still start.
        assert_eq!(plan.runs[0], PlannedRun { scheduled_for: at("2027-01-14T23:59:00Z"), is_catch_up: true });
        let range = |from, to, count, cause| SkipRange { from: at(from), to: at(to), count, cause };
        assert_eq!(
            plan.skips,
            [
                range("2027-01-01T00:00:05Z", "2027-01-14T23:58:45Z", ALL - 15, SkipCause::Missed),
                range("2027-01-14T23:58:50Z", "2027-01-14T23:58:55Z", 2, SkipCause::Deadline),
            ]
        );

        let mut late = due(MissedPolicy::Skip);
        late.spec.start_deadline = Some(Span::from_secs(5));
        let plan = super::plan(late, at("2027-01-01T00:00:11Z"), MISFIRE_GRACE);
        assert_eq!(plan.skips, [range("2027-01-01T00:00:05Z", "2027-01-01T00:00:05Z", 1, SkipCause::Deadline)]);
        assert_eq!(plan.runs, [PlannedRun { scheduled_for: at("2027-01-01T00:00:10Z"), is_catch_up: false }]);
        let mut all_late = due(MissedPolicy::Coalesce);
        all_late.spec.start_deadline = Some(Span::from_millis(1));
        let plan = super::plan(all_late, at("2027-01-01T00:00:11Z"), MISFIRE_GRACE);
        assert_eq!((plan.runs.len(), plan.next_run_at), (0, Some(at("2027-01-01T00:00:15Z"))));
    }

    #[test]
    fn the_overlap_policy_admits_from_one_end() {
        let plan_of = |overlap| {
            let mut task = due(MissedPolicy::Skip);
            (task.spec.overlap, task.spec.queue_max) = (overlap, 3);
            plan(task, at("2027-01-01T00:00:21Z"), MISFIRE_GRACE)
        };
        for (overlap, active, admitted, left_out) in [
            (Overlap::Allow, 9, 0..4, None),
            (Overlap::Skip, 0, 0..1, Some((1..4, SkipCause::Overlap))),
            (Overlap::Skip, 1, 0..0, Some((0..4, SkipCause::Overlap))),
            (Overlap::Queue, 1, 0..2, Some((2..4, SkipCause::Limit))),
            (Overlap::Queue, 5, 0..0, Some((0..4, SkipCause::Limit))),
            (Overlap::Replace, 1, 3..4, Some((0..3, SkipCause::Overlap))),
        ] {
            let plan = plan_of(overlap);
            let left_out = left_out.map(|(range, cause)| SkipRange {
                from: plan.runs[range.start].scheduled_for,
                to: plan.runs[range.end - 1].scheduled_for,
                count: range.len() as u64,
                cause,
            });
            assert_eq!(plan.admit(active), (&plan.runs[admitted], left_out), "{overlap:?} beside {active}");
        }
    }

    #[test]
    fn a_large_catch_up_goes_on_in_the_next_pass() {
        let policy = MissedPolicy::CatchUp { max: 10_000, window: Span::from_secs(30 * 86_400) };
        let plan = plan(due(policy), at(BACK), MISFIRE_GRACE);
        assert_eq!(plan.runs.len() as u64, MOST_RUNS_PER_FIRE);
        let last = plan.runs.last().unwrap().scheduled_for;
        assert_eq!(plan.next_run_at, Some(last + chrono::TimeDelta::seconds(5)));
    }

    #[test]
    fn fourteen_days_down_on_a_calendar_are_as_cheap() {
        let catch_up = |max| MissedPolicy::CatchUp { max, window: Span::from_secs(3600) };
        for (policy, caught_up) in [(MissedPolicy::Skip, 0), (MissedPolicy::Coalesce, 0), (catch_up(3), 3)] {
            let mut on_calendar = due(policy);
            on_calendar.spec.schedule = Some(Schedule::Cron(Cron::new("*/5 * * * * *", "America/New_York")));
            let (on_calendar, stepping) =
                (plan(on_calendar, at(BACK), MISFIRE_GRACE), plan(due(policy), at(BACK), MISFIRE_GRACE));
            assert_eq!(on_calendar.runs.len(), 12 + caught_up);
            assert_eq!(on_calendar.runs, stepping.runs);
            assert_eq!(on_calendar.skips, stepping.skips);
            assert_eq!(on_calendar.next_run_at, stepping.next_run_at);
        }
    }

    #[test]
    fn a_gap_is_recorded_once_by_the_plan_that_passes_it() {
        let skipping = Cron { dst_gap: DstGap::Skip, ..Cron::new("30 2 * * *", "America/New_York") };
        let mut task = due(MissedPolicy::Skip);
        task.spec.schedule = Some(Schedule::Cron(skipping));
        task.next_run_at = at("2027-03-12T07:30:00Z");
        let gap = SkipRange {
            from: at("2027-03-14T07:00:00Z"),
            to: at("2027-03-14T07:00:00Z"),
            count: 1,
            cause: SkipCause::Gap,
        };

        let (mut runs, mut skips) = (Vec::new(), Vec::new());
        while task.next_run_at < at("2027-03-17T00:00:00Z") {
            let fired = plan(task.clone(), task.next_run_at, MISFIRE_GRACE);
            runs.extend(fired.runs.iter().map(|run| run.scheduled_for));
            skips.extend(fired.skips);
            task.next_run_at = fired.next_run_at.unwrap();
        }
        let days = ["2027-03-12T07:30:00Z", "2027-03-13T07:30:00Z", "2027-03-15T06:30:00Z", "2027-03-16T06:30:00Z"];
        assert_eq!(runs, days.map(at));
        assert_eq!(skips, std::slice::from_ref(&gap));

        // After days without a scheduler the skip is told apart from what was missed.
        task.next_run_at = at("2027-03-12T07:30:00Z");
        let late = plan(task, at("2027-03-16T12:00:00Z"), MISFIRE_GRACE);
        let missed = SkipRange { from: at(days[0]), to: at(days[3]), count: 4, cause: SkipCause::Missed };
        assert_eq!(late.skips, [missed, gap]);
        assert!(late.runs.is_empty());
    }

    #[test]
    fn an_armed_instant_fires_even_if_the_rules_of_its_zone_have_changed() {
        let mut task = due(MissedPolicy::Skip);
        task.spec.schedule = Some(Schedule::Cron(Cron::new("0 2 * * *", "America/New_York")));
        task.next_run_at = at("2027-06-01T07:00:00Z");
        let plan = plan(task, at("2027-06-01T07:00:01Z"), MISFIRE_GRACE);
        assert_eq!(plan.runs, [PlannedRun { scheduled_for: at("2027-06-01T07:00:00Z"), is_catch_up: false }]);
        assert_eq!(plan.next_run_at, Some(at("2027-06-02T06:00:00Z")));
    }
}
