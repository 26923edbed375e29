//! Every jump of every zone from 2020 to 2040, against an oracle that looks at every minute around it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::iter::successors;
use std::ops::RangeInclusive;

use chrono::{DateTime, Offset, TimeDelta, TimeZone};
use chrono_tz::{TZ_VARIANTS, Tz};
use switchboard_model::Timestamp;
use switchboard_model::schedule::Schedule;
use switchboard_model::timetable::{Cron, DstGap, DstOverlap, Zone};

/// Minutes of a day.
const DAY: i64 = 24 * 60;

/// An expression, and the same by hand.
struct Case {
    expression: &'static str,
    has_every_hour: bool,
    names: fn(hour: i64, minute: i64) -> bool,
}

const CASES: [Case; 5] = [
    Case { expression: "*/20 * * * *", has_every_hour: true, names: |_, minute| minute % 20 == 0 },
    Case { expression: "0 0 * * *", has_every_hour: false, names: |hour, minute| hour == 0 && minute == 0 },
    Case { expression: "30 2 * * *", has_every_hour: false, names: |hour, minute| hour == 2 && minute == 30 },
    Case {
        expression: "10-50/20 0-3,23 * * *",
        has_every_hour: false,
        names: |hour, minute| (hour < 4 || hour == 23) && [10, 30, 50].contains(&minute),
    },
    Case { expression: "15 */2 * * *", has_every_hour: false, names: |hour, minute| hour % 2 == 0 && minute == 15 },
];

/// What a schedule does within a window, in minutes since 1970.
#[derive(Debug, Default, PartialEq)]
struct Doings {
    runs: BTreeSet<i64>,
    skips: BTreeSet<i64>,
}

#[test]
fn every_jump_of_every_zone_is_handled_as_the_policies_say() {
    let cases = CASES.map(|case| (Cron::new(case.expression, "UTC"), case));
    let mut seen = HashSet::new();
    for tz in TZ_VARIANTS {
        let jumps = jumps(tz);
        // Aliases, and other zones that have the same clocks in these years, are looked at once.
        if !seen.contains(&jumps) {
            for (jump, ..) in &jumps {
                let clocks = Clocks::around(tz, *jump);
                cases.iter().for_each(|(cron, case)| check(cron, case, &clocks));
            }
            seen.insert(jumps);
        }
    }
    assert!(seen.iter().map(Vec::len).sum::<usize>() > 1_000);
}

/// Returns the minutes at which the clocks of a zone jump, with what is added to get local time before and after.
fn jumps(tz: Tz) -> Vec<(i64, i64, i64)> {
    let years = minutes("2020-01-01T00:00:00Z")..minutes("2041-01-01T00:00:00Z");
    let days = years.step_by(usize::try_from(DAY).unwrap()).map(|minute| (minute, offset(tz, minute)));
    let days: Vec<_> = days.collect();
    let changes = days.windows(2).filter(|pair| pair[0].1 != pair[1].1);
    let jump = |pair: &[(i64, i64)]| {
        let (day, before, after) = (pair[0].0, pair[0].1, pair[1].1);
        let has_jumped = |minute: &i64| offset(tz, *minute) != before;
        let hour = (day..=day + DAY).step_by(60).find(has_jumped).unwrap();
        ((hour - 60..=hour).find(has_jumped).unwrap(), before, after)
    };
    changes.map(jump).collect()
}

/// What the clocks of a zone show around a jump.
struct Clocks {
    tz: Tz,
    window: RangeInclusive<i64>,
    /// Each local time with the minutes at which it is shown.
    shown: BTreeMap<i64, Vec<i64>>,
}

impl Clocks {
    fn around(tz: Tz, jump: i64) -> Self {
        let window = jump - 4 * 60..=jump + 4 * 60;
        let mut shown: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for minute in window.clone() {
            shown.entry(minute + offset(tz, minute)).or_default().push(minute);
        }
        Self { tz, window, shown }
    }
}

/// Compares what a case does around a jump with what it should do, under each policy.
fn check(cron: &Cron, case: &Case, clocks: &Clocks) {
    let Clocks { tz, window, .. } = clocks;
    for (dst_gap, dst_overlap) in [(DstGap::RunAfter, DstOverlap::First), (DstGap::Skip, DstOverlap::Both)] {
        let schedule = Schedule::Cron(Cron { zone: Zone::new(tz.name()), dst_gap, dst_overlap, ..cron.clone() });
        let expected = oracle(case, clocks, dst_gap, dst_overlap);
        let context = || format!("{} in {tz} from {}", case.expression, instant(*window.start()));
        assert_eq!(doings(&schedule, window), expected, "{}, {dst_gap:?}, {dst_overlap:?}", context());
        for minute in window.clone().step_by(47) {
            let next = schedule.next_after(instant(minute)).filter(|next| *next <= instant(*window.end()));
            assert_eq!(next, expected.runs.range(minute + 1..).next().map(|run| instant(*run)), "{}", context());
        }
        if let (Some(first), Some(last)) = (expected.runs.first(), expected.runs.last()) {
            let range = schedule.between(instant(*first), instant(*window.end())).unwrap();
            assert_eq!(range.count, expected.runs.len() as u64, "{}", context());
            assert_eq!(range.last(), instant(*last), "{}", context());
        }
    }
}

/// Looks at every local time of the window, and at which minutes the clocks show it.
fn oracle(case: &Case, clocks: &Clocks, dst_gap: DstGap, dst_overlap: DstOverlap) -> Doings {
    let shown = &clocks.shown;
    let (first, last) = (*shown.keys().next().unwrap(), *shown.keys().next_back().unwrap());
    let mut doings = Doings::default();
    let mut left_out = BTreeSet::new();
    for local in (first..=last).filter(|local| (case.names)(local.rem_euclid(DAY) / 60, local.rem_euclid(60))) {
        match shown.get(&local).map(Vec::as_slice) {
            None if case.has_every_hour => {}
            // What the clocks leave out belongs to the minute at which they go on.
            None => left_out.extend(shown.range(local..).next().map(|(_, minutes)| minutes[0])),
            Some([first, ..]) if dst_overlap == DstOverlap::First && !case.has_every_hour => {
                doings.runs.insert(*first);
            }
            Some(minutes) => doings.runs.extend(minutes),
        }
    }
    match dst_gap {
        DstGap::RunAfter => doings.runs.extend(left_out),
        DstGap::Skip => doings.skips.extend(left_out.difference(&doings.runs)),
    }
    doings
}

/// Goes from run to run.
fn doings(schedule: &Schedule, window: &RangeInclusive<i64>) -> Doings {
    let (from, until) = (instant(*window.start()) - TimeDelta::microseconds(1), instant(window.end() + 1));
    let runs = successors(schedule.next_after(from), |at| schedule.next_after(*at)).take_while(|at| *at < until);
    Doings {
        runs: runs.map(|at| at.timestamp() / 60).collect(),
        skips: schedule.gaps(from, until).iter().map(|at| at.timestamp() / 60).collect(),
    }
}

fn offset(tz: Tz, minute: i64) -> i64 {
    i64::from(tz.offset_from_utc_datetime(&instant(minute).naive_utc()).fix().local_minus_utc()) / 60
}

fn instant(minute: i64) -> Timestamp {
    DateTime::from_timestamp(minute * 60, 0).unwrap()
}

fn minutes(text: &str) -> i64 {
    crate::at(text).timestamp() / 60
}
