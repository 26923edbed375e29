//! Schedules: when a task is due. Pure arithmetic over instants; the database says what time it is.

use chrono::{SubsecRound as _, TimeDelta};
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::span::Span;

/// The shortest interval of an `every` schedule.
pub const SHORTEST_INTERVAL: Span = Span::from_millis(100);

/// When a task is due. A task without a schedule runs only when it is triggered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// A fixed interval, counted in elapsed time and so untouched by daylight saving.
    Every(Every),
    /// One instant.
    At(Timestamp),
}

/// A fixed interval from an anchor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Every {
    /// The time between two occurrences, at least [`SHORTEST_INTERVAL`].
    pub interval: Span,
    /// An instant of the grid; the creation of the task when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<Timestamp>,
}

/// Why a schedule is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The interval is below [`SHORTEST_INTERVAL`].
    #[error("the interval must be at least {SHORTEST_INTERVAL}")]
    IntervalTooShort,
    /// No occurrence lies in the future.
    #[error("the schedule never fires: it has no occurrence in the future")]
    NeverFires,
}

/// A run of consecutive occurrences, kept as arithmetic so that years of them cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrences {
    /// The first occurrence.
    pub first: Timestamp,
    /// The time between two occurrences; unused when there is one.
    pub step: Span,
    /// How many there are, at least 1.
    pub count: u64,
}

impl Occurrences {
    /// Returns the occurrence with the given index, the last one for any index past the end.
    #[must_use]
    pub fn get(&self, index: u64) -> Timestamp {
        let steps = index.min(self.count - 1);
        self.first + TimeDelta::milliseconds(self.step.as_millis().saturating_mul(steps).cast_signed())
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
        let ahead = (instant - self.first).num_microseconds().unwrap_or(i64::MAX);
        if ahead <= 0 {
            return 0;
        }
        let step = self.step.as_millis().saturating_mul(1000).max(1);
        (ahead.unsigned_abs().div_ceil(step)).min(self.count)
    }

    /// Goes through the occurrences from the first to the last.
    pub fn iter(self) -> impl Iterator<Item = Timestamp> {
        (0..self.count).map(move |index| self.get(index))
    }
}

impl Schedule {
    /// Checks the schedule and fixes the anchor that a stored schedule must have.
    ///
    /// # Errors
    /// [`ScheduleError`] says what is wrong.
    pub fn anchored(self, created_at: Timestamp) -> Result<Self, ScheduleError> {
        match self {
            Self::Every(every) if every.interval < SHORTEST_INTERVAL => Err(ScheduleError::IntervalTooShort),
            Self::Every(every) => Ok(Self::Every(Every { anchor: every.anchor.or(Some(created_at)), ..every })),
            // Finer than the databases store it, the instant would come after its own occurrence.
            Self::At(instant) => Ok(Self::At(instant.trunc_subsecs(6))),
        }
    }

    /// Returns the first occurrence after `instant`; always later than `instant`.
    #[must_use]
    pub fn next_after(&self, instant: Timestamp) -> Option<Timestamp> {
        match self {
            Self::At(at) => (*at > instant).then_some(*at),
            Self::Every(every) => {
                let step = i64::try_from(every.interval.as_millis().saturating_mul(1000)).ok()?;
                let anchor = every.anchor.unwrap_or(instant).timestamp_micros();
                let elapsed = instant.timestamp_micros().checked_sub(anchor)?;
                let next = anchor.checked_add(elapsed.div_euclid(step).checked_add(1)?.checked_mul(step)?)?;
                Timestamp::from_timestamp_micros(next)
            }
        }
    }

    /// Returns the occurrences from `from`, itself one of them, to `until` inclusive.
    #[must_use]
    pub fn between(&self, from: Timestamp, until: Timestamp) -> Option<Occurrences> {
        if from > until {
            return None;
        }
        match self {
            Self::At(_) => Some(Occurrences { first: from, step: Span::default(), count: 1 }),
            Self::Every(every) => {
                let ms = (until - from).num_milliseconds().unsigned_abs();
                let count = ms / every.interval.as_millis().max(1) + 1;
                Some(Occurrences { first: from, step: every.interval, count })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn every(interval: &str, anchor: &str) -> Schedule {
        Schedule::Every(Every { interval: interval.parse().unwrap(), anchor: Some(at(anchor)) })
    }

    #[test]
    fn every_stays_on_its_grid_and_always_moves_on() {
        let schedule = every("2h", "2027-03-14T00:00:00Z");
        assert_eq!(schedule.next_after(at("2027-03-14T06:30:00Z")), Some(at("2027-03-14T08:00:00Z")));
        assert_eq!(schedule.next_after(at("2027-03-14T08:00:00Z")), Some(at("2027-03-14T10:00:00Z")));
        assert_eq!(schedule.next_after(at("2027-03-13T23:00:00Z")), Some(at("2027-03-14T00:00:00Z")));
    }

    #[test]
    fn at_fires_once() {
        let schedule = Schedule::At(at("2027-01-01T00:00:00Z"));
        assert_eq!(schedule.next_after(at("2026-12-31T23:59:59Z")), Some(at("2027-01-01T00:00:00Z")));
        assert_eq!(schedule.next_after(at("2027-01-01T00:00:00Z")), None);
    }

    #[test]
    fn an_instant_is_kept_as_finely_as_the_databases_store_it() {
        let fine = Schedule::At(at("2027-01-01T00:00:00.0000019Z"));
        let kept = fine.anchored(at("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(kept, Schedule::At(at("2027-01-01T00:00:00.000001Z")));
        assert_eq!(kept.next_after(at("2027-01-01T00:00:00.000001Z")), None);
    }

    #[test]
    fn fourteen_days_of_five_seconds_are_arithmetic() {
        let schedule = every("5s", "2027-01-01T00:00:00Z");
        let due = schedule.between(at("2027-01-01T00:00:05Z"), at("2027-01-15T00:00:07Z")).unwrap();
        assert_eq!(due.count, 14 * 17_280 + 1);
        assert_eq!(due.last(), at("2027-01-15T00:00:05Z"));
        assert_eq!(due.count_before(at("2027-01-01T00:00:10Z")), 1);
        assert_eq!(due.count_before(at("2027-01-01T00:00:10.000001Z")), 2);
        assert_eq!(due.skip(due.count), None);
    }

    #[test]
    fn refuses_intervals_that_are_too_short() {
        let short = every("1ms", "2027-01-01T00:00:00Z");
        assert_eq!(short.anchored(at("2027-01-01T00:00:00Z")), Err(ScheduleError::IntervalTooShort));
    }
}
