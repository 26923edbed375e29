//! `room`: rooms and the events in them.

use anyhow::Result;
use switchboard_model::identity::RoomName;
use switchboard_model::room::{Retention, Room, RoomKind, StoredEvent};
use switchboard_model::wire::limits::HISTORY_EVENTS;
use switchboard_model::wire::rest::RoomRequest;

use super::listing::{collect, say_more};
use super::{Session, remotely};
use crate::cli::{Limit, RemoteCommand, RoomCommand, RoomVisibility};
use crate::output::time;

/// Does one thing with rooms.
pub(crate) async fn run(command: RemoteCommand<RoomCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey(&session, command).await).await
}

async fn obey(session: &Session, command: RoomCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        RoomCommand::List { limit } => {
            let rooms: Vec<Room> = collect(limit, async |page| client.list_rooms(page).await).await?;
            form.list(&rooms, ["NAME", "KIND", "EVENTS", "NEWEST", "CREATED"], |room| {
                let kept = (room.top + 1).saturating_sub(room.first_kept);
                [
                    room.name.to_string(),
                    room.kind.as_str().to_owned(),
                    kept.to_string(),
                    room.top.to_string(),
                    time(Some(room.created_at)),
                ]
            })
        }
        RoomCommand::Get { room } => form.one(&client.get_room(&room).await?),
        RoomCommand::Create { room, kind, max_count, max_age, max_bytes } => {
            let usual = Retention::default();
            let retention = Retention {
                max_count: max_count.unwrap_or(usual.max_count),
                max_age: max_age.unwrap_or(usual.max_age),
                max_bytes: max_bytes.unwrap_or(usual.max_bytes),
            };
            let kind = match kind {
                RoomVisibility::Public => RoomKind::Public,
                RoomVisibility::Private => RoomKind::Private,
            };
            let made = client.create_room(&RoomRequest { name: room, kind, retention }).await?;
            form.done(&made, format_args!("Created room {}.", made.name))
        }
        RoomCommand::Delete { room } => {
            client.delete_room(&room).await?;
            form.said(format_args!("Deleted room {room}."))
        }
        RoomCommand::Presence { room } => {
            let found = client.presence(&room).await?;
            let Some(members) = &found.members else {
                return form.done(&found, format_args!("{} users.", found.count));
            };
            form.list(members, ["USER", "SINCE"], |member| [member.user_id.to_string(), time(Some(member.since))])
        }
        RoomCommand::History { room, after, limit } => {
            let events = history(session, &room, after, limit).await?;
            form.list(&events, ["OFFSET", "AT", "EVENT", "PAYLOAD"], |event| {
                [
                    event.offset.to_string(),
                    time(Some(event.at)),
                    event.event.to_string(),
                    event.payload.as_str().to_owned(),
                ]
            })
        }
    }
}

/// Reads events until there are enough or no more.
async fn history(session: &Session, room: &RoomName, after: i64, limit: Limit) -> Result<Vec<StoredEvent>> {
    let mut events: Vec<StoredEvent> = Vec::new();
    let mut after = after;
    loop {
        let missing = limit.limit.saturating_sub(events.len() as u64);
        let wanted = u32::try_from(missing).map_or(HISTORY_EVENTS, |missing| missing.min(HISTORY_EVENTS));
        let page = session.client.history(room, after, wanted).await?;
        let Some(last) = page.events.last() else { return Ok(events) };
        after = last.offset;
        events.extend(page.events);
        if after >= page.top {
            return Ok(events);
        }
        if events.len() as u64 >= limit.limit {
            say_more(events.len());
            return Ok(events);
        }
    }
}
