//! The text of a cron expression and its grammar. Knows nothing of zones and instants.

use std::str::FromStr;

use cron::TimeUnitSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fields::Fields;
use crate::schedule::ScheduleError;

/// The longest expression, in characters; lists of every minute fit.
pub const MOST_CHARACTERS: usize = 256;

const MACROS: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// A cron expression: minute, hour, day of month, month and weekday, with seconds before them if there are six,
/// or a macro such as `@daily`. Weekdays count from Sunday, which is 0 and 7.
///
/// Any text can be kept, so that a stored schedule that this version does not understand can still be shown;
/// using it is what fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(extend("examples" = ["*/5 * * * *", "0 30 8 * * MON-FRI", "@daily"]))]
pub struct Expression {
    text: String,
    fields: Result<Fields, ScheduleError>,
}

impl Expression {
    /// Reads an expression.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { fields: parse(&text).map_err(ScheduleError::ExpressionInvalid), text }
    }

    /// Returns the text as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn fields(&self) -> Result<Fields, ScheduleError> {
        self.fields.clone()
    }
}

impl From<String> for Expression {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<Expression> for String {
    fn from(expression: Expression) -> Self {
        expression.text
    }
}

fn parse(text: &str) -> Result<Fields, String> {
    if text.len() > MOST_CHARACTERS {
        return Err(format!("it is longer than {MOST_CHARACTERS} characters"));
    }
    let fields: Vec<&str> = expand(text.trim())?.split_whitespace().collect();
    match fields[..] {
        [minute, hour, day, month, weekday] => read(["0", minute, hour, day, month], weekday),
        [second, minute, hour, day, month, weekday] => read([second, minute, hour, day, month], weekday),
        _ => Err(format!("it has {} fields, not 5 (from minute to weekday) or 6 (from second)", fields.len())),
    }
}

fn expand(text: &str) -> Result<&str, String> {
    if !text.starts_with('@') {
        return Ok(text);
    }
    let known = MACROS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    known.map(|(_, expression)| *expression).ok_or_else(|| {
        let names = MACROS.map(|(name, _)| name).join(", ");
        format!("{text:?} is none of {names}")
    })
}

/// Reads the fields from second to month with the `cron` crate, and the weekday here: the crate numbers
/// weekdays from 1 and takes no range that ends with Sunday.
fn read(fields: [&str; 5], weekday: &str) -> Result<Fields, String> {
    let Some(parsed) = sets(fields) else {
        let names = ["second", "minute", "hour", "day of month", "month"];
        let wrong = (0..5).find(|wrong| {
            let mut alone = ["*"; 5];
            alone[*wrong] = fields[*wrong];
            sets(alone).is_none()
        });
        return Err(wrong.map_or_else(
            || "its fields are not understood".to_owned(),
            |wrong| format!("{:?} is not understood as {}", fields[wrong], names[wrong]),
        ));
    };
    let weekdays = weekdays(weekday).ok_or_else(|| format!("{weekday:?} is not understood as weekday"))?;
    let is_free = |field| matches!(field, "*" | "?");
    Ok(Fields {
        seconds: bits(parsed.seconds()),
        minutes: bits(parsed.minutes()),
        hours: bits(parsed.hours()),
        days_of_month: bits(parsed.days_of_month()),
        months: bits(parsed.months()),
        weekdays,
        either_day: !is_free(fields[3]) && !is_free(weekday),
    })
}

/// The crate takes blanks for optional, so a field could borrow from its neighbour: no field may start or end
/// within a list or range, and the year is spelt out, so that one field too many is seen.
fn sets(fields: [&str; 5]) -> Option<cron::Schedule> {
    let is_open = |field: &&str| field.starts_with([',', '-', '/']) || field.ends_with([',', '-', '/']);
    if fields.iter().any(is_open) {
        return None;
    }
    cron::Schedule::from_str(&format!("{} * *", fields.join(" "))).ok()
}

fn bits(set: &impl TimeUnitSpec) -> u64 {
    set.iter().fold(0, |bits, value| bits | 1 << value)
}

/// Reads a list of weekdays, ranges and steps into a set with Sunday as bit 0.
fn weekdays(field: &str) -> Option<u64> {
    field.split(',').try_fold(0, |set, item| {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, digit(step).filter(|step| (1..=7).contains(step))?),
            None => (item, 1),
        };
        let days = match range.split_once('-') {
            _ if matches!(range, "*" | "?") => 0..=6,
            // A week has no end, so a range may go past Saturday.
            Some((from, to)) => {
                let (from, to) = (weekday(from)?, weekday(to)?);
                from..=if to < from { to + 7 } else { to }
            }
            None if item != range => weekday(range)?..=6,
            None => weekday(range)?..=weekday(range)?,
        };
        Some(days.step_by(usize::from(step)).fold(set, |set, day| set | 1 << (day % 7)))
    })
}

