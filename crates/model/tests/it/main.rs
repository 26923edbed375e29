//! Schedules against calendars: known days, every zone, and a second implementation.

#![expect(clippy::unwrap_used, reason = "every line of this crate is test code")]

mod every_zone;
mod expressions;
mod known_days;
mod second_opinion;

use switchboard_model::Timestamp;

/// Reads an instant.
fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}
