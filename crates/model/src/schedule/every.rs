//! Fixed intervals, counted in elapsed time from an anchor.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ScheduleError;
use crate::Timestamp;
use crate::span::Span;

/// The shortest interval of an `every` schedule.
pub const SHORTEST_INTERVAL: Span = Span::from_millis(100);

/// A fixed interval from an anchor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Every {
    /// The time between two occurrences, at least 100 ms.
    pub interval: Span,
    /// An instant of the grid; the creation of the task when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<Timestamp>,
}

impl Every {
    pub(super) fn check(&self) -> Result<(), ScheduleError> {
        if self.interval < SHORTEST_INTERVAL { Err(ScheduleError::IntervalTooShort) } else { Ok(()) }
    }

    pub(super) fn next_after(&self, instant: Timestamp) -> Option<Timestamp> {
        let step = i64::try_from(self.interval.as_millis().saturating_mul(1000)).ok()?;
        let anchor = self.anchor.unwrap_or(instant).timestamp_micros();
        let elapsed = instant.timestamp_micros().checked_sub(anchor)?;
        let next = anchor.checked_add(elapsed.checked_div_euclid(step)?.checked_add(1)?.checked_mul(step)?)?;
        Timestamp::from_timestamp_micros(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(interval: &str, anchor: &str) -> Every {
        Every { interval: interval.parse().unwrap(), anchor: Some(at(anchor)) }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn every_stays_on_its_grid_and_always_moves_on() {
        let schedule = every("2h", "2027-03-14T00:00:00Z");
        assert_eq!(schedule.next_after(at("2027-03-14T06:30:00Z")), Some(at("2027-03-14T08:00:00Z")));
        assert_eq!(schedule.next_after(at("2027-03-14T08:00:00Z")), Some(at("2027-03-14T10:00:00Z")));
        assert_eq!(schedule.next_after(at("2027-03-13T23:00:00Z")), Some(at("2027-03-14T00:00:00Z")));
    }

    #[test]
    fn refuses_intervals_that_are_too_short() {
        assert_eq!(every("1ms", "2027-01-01T00:00:00Z").check(), Err(ScheduleError::IntervalTooShort));
        assert_eq!(every("100ms", "2027-01-01T00:00:00Z").check(), Ok(()));
        assert_eq!(every("0s", "2027-01-01T00:00:00Z").next_after(at("2027-01-01T00:00:00Z")), None);
    }
}
