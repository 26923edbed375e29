//! Schedules: when a task is due. Pure arithmetic over instants; the database says what time it is.

mod every;
mod occurrences;
mod preview;

use chrono::SubsecRound as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::every::{Every, SHORTEST_INTERVAL};
pub use self::occurrences::Occurrences;
pub use self::preview::{Remark, Upcoming, preview};
use crate::Timestamp;
use crate::timetable::Cron;

/// When a task is due. A task without a schedule runs only when it is triggered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// A fixed interval, counted in elapsed time and so untouched by daylight saving.
    Every(Every),
    /// One instant.
    At(Timestamp),
    /// Local times on the calendar of a zone.
    Cron(Cron),
}

/// Why a schedule is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The interval is below [`SHORTEST_INTERVAL`].
    #[error("the interval must be at least {SHORTEST_INTERVAL}")]
    IntervalTooShort,
    /// No occurrence lies in the future, or none within 100 years.
    #[error("the schedule never fires: it has no occurrence in the future")]
    NeverFires,
    /// The text is no cron expression.
    #[error("not a cron expression: {0}")]
    ExpressionInvalid(String),
    /// The zone is not in the IANA database of this version.
    #[error("unknown time zone {0:?}, an IANA name such as Europe/Paris is expected")]
    ZoneUnknown(String),
}

impl Schedule {
    /// Checks that the schedule can be used by this version. Stored schedules need it too: a zone or an
    /// expression may come from a newer version, and a schedule that cannot be read has no occurrences.
    ///
    /// # Errors
    /// [`ScheduleError`] says what is wrong.
    pub fn check(&self) -> Result<(), ScheduleError> {
        match self {
            Self::Every(every) => every.check(),
            Self::At(_) => Ok(()),
            Self::Cron(cron) => cron.timetable().map(|_| ()),
        }
    }

    /// Checks a new schedule and fixes the anchor that a stored schedule must have.
    ///
    /// # Errors
    /// [`ScheduleError`] says what is wrong; a calendar without an occurrence in the 100 years after
    /// `created_at` is [`ScheduleError::NeverFires`].
    pub fn anchored(self, created_at: Timestamp) -> Result<Self, ScheduleError> {
        self.check()?;
        match self {
            Self::Every(every) => Ok(Self::Every(Every { anchor: every.anchor.or(Some(created_at)), ..every })),
            Self::Cron(_) if self.next_after(created_at).is_none() => Err(ScheduleError::NeverFires),
            // Finer than the databases store it, the instant would come after its own occurrence.
            Self::At(instant) => Ok(Self::At(instant.trunc_subsecs(6))),
            Self::Cron(_) => Ok(self),
        }
    }

    /// Returns the first occurrence after `instant` that runs; always later than `instant`.
    #[must_use]
    pub fn next_after(&self, instant: Timestamp) -> Option<Timestamp> {
        match self {
            Self::At(at) => (*at > instant).then_some(*at),
            Self::Every(every) => every.next_after(instant),
            Self::Cron(cron) => cron.timetable().ok()?.next_after(instant),
        }
    }

    /// Returns the occurrences from `from`, itself one of them, to `until` inclusive. Those that a gap skips are
    /// not among them: [`Schedule::gaps`].
    #[must_use]
    pub fn between(&self, from: Timestamp, until: Timestamp) -> Option<Occurrences> {
        if from > until {
            return None;
        }
        match self {
            Self::At(_) => Some(Occurrences::once(from)),
            Self::Every(every) => Some(Occurrences::stepping(every.interval, from, until)),
            Self::Cron(cron) => Some(Occurrences::on_calendar(cron.timetable().ok()?, from, until)),
        }
    }

    /// Returns the occurrences after `after` and before `before` that are skipped because their local time does
    /// not exist, each at the instant its gap ends.
    #[must_use]
    pub fn gaps(&self, after: Timestamp, before: Timestamp) -> Vec<Timestamp> {
        match self {
            Self::Every(_) | Self::At(_) => Vec::new(),
            Self::Cron(cron) => cron.timetable().map_or_else(|_| Vec::new(), |timetable| timetable.gaps(after, before)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
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
    fn json_form_of_a_calendar_has_defaults_and_keeps_what_was_written() {
        let text = r#"{"cron":{"expression":"0 2 * * *","zone":"America/New_York"}}"#;
        let schedule: Schedule = serde_json::from_str(text).unwrap();
        assert_eq!(schedule, Schedule::Cron(Cron::new("0 2 * * *", "America/New_York")));
        assert_eq!(
            serde_json::to_string(&schedule).unwrap(),
            r#"{"cron":{"expression":"0 2 * * *","zone":"America/New_York","dst_gap":"run_after","dst_overlap":"first","day_match":"or"}}"#
        );
        let bare: Schedule = serde_json::from_str(r#"{"cron":{"expression":"@daily"}}"#).unwrap();
        assert_eq!(bare, Schedule::Cron(Cron::new("@daily", "UTC")));
        assert!(serde_json::from_str::<Schedule>(r#"{"cron":{"expression":"@daily","colour":1}}"#).is_err());
    }

    #[test]
    fn schedules_that_cannot_be_read_are_kept_and_refused() {
        let instant = at("2027-01-01T00:00:00Z");
        for (schedule, error) in [
            (Cron::new("@daily", "Mars/Olympus"), ScheduleError::ZoneUnknown("Mars/Olympus".into())),
            (Cron::new("@daily", ""), ScheduleError::ZoneUnknown(String::new())),
            (Cron::new("0 0 * *", "UTC"), Cron::new("0 0 * *", "UTC").timetable().unwrap_err()),
        ] {
            let schedule = Schedule::Cron(schedule);
            let stored: Schedule = serde_json::from_str(&serde_json::to_string(&schedule).unwrap()).unwrap();
            assert_eq!(stored, schedule);
            assert_eq!(stored.check(), Err(error.clone()));
            assert_eq!(stored.next_after(instant), None);
            assert_eq!(stored.between(instant, instant), None);
            assert_eq!(preview(&stored, instant, 3), []);
            assert_eq!(stored.anchored(instant), Err(error));
        }
    }
}
