//! Schedules: any text is kept as it was written, and one that is accepted moves on with every occurrence.

#![no_main]

use libfuzzer_sys::fuzz_target;
use switchboard_model::Timestamp;
use switchboard_model::schedule::Schedule;
use switchboard_model::timetable::Cron;

/// Zones whose clocks jump in every way there is: by an hour, by half of one, over a day, and not at all.
const ZONES: [&str; 6] =
    ["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo"];

fn check(schedule: &Schedule, from: Timestamp) {
    let written = serde_json::to_string(schedule).expect("every schedule has a text");
    assert_eq!(serde_json::from_str::<Schedule>(&written).expect("a schedule that was written"), *schedule);
    if schedule.check().is_err() {
        return;
    }
    let mut instant = from;
    for _ in 0..3 {
        let Some(next) = schedule.next_after(instant) else { return };
        assert!(next > instant, "{written} goes from {instant} to {next}");
        let first = schedule.between(next, next).and_then(|found| found.iter().next());
        assert_eq!(first, Some(next), "{written}");
        instant = next;
    }
}

fuzz_target!(|input: (u8, i32, &str)| {
    let (zone, seconds, text) = input;
    // Some decades around now, to which the rules of zones reach.
    let Some(from) = Timestamp::from_timestamp(i64::from(seconds), 0) else { return };
    check(&Schedule::Cron(Cron::new(text, ZONES[usize::from(zone) % ZONES.len()])), from);
    if let Ok(schedule) = serde_json::from_str::<Schedule>(text) {
        check(&schedule, from);
    }
});
