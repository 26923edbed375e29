//! Bodies about the test clock, by which a schedule can be replayed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::span::Span;

/// Where the test clock stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TestClockState {
    /// The time by which tasks and scheduled runs become due.
    pub now: Timestamp,
    /// The earliest instant at which one becomes due, or was due already.
    pub next: Option<Timestamp>,
    /// Runs that are queued, waiting or running.
    pub active: u64,
}

/// Moves the test clock forward, to an instant or by a duration; exactly one of the two is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TestClockMove {
    /// Where to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
    /// How far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advance: Option<Span>,
    /// How long to wait, in real time, for what became due at one instant; 5s when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<Span>,
}

/// How far the test clock came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TestClockReport {
    /// Where it stands now.
    #[serde(flatten)]
    pub state: TestClockState,
    /// Whether it came as far as it was to. If not, `now` is where something is still to be done, or where the time
    /// of the request was over; the same request goes on from there.
    pub is_there: bool,
    /// At how many instants something became due.
    pub instants: u64,
    /// How many runs schedules made.
    pub runs: u64,
    /// How many attempts of runs ended.
    pub attempts: u64,
}
