//! `session`: the open sockets of all replicas.

use super::listing::collect;
use super::remotely;
use crate::cli::{RemoteCommand, SessionCommand};
use crate::output::time;

/// Shows or closes open sockets.
pub(crate) async fn run(command: RemoteCommand<SessionCommand>) -> anyhow::Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| match command {
        SessionCommand::List { user, limit } => {
            let found = collect(limit, async |page| session.client.list_sessions(user.as_ref(), page).await).await?;
            session.form.list(&found, ["ID", "USER", "INSTANCE", "SINCE"], |socket| {
                [
                    socket.id.to_string(),
                    socket.user_id.to_string(),
                    socket.instance.to_string(),
                    time(Some(socket.since)),
                ]
            })
        }
        SessionCommand::Kick { id } => {
            session.client.kick_session(id).await?;
            session.form.said(format_args!("Kicked {id}."))
        }
    })
    .await
}
