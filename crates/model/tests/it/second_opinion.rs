//! Random expressions in zones without jumps, against a second implementation.
//!
//! The expressions are those that both accept: the other one refuses `a/n` and wants the start of a range before
//! its end.

use croner::Cron as Other;
use croner::parser::{CronParser, Seconds};
use proptest::prelude::*;
use switchboard_model::Timestamp;
use switchboard_model::schedule::{Schedule, preview};
use switchboard_model::timetable::Cron;

/// A field of values from `least` to `most`: a list of values, ranges and steps.
fn field(least: u32, most: u32) -> impl Strategy<Value = String> {
    let value = least..=most;
    let range = (least..=most, least..=most).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let item = prop_oneof![
        4 => value.prop_map(|value| value.to_string()),
        2 => range.clone().prop_map(|(from, to)| format!("{from}-{to}")),
        1 => (range, 1..=5_u32).prop_map(|((from, to), step)| format!("{from}-{to}/{step}")),
        1 => (2..=7_u32).prop_map(|step| format!("*/{step}")),
    ];
    prop_oneof![2 => Just("*".to_owned()), 3 => prop::collection::vec(item, 1..4).prop_map(|items| items.join(","))]
}

fn expression() -> impl Strategy<Value = String> {
    let fields = (field(0, 59), field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 7));
    fields.prop_map(|(second, minute, hour, day, month, weekday)| {
        format!("{second} {minute} {hour} {day} {month} {weekday}")
    })
}

fn other(expression: &str) -> Other {
    CronParser::builder().seconds(Seconds::Required).build().parse(expression).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn both_find_the_same_occurrences(
        expression in expression(),
        zone in prop_oneof![Just(chrono_tz::UTC), Just(chrono_tz::Asia::Kolkata), Just(chrono_tz::America::Phoenix)],
        from in 1_600_000_000_i64..2_400_000_000,
    ) {
        let from = Timestamp::from_timestamp(from, 0).unwrap();
        let schedule = Schedule::Cron(Cron::new(&expression, zone.name()));
        prop_assert_eq!(schedule.check(), Ok(()));
        let ours: Vec<_> = preview(&schedule, from, 20).iter().map(|upcoming| upcoming.at).collect();
        let theirs = other(&expression).iter_after(from.with_timezone(&zone)).take(ours.len());
        prop_assert_eq!(ours.clone(), theirs.map(|at| at.to_utc()).collect::<Vec<_>>());
        prop_assert!(ours.len() == 20 || other(&expression).find_next_occurrence(&from.with_timezone(&zone), false).is_err());
    }
}
