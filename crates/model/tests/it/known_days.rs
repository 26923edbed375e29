//! The days on which clocks jump, with the instants that a person would expect.

use std::iter::successors;

use switchboard_model::Timestamp;
use switchboard_model::schedule::{Every, Remark, Schedule, Upcoming, preview};
use switchboard_model::timetable::{Cron, DstGap, DstOverlap};

use crate::at;

const NEW_YORK: &str = "America/New_York";

fn cron(expression: &str, zone: &str, dst_gap: DstGap, dst_overlap: DstOverlap) -> Schedule {
    Schedule::Cron(Cron { dst_gap, dst_overlap, ..Cron::new(expression, zone) })
}

fn on_gap(expression: &str, zone: &str, policy: DstGap) -> Schedule {
    cron(expression, zone, policy, DstOverlap::First)
}

fn on_overlap(expression: &str, zone: &str, policy: DstOverlap) -> Schedule {
    cron(expression, zone, DstGap::RunAfter, policy)
}

/// Checks what a schedule does from `from` on, by preview and by going from run to run.
fn assert_goes(schedule: &Schedule, from: &str, expected: &[(&str, Option<Remark>)]) {
    let upcoming: Vec<_> = expected.iter().map(|(text, remark)| Upcoming { at: at(text), remark: *remark }).collect();
    assert_eq!(preview(schedule, at(from), expected.len()), upcoming, "{schedule:?}");

    let (skipped, runs): (Vec<Upcoming>, Vec<Upcoming>) =
        upcoming.into_iter().partition(|upcoming| upcoming.remark == SKIPPED);
    let instants = |upcoming: Vec<Upcoming>| upcoming.iter().map(|upcoming| upcoming.at).collect::<Vec<_>>();
    let (skipped, runs) = (instants(skipped), instants(runs));
    assert_eq!(after(schedule, at(from)).take(runs.len()).collect::<Vec<_>>(), runs, "{schedule:?}");
    assert_eq!(schedule.gaps(at(from), *runs.last().unwrap()), skipped, "{schedule:?}");
}

fn after(schedule: &Schedule, from: Timestamp) -> impl Iterator<Item = Timestamp> {
    successors(schedule.next_after(from), |at| schedule.next_after(*at))
}

const MOVED: Option<Remark> = Some(Remark::MovedAfterGap);
const SKIPPED: Option<Remark> = Some(Remark::SkippedInGap);
const DROPPED: Option<Remark> = Some(Remark::SecondDropped);

#[test]
fn new_york_loses_an_hour_and_the_gap_policy_decides() {
    let from = "2027-03-13T05:00:00Z";
    for (expression, on_time, after) in [
        ("0 2 * * *", "2027-03-13T07:00:00Z", "2027-03-15T06:00:00Z"),
        ("30 2 * * *", "2027-03-13T07:30:00Z", "2027-03-15T06:30:00Z"),
    ] {
        let gap = "2027-03-14T07:00:00Z";
        let moved = on_gap(expression, NEW_YORK, DstGap::RunAfter);
        assert_goes(&moved, from, &[(on_time, None), (gap, MOVED), (after, None)]);
        let skipped = on_gap(expression, NEW_YORK, DstGap::Skip);
        assert_goes(&skipped, from, &[(on_time, None), (gap, SKIPPED), (after, None)]);
    }
    let twice = |policy| on_gap("30 2,14 * * *", NEW_YORK, policy);
    let day = |gap| [("2027-03-14T07:00:00Z", gap), ("2027-03-14T18:30:00Z", None), ("2027-03-15T06:30:00Z", None)];
    assert_goes(&twice(DstGap::RunAfter), "2027-03-14T05:00:00Z", &day(MOVED));
    assert_goes(&twice(DstGap::Skip), "2027-03-14T05:00:00Z", &day(SKIPPED));
}

#[test]
fn all_that_one_gap_swallows_is_one_occurrence() {
    let quarters = on_gap("*/15 2 * * *", NEW_YORK, DstGap::RunAfter);
    assert_goes(
        &quarters,
        "2027-03-14T05:00:00Z",
        &[("2027-03-14T07:00:00Z", MOVED), ("2027-03-15T06:00:00Z", None), ("2027-03-15T06:15:00Z", None)],
    );
    // 03:00 is the end of the gap and an occurrence of its own.
    for policy in [DstGap::RunAfter, DstGap::Skip] {
        let shared = on_gap("0 2,3 * * *", NEW_YORK, policy);
        let day = [("2027-03-14T07:00:00Z", None), ("2027-03-15T06:00:00Z", None), ("2027-03-15T07:00:00Z", None)];
        assert_goes(&shared, "2027-03-14T05:00:00Z", &day);
    }
}

