//! Commands about streams.

use clap::{Subcommand, ValueEnum};
use switchboard_model::identity::{UserId, WorkerName};
use switchboard_model::ids::StreamId;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum StreamCommand {
    /// Lists streams, newest first.
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Shows a stream without its chunks.
    Get {
        /// Its id.
        id: StreamId,
    },
    /// Opens a stream and shows its fence, which writing to it needs. It is interrupted after 10 s of silence.
    Create {
        /// What its chunks are.
        #[arg(long, value_enum, default_value_t = Content::Text)]
        content: Content,
        /// The user who may read and stop it with their access token.
        #[arg(long, value_name = "ID")]
        user: Option<UserId>,
        /// What the producer calls itself.
        #[arg(long, value_name = "NAME")]
        producer: Option<WorkerName>,
    },
    /// Writes standard input to a stream as it comes, and ends the stream with it.
    Append {
        /// Its id.
        id: StreamId,
        /// Its fence.
        #[arg(long, value_name = "N")]
        fence: i64,
        /// Leaves the stream open at the end of standard input, for somebody else to go on within 10 s.
        #[arg(long)]
        keep_open: bool,
    },
    /// Ends a stream.
    Close {
        /// Its id.
        id: StreamId,
        /// Its fence.
        #[arg(long, value_name = "N")]
        fence: i64,
        /// How it ends.
        #[arg(long, value_enum, default_value_t = EndState::Completed)]
        state: EndState,
        /// Why, if there is more to say.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Asks the producer of a stream to stop.
    Stop {
        /// Its id.
        id: StreamId,
    },
    /// Prints a stream as it comes, to its end. The exit code is 0 if it was completed.
    Read {
        /// Its id.
        id: StreamId,
        /// Only chunks after this number.
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        after: i64,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Content {
    /// Text in UTF-8.
    Text,
    /// Any bytes.
    Binary,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum EndState {
    /// It is complete.
    Completed,
    /// Its producer failed.
    Failed,
    /// It was stopped.
    Cancelled,
}
