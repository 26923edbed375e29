//! The sets of a cron expression and the search over local time, which here has neither gaps nor repeats.
//!
//! Local time is counted in seconds, as the clocks of a zone would show them if they had stood at 0 on
//! 1970-01-01T00:00:00. Knows no zone.

use chrono::{Datelike, NaiveDate};

use super::DayMatch;

/// Seconds of a day.
pub(super) const DAY: i64 = 86_400;

/// What each field of an expression names, one bit for each value. No set is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(super) seconds: u64,
    pub(super) minutes: u64,
    pub(super) hours: u64,
    pub(super) days_of_month: u64,
    pub(super) months: u64,
    /// Sunday is 0.
    pub(super) weekdays: u64,
    /// Whether a day is named if either field names it; otherwise both must. A field that is not restricted
    /// names every day.
    pub(super) either_day: bool,
}

impl Fields {
    /// Applies the policy for expressions that restrict both day fields.
    pub(super) fn with_days(self, policy: DayMatch) -> Self {
        Self { either_day: self.either_day && policy == DayMatch::Or, ..self }
    }

    /// Tells whether every hour of the day is named.
    pub(super) fn has_every_hour(&self) -> bool {
        self.hours.count_ones() == 24
    }

    /// Returns the first local time from `from` on and before `until`.
    pub(super) fn next(&self, from: i64, until: i64) -> Option<i64> {
        let (day, time) = (from.div_euclid(DAY), from.rem_euclid(DAY));
        let today = self.has_day(day).then(|| self.next_time(time)).flatten().map(|time| day * DAY + time);
        let found = today.or_else(|| {
            let day = self.next_day(day + 1, until.div_euclid(DAY) + 1)?;
            Some(day * DAY + self.next_time(0)?)
        });
        found.filter(|local| *local < until)
    }

    /// Counts the local times from `from` on and before `until`, day by day.
    pub(super) fn count(&self, from: i64, until: i64) -> u64 {
        if from >= until {
            return 0;
        }
        let days = from.div_euclid(DAY)..=(until - 1).div_euclid(DAY);
        let on_day = |day: i64| {
            let times_before = |local: i64| self.times_before((local - day * DAY).clamp(0, DAY));
            times_before(until) - times_before(from)
        };
        days.filter(|day| self.has_day(*day)).map(on_day).sum()
    }

    fn next_day(&self, from: i64, until: i64) -> Option<i64> {
        let mut day = from;
        while day < until {
            let date = date(day)?;
            if self.has_date(date) {
                return Some(day);
            }
            let is_other_month = !has(self.months, date.month());
            day += if is_other_month { i64::from(date.num_days_in_month()) - i64::from(date.day0()) } else { 1 };
        }
        None
    }

    fn has_day(&self, day: i64) -> bool {
        date(day).is_some_and(|date| self.has_date(date))
    }

    fn has_date(&self, date: NaiveDate) -> bool {
        let day_of_month = has(self.days_of_month, date.day());
        let weekday = has(self.weekdays, date.weekday().num_days_from_sunday());
        let is_named = if self.either_day { day_of_month || weekday } else { day_of_month && weekday };
        is_named && has(self.months, date.month())
    }

    /// Returns the first time of day from `time` on, in seconds.
    fn next_time(&self, time: i64) -> Option<i64> {
        let (hour, minute, second) = clock(time);
        let in_hour = has(self.hours, hour);
        let in_minute = in_hour && has(self.minutes, minute);
        let this_minute = || Some((hour, minute, next(self.seconds, second)?));
        let this_hour = || Some((hour, next(self.minutes, minute + 1)?, next(self.seconds, 0)?));
        let this_day = || Some((next(self.hours, hour + 1)?, next(self.minutes, 0)?, next(self.seconds, 0)?));
        let found = in_minute.then(this_minute).flatten().or_else(|| in_hour.then(this_hour).flatten());
        let (hour, minute, second) = found.or_else(this_day)?;
        Some(i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second))
    }

    /// Counts the times of day before `time`, in seconds from 0 to [`DAY`].
    fn times_before(&self, time: i64) -> u64 {
        let (hour, minute, second) = clock(time);
        let in_minute = if has(self.minutes, minute) { below(self.seconds, second) } else { 0 };
        let in_hour = below(self.minutes, minute) * below(self.seconds, 60) + in_minute;
        let in_hour = if has(self.hours, hour) { in_hour } else { 0 };
        below(self.hours, hour) * below(self.minutes, 60) * below(self.seconds, 60) + in_hour
    }
}

fn date(day: i64) -> Option<NaiveDate> {
    NaiveDate::from_epoch_days(i32::try_from(day).ok()?)
}

/// Splits seconds of a day into hour, minute and second.
fn clock(time: i64) -> (u32, u32, u32) {
    // The remainder is at most a day, so nothing is cut.
    let time = u32::try_from(time).unwrap_or(0);
    (time / 3600, time / 60 % 60, time % 60)
}

const fn has(set: u64, value: u32) -> bool {
    set >> value & 1 == 1
}

/// Returns the first value of the set from `from` on.
fn next(set: u64, from: u32) -> Option<u32> {
    let rest = set >> from;
    (rest != 0).then(|| from + rest.trailing_zeros())
}

/// Counts the values of the set before `value`.
fn below(set: u64, value: u32) -> u64 {
    u64::from((set & ((1 << value) - 1)).count_ones())
}
