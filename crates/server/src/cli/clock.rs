//! Commands about the test clock and the outbox.

use clap::Subcommand;
use switchboard_model::Timestamp;
use switchboard_model::span::Span;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum ClockCommand {
    /// Shows where the clock stands and what is due next.
    Show,
    /// Moves the clock forward by a duration; everything that becomes due on the way runs first.
    Advance {
        /// How far, such as 36h or 365days.
        duration: Span,
        /// How long to wait, in real time, for what became due at one instant.
        #[arg(long, value_name = "DURATION")]
        patience: Option<Span>,
    },
    /// Moves the clock forward to an instant; everything that becomes due on the way runs first.
    Set {
        /// Where to (RFC 3339).
        instant: Timestamp,
        /// How long to wait, in real time, for what became due at one instant.
        #[arg(long, value_name = "DURATION")]
        patience: Option<Span>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// Lists what applications left with switchboard.trigger() and could not take effect, newest first.
    Failed {
        #[command(flatten)]
        limit: Limit,
    },
}
