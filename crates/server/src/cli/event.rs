//! Commands that send and receive events.

use clap::{Args, ValueEnum};
use switchboard_model::identity::{ClientKey, EventName, RoomName, UserId};
use switchboard_model::span::Span;

use super::Remote;

#[derive(Debug, Args)]
pub(crate) struct PublishCommand {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// The room; with --user the id of the user, who gets the event on all sockets.
    pub(crate) target: String,
    /// What the event is called.
    pub(crate) event: EventName,
    /// What it carries, as JSON; - reads it from standard input.
    #[arg(default_value = "null")]
    pub(crate) payload: String,
    /// Publishes to a user instead of a room.
    #[arg(long)]
    pub(crate) user: bool,
    /// The identity of the event; publishing it again within ten minutes changes nothing.
    #[arg(long, value_name = "ID")]
    pub(crate) msg_id: Option<ClientKey>,
    /// Reaches whoever is connected now, and is not stored.
    #[arg(long)]
    pub(crate) ephemeral: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CallCommand {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// The id of the user one of whose clients is asked.
    pub(crate) user: UserId,
    /// What is asked for.
    pub(crate) event: EventName,
    /// What it carries, as JSON; - reads it from standard input.
    #[arg(default_value = "null")]
    pub(crate) payload: String,
    /// How long a client has to answer, at most 5m; 30s when absent. The exit code is not 0 without an answer.
    #[arg(long, value_name = "DURATION")]
    pub(crate) timeout: Option<Span>,
    /// Waits for the user to connect instead of failing at once when no client is there.
    #[arg(long)]
    pub(crate) wait_for_user: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TailCommand {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// The rooms.
    #[arg(required_unless_present = "user")]
    pub(crate) rooms: Vec<RoomName>,
    /// Follows what is targeted at this user, too.
    #[arg(long, value_name = "ID")]
    pub(crate) user: Option<UserId>,
    /// Where to start.
    #[arg(long, value_enum, default_value_t = Start::Latest)]
    pub(crate) since: Start,
    /// Ends after so many events.
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Start {
    /// Everything that is kept.
    Earliest,
    /// Only what comes from now on.
    Latest,
}
