//! Planning a firing: which due occurrences of a task become runs and which are recorded as skipped.
//!
//! The rules are those of the missed policy; the overlap policy needs the active runs and is applied
//! by the store, under the lock of the task.

use crate::Timestamp;
use crate::ids::TaskId;
use crate::run::{SkipCause, SkipRange};
use crate::schedule::{Occurrences, Schedule, ScheduleError};
use crate::span::Span;
use crate::task::{MissedPolicy, TaskSpec};

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

/// Plans the firing of a due task at database time `now`.
///
/// Skips in a gap of local time are recorded by the plan that moves the task past the gap, which may be before
/// the clocks get there. The schedule must be one that [`check`](crate::schedule::Schedule::check) accepts.
#[must_use]
pub fn plan(task: DueTask, now: Timestamp, grace: Span) -> FirePlan {
    let nothing = |task: DueTask| FirePlan { next_run_at: Some(task.next_run_at), task, runs: vec![], skips: vec![] };
    let Some(schedule) = task.spec.schedule.clone() else {
        return FirePlan { next_run_at: None, ..nothing(task) };
    };
    let Some(due) = schedule.between(task.next_run_at, now) else {
        return nothing(task);
    };
    let missed = due.take(due.count_before(now - grace.to_delta()));
    let on_time = due.skip(missed.map_or(0, |missed| missed.count));
    let (caught_up, skipped) = split_missed(missed, on_time.is_some(), now, task.spec.missed);

    let mut runs: Vec<PlannedRun> = Vec::new();
    let room = MOST_RUNS_PER_FIRE;
    let caught_up_now = caught_up.and_then(|all| all.take(room));
    runs.extend(
        caught_up_now
            .into_iter()
            .flat_map(Occurrences::iter)
            .map(|at| PlannedRun { scheduled_for: at, is_catch_up: true }),
    );
    let on_time_now = on_time.and_then(|all| all.take(room - runs.len() as u64));
    runs.extend(
        on_time_now
            .into_iter()
            .flat_map(Occurrences::iter)
            .map(|at| PlannedRun { scheduled_for: at, is_catch_up: false }),
    );

    let last_handled = runs.last().map_or(due.last(), |run| run.scheduled_for);
    let next_run_at = schedule.next_after(last_handled);
    let missed = skipped.map(|range| skip_range(range, SkipCause::Missed));
    let gaps = schedule.gaps(task.next_run_at, next_run_at.unwrap_or(now));
    let gaps = gaps.into_iter().map(|at| SkipRange { from: at, to: at, count: 1, cause: SkipCause::Gap });
    let skips = missed.into_iter().chain(gaps).collect();
    FirePlan { task, runs, skips, next_run_at }
}

/// Divides the missed occurrences into those that run and those that are skipped.
fn split_missed(
    missed: Option<Occurrences>,
    has_on_time: bool,
    now: Timestamp,
    policy: MissedPolicy,
) -> (Option<Occurrences>, Option<Occurrences>) {
    let Some(missed) = missed else { return (None, None) };
    let kept = match policy {
        MissedPolicy::Skip => 0,
        MissedPolicy::Coalesce => u64::from(!has_on_time),
        MissedPolicy::CatchUp { max, window } => {
            let in_window = missed.count - missed.count_before(now - window.to_delta());
            in_window.min(u64::from(max))
        }
    };
    let dropped = missed.count - kept;
    (missed.skip(dropped), missed.take(dropped))
}

fn skip_range(range: Occurrences, cause: SkipCause) -> SkipRange {
    SkipRange { from: range.first, to: range.last(), count: range.count, cause }
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