#[test]
fn new_york_repeats_an_hour_and_the_overlap_policy_decides() {
    let from = "2027-11-07T04:00:00Z";
    let once = |policy| on_overlap("30 1 * * *", NEW_YORK, policy);
    let twice = |policy| on_overlap("30 1,13 * * *", NEW_YORK, policy);
    let (first, second) = ("2027-11-07T05:30:00Z", "2027-11-07T06:30:00Z");
    let (noon, next) = ("2027-11-07T18:30:00Z", "2027-11-08T06:30:00Z");
    assert_goes(&once(DstOverlap::First), from, &[(first, DROPPED), (next, None)]);
    assert_goes(&once(DstOverlap::Both), from, &[(first, None), (second, None), (next, None)]);
    assert_goes(&twice(DstOverlap::First), from, &[(first, DROPPED), (noon, None), (next, None)]);
    assert_goes(&twice(DstOverlap::Both), from, &[(first, None), (second, None), (noon, None), (next, None)]);
}

#[test]
fn the_second_of_two_hours_is_known_from_within() {
    for (policy, next) in [(DstOverlap::First, "2027-11-08T06:45:00Z"), (DstOverlap::Both, "2027-11-07T06:45:00Z")] {
        let schedule = on_overlap("45 1 * * *", NEW_YORK, policy);
        assert_eq!(schedule.next_after(at("2027-11-07T06:44:59Z")), Some(at(next)));
    }
}

#[test]
fn expressions_of_every_hour_count_elapsed_time() {
    for (from, until, runs) in
        [("2027-11-07T03:59:59Z", "2027-11-08T04:59:59Z", 100), ("2027-03-14T04:59:59Z", "2027-03-15T03:59:59Z", 92)]
    {
        for (gap, overlap) in [(DstGap::RunAfter, DstOverlap::First), (DstGap::Skip, DstOverlap::Both)] {
            let quarters = cron("*/15 * * * *", NEW_YORK, gap, overlap);
            let day: Vec<_> = after(&quarters, at(from)).take_while(|instant| *instant <= at(until)).collect();
            assert_eq!(day.len(), runs);
            assert!(day.windows(2).all(|pair| (pair[1] - pair[0]).num_seconds() == 900));
            assert!(preview(&quarters, at(from), runs).iter().all(|upcoming| upcoming.remark.is_none()));
        }
    }
    // An hour that is spelt out is meant once.
    let quarters = on_overlap("*/15 1 * * *", NEW_YORK, DstOverlap::First);
    assert_eq!(after(&quarters, at("2027-11-07T04:00:00Z")).nth(4), Some(at("2027-11-08T06:00:00Z")));
}

#[test]
fn every_two_hours_knows_no_daylight_saving() {
    for anchor in ["2027-03-14T00:00:00Z", "2027-11-07T00:00:00Z"] {
        let every = Schedule::Every(Every { interval: "2h".parse().unwrap(), anchor: Some(at(anchor)) });
        let day: Vec<_> = after(&every, at(anchor)).take(24).collect();
        assert!(day.windows(2).all(|pair| (pair[1] - pair[0]).num_seconds() == 7200));
    }
}

#[test]
fn midnight_in_cairo() {
    let midnight = |policy| on_gap("0 0 * * *", "Africa/Cairo", policy);
    let spring = |gap| [("2027-04-28T22:00:00Z", None), ("2027-04-29T22:00:00Z", gap), ("2027-04-30T21:00:00Z", None)];
    assert_goes(&midnight(DstGap::RunAfter), "2027-04-28T00:00:00Z", &spring(MOVED));
    assert_goes(&midnight(DstGap::Skip), "2027-04-28T00:00:00Z", &spring(SKIPPED));
    // The last hour of 28 October is shown twice; the midnight after it once.
    for policy in [DstOverlap::First, DstOverlap::Both] {
        let autumn = [("2027-10-27T21:00:00Z", None), ("2027-10-28T22:00:00Z", None), ("2027-10-29T22:00:00Z", None)];
        assert_goes(&on_overlap("0 0 * * *", "Africa/Cairo", policy), "2027-10-27T00:00:00Z", &autumn);
    }
    let late = on_overlap("30 23 * * *", "Africa/Cairo", DstOverlap::Both);
    let both = [("2027-10-28T20:30:00Z", None), ("2027-10-28T21:30:00Z", None), ("2027-10-29T21:30:00Z", None)];
    assert_goes(&late, "2027-10-28T00:00:00Z", &both);
}

#[test]
fn midnight_in_santiago() {
    let midnight = |policy| on_gap("0 0 * * *", "America/Santiago", policy);
    let spring = |gap| [("2027-09-04T04:00:00Z", None), ("2027-09-05T04:00:00Z", gap), ("2027-09-06T03:00:00Z", None)];
    assert_goes(&midnight(DstGap::RunAfter), "2027-09-04T00:00:00Z", &spring(MOVED));
    assert_goes(&midnight(DstGap::Skip), "2027-09-04T00:00:00Z", &spring(SKIPPED));
    for policy in [DstOverlap::First, DstOverlap::Both] {
        let autumn = [("2027-04-03T03:00:00Z", None), ("2027-04-04T04:00:00Z", None), ("2027-04-05T04:00:00Z", None)];
        assert_goes(&on_overlap("0 0 * * *", "America/Santiago", policy), "2027-04-03T00:00:00Z", &autumn);
    }
}

