//! What comes next, for people: occurrences with what the policies did to them.

use std::iter::successors;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Schedule;
use crate::Timestamp;
use crate::timetable::Fate;

/// An occurrence to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Upcoming {
    /// When it is due.
    pub at: Timestamp,
    /// What a policy did to it, if any had to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<Remark>,
}

/// What a policy did to an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Remark {
    /// Its local time does not exist on that day, so it runs right after the gap.
    MovedAfterGap,
    /// Its local time does not exist on that day, so it is skipped.
    SkippedInGap,
    /// Its local time exists twice on that day; this is the first, and the second is dropped.
    SecondDropped,
}

/// Returns the next `n` occurrences after `from`, with those that are skipped; fewer if the schedule cannot be
/// read or has no more, on a calendar within 100 years.
#[must_use]
pub fn preview(schedule: &Schedule, from: Timestamp, n: usize) -> Vec<Upcoming> {
    let Schedule::Cron(cron) = schedule else {
        let instants = successors(schedule.next_after(from), |at| schedule.next_after(*at));
        return instants.take(n).map(|at| Upcoming { at, remark: None }).collect();
    };
    let Ok(timetable) = cron.timetable() else { return Vec::new() };
    let remark = |at, fate| match fate {
        Fate::Moved => Some(Remark::MovedAfterGap),
        Fate::Skipped => Some(Remark::SkippedInGap),
        Fate::Shown => timetable.drops_second_of(at).then_some(Remark::SecondDropped),
    };
    timetable.after(from).take(n).map(|(at, fate)| Upcoming { at, remark: remark(at, fate) }).collect()
}
