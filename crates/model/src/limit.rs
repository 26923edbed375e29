//! Exact rate limits: the generic cell rate algorithm (GCRA, ITU-T I.371) as a pure rule.
//!
//! One number is kept per key: the theoretical arrival time, at which the key would be unused again. In any
//! stretch of time `t`, at most `burst + rate · t` units are allowed, whoever asks and however often.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::span::{Span, SpanError};

/// How much is allowed in the long run, and at once: `100/1m`, or `100/1m burst 20`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    per: Span,
    burst: u32,
}

/// Why a text or a set of numbers is not a [`Rate`].
#[derive(Debug, thiserror::Error)]
pub enum RateError {
    /// The text does not follow the grammar.
    #[error("not a rate such as \"100/1m\" or \"100/1m burst 20\"")]
    Grammar,
    /// The period is not a duration.
    #[error("the period of a rate is {0}")]
    Period(#[from] SpanError),
    /// A number is out of range.
    #[error("a rate allows 1 to 1000000 units in 1ms to 366days, 1 to 1000000 of them at once")]
    Range,
}

impl Rate {
    /// The most units and the greatest burst.
    pub const MOST: u32 = 1_000_000;
    /// The longest period.
    pub const LONGEST: Span = Span::from_secs(366 * 24 * 3600);

    /// Makes a rate of `count` units in each period `per`, of which `burst` may come at once.
    ///
    /// # Errors
    /// [`RateError::Range`] for numbers out of range.
    pub fn new(count: u32, per: Span, burst: u32) -> Result<Self, RateError> {
        let in_range = (1..=Self::MOST).contains(&count)
            && (1..=Self::MOST).contains(&burst)
            && (Span::from_millis(1)..=Self::LONGEST).contains(&per);
        if in_range { Ok(Self { count, per, burst }) } else { Err(RateError::Range) }
    }

    /// Returns how many units a period allows.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the period.
    #[must_use]
    pub const fn per(&self) -> Span {
        self.per
    }

    /// Returns how many units may come at once.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// Returns the time that `cost` units take in the long run, in microseconds. A unit takes whole
    /// microseconds, rounded up, so that rounding never allows more; above 10,000 units a second this costs
    /// more than a hundredth of the rate.
    #[must_use]
    pub fn cost_us(&self, cost: u32) -> i64 {
        // At most 366 days in microseconds, about 2^45, times 2^32 units; cut far beyond any use.
        let unit = (self.per.as_millis() * 1_000).div_ceil(u64::from(self.count));
        i64::try_from(u128::from(unit) * u128::from(cost)).unwrap_or(i64::MAX).min(i64::MAX / 4)
    }

    /// Decides on a key whose theoretical arrival time is `tat_us`, if it was used before; all times in
    /// microseconds on one clock. Returns the new arrival time when the units are allowed, and `None` when
    /// nothing changes.
    #[must_use]
    pub fn take(&self, tat_us: Option<i64>, now_us: i64, cost: u32) -> (Decision, Option<i64>) {
        let used_until = tat_us.unwrap_or(now_us).max(now_us);
        let next = used_until.saturating_add(self.cost_us(cost));
        let is_allowed = next.saturating_sub(now_us) <= self.cost_us(self.burst);
        let tat = if is_allowed { next } else { used_until };
        let decision = self.decided(is_allowed, tat.saturating_sub(now_us), cost);
        (decision, is_allowed.then_some(next))
    }

