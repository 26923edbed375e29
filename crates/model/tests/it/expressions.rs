//! What expressions mean where no clock jumps, and which are refused.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use switchboard_model::Timestamp;
use switchboard_model::schedule::{Schedule, ScheduleError, preview};
use switchboard_model::task::TaskSpec;
use switchboard_model::timetable::{Cron, DayMatch, DstGap, Zone};
use switchboard_model::wire::code::ErrorCode;

use crate::at;

fn cron(expression: &str) -> Schedule {
    Schedule::Cron(Cron::new(expression, "UTC"))
}

fn next(schedule: &Schedule, from: &str, n: usize) -> Vec<Timestamp> {
    preview(schedule, at(from), n).iter().map(|upcoming| upcoming.at).collect()
}

fn days(texts: &[&str]) -> Vec<Timestamp> {
    texts.iter().map(|day| at(&format!("{day}T00:00:00Z"))).collect()
}

#[test]
fn two_day_fields_mean_either_unless_the_policy_says_both() {
    let with = |day_match| Schedule::Cron(Cron { day_match, ..Cron::new("0 0 13 * 5", "UTC") });
    assert_eq!(
        next(&with(DayMatch::Or), "2027-09-04T00:00:00Z", 4),
        days(&["2027-09-10", "2027-09-13", "2027-09-17", "2027-09-24"])
    );
    assert_eq!(next(&with(DayMatch::And), "2027-08-01T00:00:00Z", 2), days(&["2027-08-13", "2028-10-13"]));
    // A field that is free restricts nothing, so the other decides under either policy.
    for day_match in [DayMatch::Or, DayMatch::And] {
        for (expression, day) in
            [("0 0 13 * *", "2027-08-13"), ("0 0 13 * ?", "2027-08-13"), ("0 0 * * 1", "2027-08-02")]
        {
            let schedule = Schedule::Cron(Cron { day_match, ..Cron::new(expression, "UTC") });
            assert_eq!(next(&schedule, "2027-08-01T00:00:00Z", 1), days(&[day]), "{expression}");
        }
    }
}

#[test]
fn sunday_is_0_and_7_and_has_a_name() {
    let minutes = |expression| next(&cron(expression), "2027-01-02T12:00:00Z", 2_000);
    let sundays = minutes("* * * * 0");
    assert_eq!(sundays[0], at("2027-01-03T00:00:00Z"));
    assert_eq!(sundays[1_440], at("2027-01-10T00:00:00Z"));
    assert_eq!(minutes("* * * * 7"), sundays);
    assert_eq!(minutes("* * * * SUN"), sundays);
    assert_eq!(
        next(&cron("0 0 * * FRI-SUN"), "2027-01-03T00:00:00Z", 3),
        days(&["2027-01-08", "2027-01-09", "2027-01-10"])
    );
}

#[test]
fn macros_are_the_expressions_they_stand_for() {
    for (name, first) in [
        ("@hourly", "2026-12-02T11:00:00Z"),
        ("@daily", "2026-12-03T00:00:00Z"),
        ("@midnight", "2026-12-03T00:00:00Z"),
        ("@weekly", "2026-12-06T00:00:00Z"),
        ("@monthly", "2027-01-01T00:00:00Z"),
        ("@yearly", "2027-01-01T00:00:00Z"),
        ("@annually", "2027-01-01T00:00:00Z"),
    ] {
        assert_eq!(next(&cron(name), "2026-12-02T10:30:00Z", 1), [at(first)], "{name}");
    }
}

#[test]
fn six_fields_start_with_seconds() {
    let schedule = cron("*/5 59 23 31 12 *");
    assert_eq!(next(&schedule, "2026-12-31T23:59:54.5Z", 2), [at("2026-12-31T23:59:55Z"), at("2027-12-31T23:59:00Z")]);
}

#[test]
fn leap_days_are_found() {
    assert_eq!(next(&cron("0 0 29 2 *"), "2026-01-01T00:00:00Z", 2), days(&["2028-02-29", "2032-02-29"]));
    assert_eq!(next(&cron("0 0 29 2 *"), "2096-03-01T00:00:00Z", 1), days(&["2104-02-29"]));
    let sunday = Cron { day_match: DayMatch::And, ..Cron::new("0 0 29 2 SUN", "UTC") };
    assert_eq!(next(&Schedule::Cron(sunday), "2088-03-01T00:00:00Z", 1), days(&["2128-02-29"]));
}

