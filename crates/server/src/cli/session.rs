//! Commands about open sockets.

use clap::Subcommand;
use switchboard_model::identity::UserId;
use switchboard_model::ids::ConnectionId;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// Lists the open sockets, oldest first.
    List {
        /// Only those of this user.
        #[arg(long, value_name = "ID")]
        user: Option<UserId>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Closes a socket for good.
    Kick {
        /// The id of the socket.
        id: ConnectionId,
    },
}
