//! `publish`: one event to a room or a user.

use anyhow::{Context as _, Result};
use switchboard_model::identity::{RoomName, UserId};
use switchboard_model::wire::rest::PublishRequest;

use super::{json_argument, remotely};
use crate::cli::PublishCommand;

/// Publishes an event.
pub(crate) async fn run(command: PublishCommand) -> Result<()> {
    let PublishCommand { remote, target, event, payload, user, msg_id, ephemeral } = command;
    remotely(&remote, async |session| {
        let payload = json_argument("payload", payload)?;
        let request = PublishRequest { event, payload, msg_id, ephemeral };
        let published = if user {
            let user: UserId = target.parse().with_context(|| format!("{target:?} is no user"))?;
            session.client.publish_to_user(&user, &request).await?
        } else {
            let room: RoomName = target.parse().with_context(|| format!("{target:?} is no room"))?;
            session.client.publish(&room, &request).await?
        };
        let place = match &published.position {
            None => "to whoever is connected".to_owned(),
            Some(position) if published.duplicate => format!("earlier, as number {}", position.offset),
            Some(position) => format!("as number {}", position.offset),
        };
        session.form.done(&published, format_args!("Published {} {place}.", published.msg_id))
    })
    .await
}