#[test]
fn what_never_fires_is_refused_in_a_blink() {
    let now = at("2026-11-30T12:00:00Z");
    for zone in ["UTC", "America/New_York"] {
        for expression in ["0 0 30 2 *", "0 0 31 4,6 *", "*/5 * * 31 2,4,6,9,11 *"] {
            let refused = || Schedule::Cron(Cron::new(expression, zone)).anchored(now);
            assert_eq!(refused(), Err(ScheduleError::NeverFires), "{expression}");
            assert!(best_of_five(refused) < Duration::from_millis(50), "{expression}");
        }
    }
    // The second Sunday of March, at an hour that it lacks for as long as the rules of the zone are known.
    let gap =
        Cron { dst_gap: DstGap::Skip, day_match: DayMatch::And, ..Cron::new("30 2 8-14 3 7", "America/New_York") };
    let gap = Schedule::Cron(gap);
    assert!(gap.next_after(now).is_none_or(|next| next > at("2099-01-01T00:00:00Z")));
    assert!(best_of_five(|| gap.next_after(now)) < Duration::from_millis(50));
}

#[test]
fn what_lies_behind_a_range_is_not_looked_through() {
    let from = at("2027-01-01T00:00:00Z");
    for expression in ["* * * * * *", "30 2 * * *", "0 0 29 2 *"] {
        let schedule = Schedule::Cron(Cron::new(expression, "America/New_York"));
        let first = schedule.next_after(from).unwrap();
        let range = schedule.between(first, first + chrono::TimeDelta::days(10)).unwrap();
        // Going through the days up to there would take minutes.
        let took = best_of_five(|| assert_eq!(range.count_before(Timestamp::MAX_UTC), range.count));
        assert!(took < Duration::from_secs(2), "{expression} took {took:?}");
    }
}

/// Measures what something takes when nothing else is in its way.
fn best_of_five<T>(mut it: impl FnMut() -> T) -> Duration {
    let measure = |_| {
        let started = Instant::now();
        std::hint::black_box(it());
        started.elapsed()
    };
    (0..5).map(measure).min().unwrap()
}

#[test]
fn aliases_of_zones_are_zones() {
    for (alias, zone) in
        [("Europe/Kiev", "Europe/Kyiv"), ("US/Eastern", "America/New_York"), ("Asia/Calcutta", "Asia/Kolkata")]
    {
        let daily = |zone| next(&Schedule::Cron(Cron::new("30 2 * * *", zone)), "2027-01-01T00:00:00Z", 365);
        assert_eq!(daily(alias), daily(zone));
        assert_eq!(Zone::new(alias).as_str(), alias);
    }
}

#[test]
fn tasks_are_refused_with_the_code_and_the_field() {
    let refused = |cron: &str| {
        let text = format!(r#"{{"name":"t","action":{{"system":{{"function":"f"}}}},"schedule":{{"cron":{cron}}}}}"#);
        let error = serde_json::from_str::<TaskSpec>(&text).unwrap().checked(at("2026-11-30T12:00:00Z")).unwrap_err();
        (error.code(), error.field)
    };
    let never = r#"{"expression":"0 0 30 2 *"}"#;
    assert_eq!(refused(never), (ErrorCode::ScheduleNeverFires, "schedule"));
    let zone = r#"{"expression":"@daily","zone":"Mars/Olympus"}"#;
    assert_eq!(refused(zone), (ErrorCode::ZoneUnknown, "schedule.cron.zone"));
    let expression = r#"{"expression":"every day"}"#;
    assert_eq!(refused(expression), (ErrorCode::ValidationFailed, "schedule.cron.expression"));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_and_time_goes_on(text in ".{0,40}|[0-9A-Z*?,/@ -]{0,40}", micros in any::<i64>()) {
        let schedule = cron(&text);
        let from = Timestamp::from_timestamp_micros(micros).unwrap_or_default();
        prop_assert!(schedule.next_after(from).is_none_or(|next| next > from));
    }

    #[test]
    fn next_is_later_on_the_edges_of_the_calendar(from in prop_oneof![
        Just(Timestamp::MIN_UTC), Just(Timestamp::MAX_UTC), Just(Timestamp::UNIX_EPOCH)
    ], zone in prop_oneof![Just("UTC"), Just("America/New_York"), Just("Pacific/Apia")]) {
        let schedule = Schedule::Cron(Cron::new("* * * * * *", zone));
        prop_assert!(schedule.next_after(from).is_none_or(|next| next > from));
    }
}
