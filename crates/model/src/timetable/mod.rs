//! Cron schedules: an expression on the calendar of a zone, with a rule for every oddity of that calendar.
//!
//! Local time is what people schedule by, and it has holes and repeats. An expression names local times; the
//! occurrences are the instants at which the clocks of the zone show them. Where a local time does not exist
//! or exists twice, a policy decides. Expressions that name every hour of the day count elapsed time instead:
//! they go on through both passes of a repeated hour and miss nothing in a gap, so no policy touches them.
//! Knows nothing of tasks, and of what time it is.

mod expression;
mod fields;
mod search;
mod zone;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::expression::{Expression, MOST_CHARACTERS};
pub(crate) use self::search::{Fate, Timetable};
pub use self::zone::Zone;
use crate::schedule::ScheduleError;

/// What happens at local times that the clocks jump over. All that one gap swallows makes one occurrence, at
/// the instant the gap ends; if that instant is an occurrence of its own, the two are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DstGap {
    /// The occurrence runs, right after the gap.
    #[default]
    RunAfter,
    /// The occurrence is recorded as skipped.
    Skip,
}

/// What happens at local times that the clocks show twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DstOverlap {
    /// The first one is the occurrence.
    #[default]
    First,
    /// Both are occurrences.
    Both,
}

/// How the day of the month and the day of the week go together when an expression restricts both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DayMatch {
    /// A day that either field names will do, as POSIX has it.
    #[default]
    Or,
    /// A day must be named by both.
    And,
}

/// A cron expression, the zone whose clocks it is read by, and the policies for the oddities of those clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cron {
    /// The local times.
    pub expression: Expression,
    /// The zone whose clocks count; UTC when absent.
    #[serde(default)]
    pub zone: Zone,
    /// What happens at local times that do not exist.
    #[serde(default)]
    pub dst_gap: DstGap,
    /// What happens at local times that exist twice.
    #[serde(default)]
    pub dst_overlap: DstOverlap,
    /// How the two day fields go together.
    #[serde(default)]
    pub day_match: DayMatch,
}

impl Cron {
    /// Makes a schedule with the default policies.
    #[must_use]
    pub fn new(expression: &str, zone: &str) -> Self {
        Self {
            expression: Expression::new(expression),
            zone: Zone::new(zone),
            dst_gap: DstGap::default(),
            dst_overlap: DstOverlap::default(),
            day_match: DayMatch::default(),
        }
    }

    /// Puts together what the expression, the zone and the policies say.
    ///
    /// # Errors
    /// [`ScheduleError::ExpressionInvalid`] or [`ScheduleError::ZoneUnknown`].
    pub(crate) fn timetable(&self) -> Result<Timetable, ScheduleError> {
        let fields = self.expression.fields()?.with_days(self.day_match);
        Ok(Timetable { fields, tz: self.zone.tz()?, dst_gap: self.dst_gap, dst_overlap: self.dst_overlap })
    }
}