    /// Describes a decision after which the key is used for another `debt_us` microseconds.
    #[must_use]
    pub fn decided(&self, is_allowed: bool, debt_us: i64, cost: u32) -> Decision {
        // Negative when more was taken under another rate than this one allows at once.
        let free_us = self.cost_us(self.burst).saturating_sub(debt_us);
        let missing_us = if is_allowed { 0 } else { self.cost_us(cost).saturating_sub(free_us).max(0) };
        Decision {
            allowed: is_allowed,
            remaining: u32::try_from(free_us.max(0) / self.cost_us(1)).unwrap_or(self.burst),
            retry_after: up_to_millis(missing_us),
            reset_after: up_to_millis(debt_us.max(0)),
        }
    }
}

fn up_to_millis(us: i64) -> Span {
    Span::from_millis(us.unsigned_abs().div_ceil(1_000))
}

/// What became of one request for units, and what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the units were given; nothing was used up otherwise.
    pub allowed: bool,
    /// How many units could be taken now.
    pub remaining: u32,
    /// How long to wait before the same request can succeed; zero when it did.
    pub retry_after: Span,
    /// How long until everything is there again.
    pub reset_after: Span,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.per)?;
        if self.burst == self.count { Ok(()) } else { write!(f, " burst {}", self.burst) }
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (rate, burst) = match text.split_once(" burst ") {
            Some((rate, burst)) => (rate, Some(burst.trim().parse().map_err(|_| RateError::Grammar)?)),
            None => (text, None),
        };
        let (count, per) = rate.split_once('/').ok_or(RateError::Grammar)?;
        let count = count.trim().parse().map_err(|_| RateError::Grammar)?;
        Self::new(count, per.trim().parse()?, burst.unwrap_or(count))
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Rate {
    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "How many units a period allows in the long run, and how many may come at once.",
            "type": "string",
            "pattern": "^[0-9]+/[0-9a-z ]+( burst [0-9]+)?$",
            "examples": ["100/1m", "100/1m burst 20"],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates_have_a_text_form() {
        for text in ["100/1m", "10/1s burst 20", "1/1day burst 3"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        for bad in
            ["", "10", "10/", "/1s", "0/1s", "10/0s", "10/1s burst 0", "10/1s burst", "10/1y 2", "-1/1s", "1e3/1s"]
        {
            assert!(bad.parse::<Rate>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_burst_comes_at_once_and_then_the_rate() {
        let rate: Rate = "10/1s burst 3".parse().unwrap();
        let mut tat = None;
        for left in [2, 1, 0] {
            let (decision, next) = rate.take(tat, 1_000_000, 1);
            assert_eq!((decision.allowed, decision.remaining, decision.retry_after), (true, left, Span::default()));
            tat = next;
        }
        let (denied, unchanged) = rate.take(tat, 1_000_000, 1);
        assert_eq!((denied.allowed, denied.remaining, unchanged), (false, 0, None));
        assert_eq!((denied.retry_after, denied.reset_after), (Span::from_millis(100), Span::from_millis(300)));
        assert!(!rate.take(tat, 1_099_999, 1).0.allowed);
        assert!(rate.take(tat, 1_100_000, 1).0.allowed);
        let after_a_higher_rate = rate.take(Some(1_000_000), 0, 1).0;
        assert_eq!((after_a_higher_rate.remaining, after_a_higher_rate.retry_after), (0, Span::from_millis(800)));
        assert!(!rate.take(None, 0, 4).0.allowed, "more than the burst is never there");
    }

    proptest! {
        #[test]
        fn no_window_allows_more_than_burst_and_rate(
            count in 1_u32..50, per_ms in 1_u64..5_000, burst in 1_u32..20,
            steps in proptest::collection::vec((0_i64..400_000, 1_u32..4), 1..200),
        ) {
            let rate = Rate::new(count, Span::from_millis(per_ms), burst).unwrap();
            let (mut tat, mut now, mut given) = (None, 0_i64, Vec::new());
            for (pause, cost) in steps {
                now += pause;
                let (decision, next) = rate.take(tat, now, cost);
                prop_assert_eq!(decision.allowed, next.is_some());
                if let Some(next) = next {
                    tat = Some(next);
                    given.push((now, cost));
                } else if cost <= burst {
                    let wait = i64::try_from(decision.retry_after.as_millis()).unwrap() * 1_000;
                    prop_assert!(rate.take(tat, now + wait, cost).0.allowed, "retry_after tells the truth");
                }
            }
            for (index, (start, _)) in given.iter().enumerate() {
                let mut sum = 0_i64;
                for (at, cost) in &given[index..] {
                    sum += i64::from(*cost);
                    // At most burst + count * window / per, in whole numbers.
                    let per_us = i64::try_from(per_ms).unwrap() * 1_000;
                    prop_assert!(sum * per_us <= i64::from(burst) * per_us + i64::from(count) * (at - start));
                }
            }
        }
    }
}
