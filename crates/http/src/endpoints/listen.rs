//! Listening to rooms over server-sent events: the same sessions as those of sockets, without a socket.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::IgnoredAny;
use switchboard_events::{Outgoing, SessionGuard};
use switchboard_model::identity::RoomName;
use switchboard_model::room::{Epoch, Position};
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Desync, Joined, NoticeFrame};
use switchboard_model::wire::listen::{LISTENER_ROOMS, ListenReady, RoomsCursor};
use switchboard_model::wire::op::{Join, Since};

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::Query;
use crate::openapi::{self, Sketch};
use crate::sse::{self, Events, Source, Wish, bad_last_id, write_value};
use crate::{ApiResult, App};

/// Which rooms are listened to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenQuery {
    /// The rooms, separated by commas.
    rooms: String,
    /// How far they were heard: the id of an event; `Last-Event-ID` goes before it.
    after: Option<String>,
}

/// An answer of events alone.
pub(crate) struct OnlyEvents(Events);

impl IntoResponse for OnlyEvents {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

impl openapi::Answer for OnlyEvents {
    fn describe(sketch: &mut Sketch<'_>) {
        sketch.gives_text(sse::MEDIA_TYPE);
    }
}

/// Sends the events of rooms as they come.
pub(crate) async fn listen(
    State(app): State<App>,
    caller: Caller,
    wish: Wish,
    query: ApiResult<Query<ListenQuery>>,
) -> ApiResult<OnlyEvents> {
    if caller.user_id().is_none() {
        caller.require(&Scope::RoomsRead)?;
    }
    let Query(ListenQuery { rooms, after }) = query?;
    let rooms = parse(&rooms)?;
    let cursor = match wish.last_id.or(after) {
        Some(text) => RoomsCursor::decode(&text).map_err(|_| bad_last_id())?,
        None => RoomsCursor::default(),
    };
    let since = |room: &RoomName| cursor.0.get(room).cloned().map_or_else(Since::default, Since::Position);
    let joins: Vec<Join> = rooms.into_iter().map(|room| Join { since: since(&room), room, presence: false }).collect();
    let (session, starts) = sse::listen(&app, &caller, &joins).await?;
    let listener = Listener { first: None, cursor: RoomsCursor::default(), session };
    Ok(OnlyEvents(Events::of(listener.begin(joins, starts))))
}

fn parse(rooms: &str) -> ApiResult<BTreeSet<RoomName>> {
    let parse = |name: &str| {
        let parsed = name.trim().parse::<RoomName>();
        parsed.map_err(|error| ApiError::field(ErrorCode::RoomNameInvalid, "rooms", error.to_string()))
    };
    let rooms = rooms.split(',').map(parse).collect::<ApiResult<BTreeSet<_>>>()?;
    if rooms.len() > LISTENER_ROOMS {
        let detail = format!("must name at most {LISTENER_ROOMS} rooms");
        return Err(ApiError::field(ErrorCode::TooManyRooms, "rooms", detail));
    }
    Ok(rooms)
}

/// Rooms as events. Each event of a room that is kept carries the position in all rooms after it as its id.
struct Listener {
    /// What goes before the first event.
    first: Option<Bytes>,
    cursor: RoomsCursor,
    session: SessionGuard,
}

/// What a frame of a session says of where it stands.
#[derive(Deserialize)]
struct Shape {
    op: Option<String>,
    event: Option<IgnoredAny>,
    room: Option<RoomName>,
    offset: Option<i64>,
    epoch: Option<Epoch>,
}

impl Listener {
    /// Begins with where each room starts, and with which of them could not be continued.
    fn begin(mut self, joins: Vec<Join>, starts: Vec<Joined>) -> Self {
        let rooms: Vec<(RoomName, Joined)> = joins.into_iter().map(|join| join.room).zip(starts).collect();
        for (room, joined) in &rooms {
            self.cursor.0.insert(room.clone(), Position { epoch: joined.epoch.clone(), offset: joined.offset });
        }
        let lost: Vec<RoomName> =
            rooms.iter().filter(|(_, joined)| !joined.recovered).map(|(room, _)| room.clone()).collect();
        let mut out = Vec::new();
        let ready = ListenReady { rooms: rooms.into_iter().collect() };
        write_value(&mut out, Some(&self.cursor.encode()), "ready", &ready);
        for room in lost {
            let desync = NoticeFrame::Desync(Desync { room, reason: "unrecoverable_position".to_owned() });
            write_value(&mut out, None, "desync", &desync);
        }
        self.first = Some(out.into());
        self
    }

    /// Writes a frame of the session as an event.
    fn write(&mut self, out: &mut Vec<u8>, frame: &[u8]) {
        let Ok(shape) = serde_json::from_slice::<Shape>(frame) else { return };
        if shape.event.is_none() {
            return sse::write(out, None, shape.op.as_deref().unwrap_or("notice"), frame);
        }
        let position = shape.epoch.zip(shape.offset).map(|(epoch, offset)| Position { epoch, offset });
        let Some((room, position)) = shape.room.zip(position) else { return sse::write(out, None, "event", frame) };
        self.cursor.0.insert(room, position);
        sse::write(out, Some(&self.cursor.encode()), "event", frame);
    }
}

impl Source for Listener {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let Outgoing::Frames(frames) = self.session.next().await else { return None };
        let mut out = Vec::new();
        for frame in frames {
            self.write(&mut out, &frame);
        }
        Some(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_parsed_and_bounded() {
        assert_eq!(parse("a, b,a").unwrap().len(), 2);
        assert!(parse("").is_err() && parse("A").is_err() && parse("a,,b").is_err());
        let many = (0..=LISTENER_ROOMS).map(|n| format!("r:{n}")).collect::<Vec<_>>().join(",");
        assert!(parse(&many).is_err());
    }
}
