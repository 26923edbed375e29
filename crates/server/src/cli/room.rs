//! Commands about rooms.

use clap::{Subcommand, ValueEnum};
use switchboard_model::identity::RoomName;
use switchboard_model::span::Span;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum RoomCommand {
    /// Lists rooms by name.
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Shows a room.
    Get {
        /// Its name.
        room: RoomName,
    },
    /// Creates a room.
    Create {
        /// Its name.
        room: RoomName,
        /// Who may join.
        #[arg(long, value_enum, default_value_t = RoomVisibility::Private)]
        kind: RoomVisibility,
        /// The most events that are kept.
        #[arg(long, value_name = "N")]
        max_count: Option<i64>,
        /// How long events are kept, such as 7days.
        #[arg(long, value_name = "DURATION")]
        max_age: Option<Span>,
        /// The most bytes of payload that are kept.
        #[arg(long, value_name = "N")]
        max_bytes: Option<i64>,
    },
    /// Deletes a room with its events.
    Delete {
        /// Its name.
        room: RoomName,
    },
    /// Shows who shows themselves in a room.
    Presence {
        /// Its name.
        room: RoomName,
    },
    /// Shows the events of a room that are kept, oldest first.
    History {
        /// Its name.
        room: RoomName,
        /// Only events after this offset.
        #[arg(long, value_name = "OFFSET", default_value_t = 0)]
        after: i64,
        #[command(flatten)]
        limit: Limit,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum RoomVisibility {
    /// Every user.
    Public,
    /// Users whose ticket grants it.
    Private,
}
