//! The occurrences of a cron schedule: found, counted and picked without making a list of them.
//!
//! Instants are seconds since 1970. The search goes through the zone stretch by stretch; within one, local time
//! and elapsed time go together, so the sets of the expression can be searched and counted directly.

use std::iter::successors;
use std::ops::Range;

use chrono::DateTime;
use chrono_tz::Tz;

use super::fields::{DAY, Fields};
use super::zone::{self, Stretch};
use super::{DstGap, DstOverlap};
use crate::Timestamp;

/// How far ahead an occurrence is looked for: 100 years.
const HORIZON: i64 = 36_525 * DAY;

/// A cron schedule that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timetable {
    pub(super) fields: Fields,
    pub(super) tz: Tz,
    pub(super) dst_gap: DstGap,
    pub(super) dst_overlap: DstOverlap,
}

/// What the policies make of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It runs when the clocks show it.
    Shown,
    /// The clocks do not show it; it runs after the gap.
    Moved,
    /// The clocks do not show it; it is skipped.
    Skipped,
}

impl Timetable {
    /// Returns the first occurrence after `instant` that runs, if there is one within 100 years.
    pub(crate) fn next_after(&self, instant: Timestamp) -> Option<Timestamp> {
        self.after(instant).find(|(_, fate)| *fate != Fate::Skipped).map(|(at, _)| at)
    }

    /// Goes through the occurrences of the 100 years after `instant`, with those that are skipped.
    pub(crate) fn after(&self, instant: Timestamp) -> impl Iterator<Item = (Timestamp, Fate)> {
        let from = second_after(instant);
        self.events(from..from + HORIZON).map_while(|(at, fate)| Some((DateTime::from_timestamp(at, 0)?, fate)))
    }

    /// Counts the occurrences that run after `after` and before `before`.
    pub(crate) fn count(&self, after: Timestamp, before: Timestamp) -> u64 {
        self.stretches(second_after(after)..second_from(before)).map(|stretch| self.count_in(&stretch)).sum()
    }

    /// Returns the occurrence that runs after `after` and before `before` with the given index.
    pub(crate) fn nth(&self, after: Timestamp, before: Timestamp, index: u64) -> Option<Timestamp> {
        let mut left = index;
        let stretch = self.stretches(second_after(after)..second_from(before)).find(|stretch| {
            let here = self.count_in(stretch);
            let is_here = left < here;
            left -= if is_here { 0 } else { here };
            is_here
        })?;
        let mut runs = self.events(stretch.start..stretch.end).filter(|(_, fate)| *fate != Fate::Skipped);
        DateTime::from_timestamp(runs.nth(usize::try_from(left).ok()?)?.0, 0)
    }

    /// Returns the skipped occurrences after `after` and before `before`.
    pub(crate) fn gaps(&self, after: Timestamp, before: Timestamp) -> Vec<Timestamp> {
        if self.dst_gap == DstGap::RunAfter {
            return Vec::new();
        }
        let stretches = self.stretches(second_after(after)..second_from(before));
        let gaps = stretches.filter(|stretch| self.ends_gap(stretch));
        gaps.filter_map(|stretch| DateTime::from_timestamp(stretch.start, 0)).collect()
    }

    /// Tells whether an occurrence is the first of two with the same local time, the second of which is dropped.
    pub(crate) fn drops_second_of(&self, at: Timestamp) -> bool {
        !self.takes_repeats() && zone::comes_again(self.tz, at.timestamp())
    }

    fn takes_repeats(&self) -> bool {
        self.dst_overlap == DstOverlap::Both || self.fields.has_every_hour()
    }

    fn events(&self, within: Range<i64>) -> impl Iterator<Item = (i64, Fate)> {
        self.stretches(within).flat_map(move |stretch| {
            let fate = if self.dst_gap == DstGap::Skip { Fate::Skipped } else { Fate::Moved };
            let gap = self.ends_gap(&stretch).then_some((stretch.start, fate));
            let Range { start, end } = self.shown(&stretch);
            let shown = successors(self.fields.next(start, end), move |local| self.fields.next(local + 1, end));
            gap.into_iter().chain(shown.map(move |local| (local - stretch.offset, Fate::Shown)))
        })
    }

    fn count_in(&self, stretch: &Stretch) -> u64 {
        let shown = self.shown(stretch);
        let moved = self.dst_gap == DstGap::RunAfter && self.ends_gap(stretch);
        self.fields.count(shown.start, shown.end) + u64::from(moved)
    }

    /// Returns the local times of a stretch that can be occurrences.
    fn shown(&self, stretch: &Stretch) -> Range<i64> {
        let fresh_from = if self.takes_repeats() { i64::MIN } else { stretch.fresh_from };
        stretch.local_start().max(fresh_from)..stretch.local_end()
    }

    /// Tells whether an occurrence was left out right before a stretch and has the start of it for itself.
    fn ends_gap(&self, stretch: &Stretch) -> bool {
        let start = stretch.local_start();
        let is_left_out = |from| self.fields.next(from, start).is_some();
        stretch.gap_from.is_some_and(is_left_out)
            && !self.fields.has_every_hour()
            && self.fields.next(start, start + 1).is_none()
    }

    /// Goes through the stretches of a range, except for those that cannot have an occurrence.
    fn stretches(&self, within: Range<i64>) -> impl Iterator<Item = Stretch> {
        let Range { mut start, end } = within;
        std::iter::from_fn(move || {
            let stretch = (start < end).then(|| Stretch::at(self.tz, start, end))?;
            // Clocks jump by a day at most. So what they show after this stretch is no earlier than a day before its
            // end, and they show the next local time, or leave it out, within a day of where this offset puts it.
            let next = self.fields.next(stretch.local_end() - DAY, end + stretch.offset + DAY);
            start = next.map_or(end, |local| stretch.end.max(local - stretch.offset - 2 * DAY));
            Some(stretch)
        })
    }
}

/// Returns the first whole second after an instant.
fn second_after(instant: Timestamp) -> i64 {
    instant.timestamp() + 1
}

/// Returns the first whole second that is not before an instant.
fn second_from(instant: Timestamp) -> i64 {
    instant.timestamp() + i64::from(instant.timestamp_subsec_nanos() > 0)
}