/// Reads a weekday by its number from 0 to 7 or by the first three letters of its English name.
fn weekday(text: &str) -> Option<u8> {
    let named = || (0..7).zip(WEEKDAYS).find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(day, _)| day);
    digit(text).filter(|day| *day <= 7).or_else(named)
}

fn digit(text: &str) -> Option<u8> {
    (text.len() == 1).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(field: &str) -> Option<Vec<u64>> {
        weekdays(field).map(|set| (0..7).filter(|day| set >> day & 1 == 1).collect())
    }

    #[test]
    fn weekdays_take_numbers_names_ranges_and_steps() {
        for sunday in ["0", "7", "SUN", "sun", "0,7", "7-7", "6/7,sUn"] {
            assert!(days(sunday).unwrap().contains(&0), "{sunday}");
        }
        assert_eq!(days("MON").unwrap(), [1]);
        assert_eq!(days("FRI-SUN").unwrap(), [0, 5, 6]);
        assert_eq!(days("5-7").unwrap(), [0, 5, 6]);
        assert_eq!(days("5-0").unwrap(), [0, 5, 6]);
        assert_eq!(days("SAT-MON").unwrap(), [0, 1, 6]);
        assert_eq!(days("0-7").unwrap(), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(days("SUN-TUE").unwrap(), [0, 1, 2]);
        assert_eq!(days("*/2").unwrap(), [0, 2, 4, 6]);
        assert_eq!(days("1/2").unwrap(), [1, 3, 5]);
        assert_eq!(days("MON-FRI/2,SAT").unwrap(), [1, 3, 5, 6]);
        for wrong in
            ["", "8", "-1", "1-", "-", "MO", "MONDAYS", "1/0", "1/+2", "1/8", "1/", "5L", "5#2", "1-2-3", "+1", "٣"]
        {
            assert_eq!(days(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn fields_are_read_each_on_its_own() {
        let fields = parse("*/20 5,10-12 */6 1 JAN,dec FRI").unwrap();
        assert_eq!(fields.seconds, 1 | 1 << 20 | 1 << 40);
        assert_eq!(fields.minutes, 1 << 5 | 0b111 << 10);
        assert_eq!(fields.hours, 1 | 1 << 6 | 1 << 12 | 1 << 18);
        assert_eq!(fields.days_of_month, 1 << 1);
        assert_eq!(fields.months, 1 << 1 | 1 << 12);
        assert_eq!(fields.weekdays, 1 << 5);
        assert!(fields.either_day);
        assert!(!parse("0 0 1 * ?").unwrap().either_day);
        assert_eq!(parse(" @Midnight "), parse("0 0 * * *"));
        assert_eq!(parse("@weekly"), parse("0 0 * * SUN"));
    }

    #[test]
    fn refuses_what_it_does_not_understand_and_says_where() {
        for (wrong, part) in [
            ("", "0 fields"),
            ("* * * *", "4 fields"),
            ("0 0 0 1 1 ? 2027", "7 fields"),
            ("60 * * * *", "as minute"),
            ("0 24 * * *", "as hour"),
            ("0 22-2 * * *", "as hour"),
            ("*/0 * * * *", "as minute"),
            ("0 0 0 * *", "as day of month"),
            ("0 0 L * *", "as day of month"),
            ("0 0 1 13 *", "as month"),
            ("0 0 * * MONTAG", "as weekday"),
            ("61 * * * * *", "as second"),
            ("5* * * * *", "as minute"),
            ("1 ,2 * * *", "as hour"),
            ("1, 2 5* * *", "as minute"),
            ("99999999999999999999 * * * *", "as minute"),
            ("\u{0} * * * *", "as minute"),
            ("@reboot", "none of @hourly"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(part), "{wrong:?}: {error}");
        }
        assert!(parse(&"0,".repeat(70_000)).unwrap_err().contains("256"));
    }
}
