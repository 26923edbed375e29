//! Durations as people write them: `15s`, `5m`, `2h 30m`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A non-negative duration with millisecond resolution, at most [`Span::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

/// Why a text is not a [`Span`].
#[derive(Debug, thiserror::Error)]
pub enum SpanError {
    /// The text does not follow the grammar.
    #[error("not a duration such as \"15s\" or \"5m\": {0}")]
    Grammar(#[from] humantime::DurationError),
    /// The duration is longer than [`Span::MAX`].
    #[error("duration is longer than 1000 years")]
    TooLong,
}

impl Span {
    /// The longest span: 1,000 years of 365 days. Sums with any calendar instant stay in range.
    pub const MAX: Self = Self(1000 * 365 * 24 * 3600 * 1000);

    /// Makes a span of whole milliseconds, cut at [`Span::MAX`].
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        if ms > Self::MAX.0 { Self::MAX } else { Self(ms) }
    }

    /// Makes a span of whole seconds, cut at [`Span::MAX`].
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self::from_millis(seconds.saturating_mul(1000))
    }

    /// Returns the span in milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the span in milliseconds as the databases store it.
    #[must_use]
    pub const fn as_millis_i64(self) -> i64 {
        self.0.cast_signed()
    }

    /// Returns the span as a standard duration.
    #[must_use]
    pub const fn to_std(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// Returns the span as a calendar delta.
    #[must_use]
    pub const fn to_delta(self) -> chrono::TimeDelta {
        // In range: MAX is far below the limit of TimeDelta (2^63 ms).
        match chrono::TimeDelta::try_milliseconds(self.as_millis_i64()) {
            Some(delta) => delta,
            None => chrono::TimeDelta::MAX,
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.to_std()).fmt(f)
    }
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let duration = humantime::parse_duration(text)?;
        let ms = u64::try_from(duration.as_millis()).map_err(|_| SpanError::TooLong)?;
        if ms > Self::MAX.0 { Err(SpanError::TooLong) } else { Ok(Self(ms)) }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A duration as people write it, in whole milliseconds, at most 1000 years.",
            "type": "string",
            "pattern": "^([0-9]+ ?(ms|s|m|h|days?|months?|years?) ?)+$",
            "examples": ["15s", "5m", "2h 30m"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_what_people_write() {
        assert_eq!("90s".parse::<Span>().unwrap(), Span::from_secs(90));
        assert_eq!(Span::from_secs(90).to_string(), "1m 30s");
        assert_eq!("1m 30s".parse::<Span>().unwrap(), Span::from_secs(90));
        assert!("soon".parse::<Span>().is_err());
        assert!("100000years".parse::<Span>().is_err());
    }
}