#[test]
fn midnight_in_havana() {
    let midnight = |policy| on_gap("0 0 * * *", "America/Havana", policy);
    let spring = |gap| [("2027-03-13T05:00:00Z", None), ("2027-03-14T05:00:00Z", gap), ("2027-03-15T04:00:00Z", None)];
    assert_goes(&midnight(DstGap::RunAfter), "2027-03-13T00:00:00Z", &spring(MOVED));
    assert_goes(&midnight(DstGap::Skip), "2027-03-13T00:00:00Z", &spring(SKIPPED));
    let midnight = |policy| on_overlap("0 0 * * *", "America/Havana", policy);
    let first = [("2027-11-06T04:00:00Z", None), ("2027-11-07T04:00:00Z", DROPPED), ("2027-11-08T05:00:00Z", None)];
    assert_goes(&midnight(DstOverlap::First), "2027-11-06T00:00:00Z", &first);
    let both = [("2027-11-07T04:00:00Z", None), ("2027-11-07T05:00:00Z", None), ("2027-11-08T05:00:00Z", None)];
    assert_goes(&midnight(DstOverlap::Both), "2027-11-07T00:00:00Z", &both);
}

#[test]
fn apia_had_no_30_december_2011() {
    let noon = |policy| on_gap("0 12 * * *", "Pacific/Apia", policy);
    let days = |gap| [("2011-12-29T22:00:00Z", None), ("2011-12-30T10:00:00Z", gap), ("2011-12-30T22:00:00Z", None)];
    assert_goes(&noon(DstGap::RunAfter), "2011-12-29T12:00:00Z", &days(MOVED));
    assert_goes(&noon(DstGap::Skip), "2011-12-29T12:00:00Z", &days(SKIPPED));
    // The missing day ends at midnight, where the next day starts anyway.
    let midnight = on_gap("0 0 * * *", "Pacific/Apia", DstGap::RunAfter);
    let days = [("2011-12-29T10:00:00Z", None), ("2011-12-30T10:00:00Z", None), ("2011-12-31T10:00:00Z", None)];
    assert_goes(&midnight, "2011-12-29T00:00:00Z", &days);
    let that_day = |policy| on_gap("0 12 30 12 *", "Pacific/Apia", policy);
    assert_goes(&that_day(DstGap::RunAfter), "2011-01-01T00:00:00Z", &[("2011-12-30T10:00:00Z", MOVED)]);
    let skipped = [("2011-12-30T10:00:00Z", SKIPPED), ("2012-12-29T22:00:00Z", None)];
    assert_goes(&that_day(DstGap::Skip), "2011-01-01T00:00:00Z", &skipped);
    let hours: Vec<_> =
        after(&on_gap("0 * * * *", "Pacific/Apia", DstGap::Skip), at("2011-12-30T08:00:00Z")).take(3).collect();
    assert_eq!(hours, [at("2011-12-30T09:00:00Z"), at("2011-12-30T10:00:00Z"), at("2011-12-30T11:00:00Z")]);
}

#[test]
fn a_gap_of_half_an_hour_and_a_repeat_of_half_an_hour() {
    let lord_howe = |policy| on_gap("15 2 * * *", "Australia/Lord_Howe", policy);
    let spring = |gap| [("2027-10-02T15:30:00Z", gap), ("2027-10-03T15:15:00Z", None)];
    assert_goes(&lord_howe(DstGap::RunAfter), "2027-10-02T12:00:00Z", &spring(MOVED));
    assert_goes(&lord_howe(DstGap::Skip), "2027-10-02T12:00:00Z", &spring(SKIPPED));
    let both = on_overlap("45 1 * * *", "Australia/Lord_Howe", DstOverlap::Both);
    assert_goes(&both, "2027-04-03T12:00:00Z", &[("2027-04-03T14:45:00Z", None), ("2027-04-03T15:15:00Z", None)]);
}

#[test]
fn rare_occurrences_find_their_gap_and_their_repeat() {
    let spring = |policy| on_gap("30 2 14 3 *", NEW_YORK, policy);
    let (gap, next) = ("2027-03-14T07:00:00Z", "2028-03-14T06:30:00Z");
    assert_goes(&spring(DstGap::RunAfter), "2026-03-15T00:00:00Z", &[(gap, MOVED), (next, None)]);
    assert_goes(&spring(DstGap::Skip), "2026-03-15T00:00:00Z", &[(gap, SKIPPED), (next, None)]);
    let autumn = |policy| on_overlap("30 1 7 11 *", NEW_YORK, policy);
    let (first, second) = ("2027-11-07T05:30:00Z", "2027-11-07T06:30:00Z");
    assert_goes(
        &autumn(DstOverlap::First),
        "2026-11-08T00:00:00Z",
        &[(first, DROPPED), ("2028-11-07T06:30:00Z", None)],
    );
    assert_goes(&autumn(DstOverlap::Both), "2026-11-08T00:00:00Z", &[(first, None), (second, None)]);
}
