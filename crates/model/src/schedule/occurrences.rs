//! A run of consecutive occurrences, kept as a rule instead of a list, so that years of them cost little.

use std::iter::successors;

use chrono::TimeDelta;

use crate::Timestamp;
use crate::run::{SkipCause, SkipRange};
use crate::span::Span;
use crate::timetable::Timetable;

/// A run of consecutive occurrences. Those that a gap of local time skips are not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrences {
    /// The first occurrence.
    pub first: Timestamp,
    /// How many there are, at least 1.
    pub count: u64,
    rhythm: Rhythm,
}

/// What follows an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rhythm {
    /// The next one after a fixed time; unused when there is one only.
    Step(Span),
    /// The next one of the timetable; nothing that is counted lies at this instant or after it.
    Calendar(Timetable, Timestamp),
}

impl Occurrences {
    pub(super) const fn once(at: Timestamp) -> Self {
        Self { first: at, count: 1, rhythm: Rhythm::Step(Span::from_millis(0)) }
    }

    /// Returns those from `first` to `until` inclusive, at a fixed distance.
    pub(super) fn stepping(step: Span, first: Timestamp, until: Timestamp) -> Self {
        let ms = (until - first).num_milliseconds().unsigned_abs();
        Self { first, count: ms / step.as_millis().max(1) + 1, rhythm: Rhythm::Step(step) }
    }

    /// Returns `first` and those that the timetable has after it, to `until` inclusive.
    pub(super) fn on_calendar(timetable: Timetable, first: Timestamp, until: Timestamp) -> Self {
        let past_until = until.checked_add_signed(TimeDelta::microseconds(1)).unwrap_or(until);
        let count = 1 + timetable.count(first, past_until);
        Self { first, count, rhythm: Rhythm::Calendar(timetable, past_until) }
    }

    /// Returns the occurrence with the given index, the last one for any index past the end.
    #[must_use]
    pub fn get(&self, index: u64) -> Timestamp {
        let index = index.min(self.count - 1);
        match self.rhythm {
            _ if index == 0 => self.first,
            Rhythm::Step(step) => {
                self.first + TimeDelta::milliseconds(step.as_millis().saturating_mul(index).cast_signed())
            }
            // The count says that it is there.
            Rhythm::Calendar(timetable, _) => {
                timetable.nth(self.first, Timestamp::MAX_UTC, index - 1).unwrap_or(self.first)
            }
        }
    }

    /// Returns the last occurrence.
    #[must_use]
    pub fn last(&self) -> Timestamp {
        self.get(self.count - 1)
    }

    /// Returns the part that starts at `index`, if anything is left there.
    #[must_use]
    pub fn skip(&self, index: u64) -> Option<Self> {
        (index < self.count).then(|| Self { first: self.get(index), count: self.count - index, ..*self })
    }

    /// Returns the first `count` occurrences, if that is any.
    #[must_use]
    pub fn take(&self, count: u64) -> Option<Self> {
        (count > 0).then(|| Self { count: self.count.min(count), ..*self })
    }

    /// Counts the occurrences that lie before `instant`.
    #[must_use]
    pub fn count_before(&self, instant: Timestamp) -> u64 {
        if instant <= self.first {
            return 0;
        }
        let count = match self.rhythm {
            Rhythm::Step(step) => {
                let ahead = (instant - self.first).num_microseconds().unwrap_or(i64::MAX);
                ahead.unsigned_abs().div_ceil(step.as_millis().saturating_mul(1000).max(1))
            }
            // Looked through day by day, so never beyond what there is.
            Rhythm::Calendar(timetable, past_until) => 1 + timetable.count(self.first, instant.min(past_until)),
        };
        count.min(self.count)
    }

    /// Returns them as a range that was skipped for one cause.
    #[must_use]
    pub fn skipped(&self, cause: SkipCause) -> SkipRange {
        SkipRange { from: self.first, to: self.last(), count: self.count, cause }
    }

    /// Goes through the occurrences from the first to the last.
    pub fn iter(self) -> impl Iterator<Item = Timestamp> {
        let next = move |at: &Timestamp| match self.rhythm {
            Rhythm::Step(step) => at.checked_add_signed(step.to_delta()),
            Rhythm::Calendar(timetable, _) => timetable.next_after(*at),
        };
        // A count that does not fit cannot be gone through anyway.
        successors(Some(self.first), next).take(usize::try_from(self.count).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Every, Schedule};
    use crate::timetable::Cron;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn both() -> [Schedule; 2] {
        let every = Every { interval: Span::from_secs(5), anchor: Some(at("2027-01-01T00:00:00Z")) };
        [Schedule::Every(every), Schedule::Cron(Cron::new("*/5 * * * * *", "America/New_York"))]
    }

    #[test]
    fn fourteen_days_of_five_seconds_are_not_listed() {
        for schedule in both() {
            let due = schedule.between(at("2027-03-10T00:00:05Z"), at("2027-03-24T00:00:07Z")).unwrap();
            assert_eq!(due.count, 14 * 17_280 + 1);
            assert_eq!(due.last(), at("2027-03-24T00:00:05Z"));
            assert_eq!(due.count_before(at("2027-03-10T00:00:05Z")), 0);
            assert_eq!(due.count_before(at("2027-03-10T00:00:10Z")), 1);
            assert_eq!(due.count_before(at("2027-03-10T00:00:10.000001Z")), 2);
            assert_eq!(due.count_before(at("2028-01-01T00:00:00Z")), due.count);
            assert_eq!(due.skip(due.count), None);
            assert_eq!(due.take(0), None);
        }
    }

    #[test]
    fn parts_agree_with_going_through_all() {
        for schedule in both() {
            let due = schedule.between(at("2027-03-14T06:59:30Z"), at("2027-03-14T07:01:00Z")).unwrap();
            let all: Vec<_> = due.iter().collect();
            assert_eq!(all.len() as u64, due.count);
            for index in 0..due.count {
                let instant = due.get(index);
                assert_eq!(instant, all[usize::try_from(index).unwrap()]);
                assert_eq!(due.count_before(instant), index);
                let (head, tail) = (due.take(index), due.skip(index).unwrap());
                assert_eq!(head.map_or(0, |head| head.count) + tail.count, due.count);
                assert_eq!(tail.iter().collect::<Vec<_>>(), all[usize::try_from(index).unwrap()..]);
            }
        }
    }

    #[test]
    fn ten_years_of_seconds_are_counted() {
        let schedule = Schedule::Cron(Cron::new("* * * * * *", "Europe/Berlin"));
        let due = schedule.between(at("2020-01-01T00:00:00Z"), at("2029-12-31T23:59:59Z")).unwrap();
        assert_eq!(due.count, 3653 * 86_400);
        assert_eq!(due.last(), at("2029-12-31T23:59:59Z"));
    }
}
