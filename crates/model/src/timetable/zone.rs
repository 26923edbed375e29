//! Zones: what local time their clocks show, cut into stretches without a jump. Knows no expressions.

use chrono::{DateTime, Offset, TimeZone};
use chrono_tz::Tz;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fields::DAY;
use crate::schedule::ScheduleError;

/// A zone by its IANA name, such as `Europe/Paris`.
///
/// Any name can be kept, so that a stored schedule with a zone that this version does not know can still be
/// shown; using it is what fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(extend("examples" = ["Europe/Paris", "UTC"]))]
pub struct Zone {
    name: String,
    tz: Option<Tz>,
}

impl Zone {
    /// Looks a zone up.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { tz: name.parse().ok(), name }
    }

    /// Returns the name as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    pub(super) fn tz(&self) -> Result<Tz, ScheduleError> {
        self.tz.ok_or_else(|| ScheduleError::ZoneUnknown(self.name.chars().take(80).collect()))
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self { name: Tz::UTC.name().to_owned(), tz: Some(Tz::UTC) }
    }
}

impl From<String> for Zone {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.name
    }
}

/// At most a day of a zone between two instants, in seconds since 1970, in which its clocks do not jump.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// The first instant.
    pub(super) start: i64,
    /// The first instant after it.
    pub(super) end: i64,
    /// What is added to an instant to get local time.
    pub(super) offset: i64,
    /// If the clocks jumped forward at the start, the first local time that they left out.
    pub(super) gap_from: Option<i64>,
    /// The first local time that the clocks did not show already before they went back.
    pub(super) fresh_from: i64,
}

impl Stretch {
    /// Finds the stretch that starts at an instant and ends before `until`, which must be later.
    pub(super) fn at(tz: Tz, start: i64, until: i64) -> Self {
        let offset = offset(tz, start);
        let offset_before = self::offset(tz, start - 1);
        // The clocks were never put back by more than a day, so a jump that was longer ago has been made up for.
        let fresh_from = jump(tz, start - DAY, start).map_or(i64::MIN, |jump| jump + self::offset(tz, jump - 1));
        Self {
            start,
            end: jump(tz, start, start + DAY).unwrap_or(start + DAY).min(until),
            offset,
            gap_from: (offset_before < offset).then_some(start + offset_before),
            fresh_from,
        }
    }

    /// Returns the local time at the start.
    pub(super) const fn local_start(&self) -> i64 {
        self.start + self.offset
    }

    /// Returns the local time at the end, had the clocks not jumped there.
    pub(super) const fn local_end(&self) -> i64 {
        self.end + self.offset
    }
}

/// Tells whether the clocks will show the local time of an instant once more.
pub(super) fn comes_again(tz: Tz, instant: i64) -> bool {
    jump(tz, instant, instant + DAY).is_some_and(|jump| jump + offset(tz, jump) <= instant + offset(tz, instant))
}

/// Finds the first jump after `from`, up to and including `until`, which is a day later.
fn jump(tz: Tz, from: i64, until: i64) -> Option<i64> {
    let before = offset(tz, from);
    // No zone jumps there and back within a day.
    if offset(tz, until) == before {
        return None;
    }
    let (mut same, mut other) = (from, until);
    while other - same > 1 {
        let middle = i64::midpoint(same, other);
        if offset(tz, middle) == before {
            same = middle;
        } else {
            other = middle;
        }
    }
    Some(other)
}

/// Returns what is added to an instant to get local time; 0 where the calendar ends.
fn offset(tz: Tz, instant: i64) -> i64 {
    DateTime::from_timestamp(instant, 0)
        .map_or(0, |at| tz.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc().into())
}
