//! Appending: a batch of events gets its positions in one command of the writer.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use switchboard_model::feed::SignalKind;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::RoomId;
use switchboard_model::room::{
    Epoch, MessageId, NewEvent, NewRoom, Position, Retention, RoomClass, RoomKind, StoredEvent,
};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::limits::DEDUPE_TTL;
use switchboard_store_api::fail_point::FailPoint;
use switchboard_store_api::{AppendAnswer, AppendOutcome, OnceRecord, WriteContext, Written};
use uuid::Uuid;

use super::insert;
use crate::context;
use crate::error::DbResult;
use crate::rows::{epoch, instant, later};
use crate::writer::Change;

/// A room that events of the batch go to, ahead of its row.
struct Target {
    id: Uuid,
    epoch: Epoch,
    top: i64,
    bytes_total: i64,
    is_changed: bool,
}

pub(super) async fn append(change: &mut Change, events: Vec<NewEvent>) -> DbResult<Vec<AppendOutcome>> {
    change.pass_at_commit([FailPoint::BeforeAppendCommit, FailPoint::AfterAppendCommit]);
    let mut targets: BTreeMap<RoomName, Target> = BTreeMap::new();
    let mut outcomes = Vec::with_capacity(events.len());
    for event in events {
        let target = match targets.entry(event.room.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => match find_or_create(change, &event.room).await? {
                Ok(target) => vacant.insert(target),
                Err(code) => {
                    outcomes.push(AppendOutcome::Refused(code));
                    continue;
                }
            },
        };
        outcomes.push(append_one(change, target, event).await?);
    }
    for (name, target) in targets.into_iter().filter(|(_, target)| target.is_changed) {
        sqlx::query(
            "-- rooms.raise_top
            UPDATE rooms SET top = ?, bytes_total = ? WHERE id = ?",
        )
        .bind(target.top)
        .bind(target.bytes_total)
        .bind(target.id)
        .execute(&mut change.connection)
        .await?;
        change.signal(SignalKind::RoomEvents, name.as_str(), target.top);
    }
    Ok(outcomes)
}

/// Appends under a once-key, which is kept unless every event was refused.
pub(super) async fn append_once(
    change: &mut Change,
    context: WriteContext,
    events: Vec<NewEvent>,
    answer: AppendAnswer,
) -> DbResult<Written<Vec<AppendOutcome>>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    let outcomes = append(change, events).await?;
    let is_refused = |outcome: &AppendOutcome| matches!(outcome, AppendOutcome::Refused(_));
    if outcomes.is_empty() || !outcomes.iter().all(is_refused) {
        let record = OnceRecord { result_id: Uuid::new_v4(), result: Some(answer(&outcomes)) };
        context::complete_with(change, &context, record).await?;
    }
    Ok(Written::Now(outcomes))
}

/// Reads the room, or makes it if its name allows that, or says why not.
async fn find_or_create(change: &mut Change, name: &RoomName) -> DbResult<Result<Target, ErrorCode>> {
    let implicit = match name.class() {
        RoomClass::Ephemeral | RoomClass::Malformed => return Ok(Err(ErrorCode::RoomNameInvalid)),
        RoomClass::Explicit => None,
        RoomClass::User(_) => Some(RoomKind::User),
        RoomClass::Direct(..) => Some(RoomKind::Direct),
    };
    let found: Option<(Uuid, String, i64, i64)> = sqlx::query_as(
        "-- rooms.append_target
        SELECT id, epoch, top, bytes_total FROM rooms WHERE name = ?",
    )
    .bind(name.as_str())
    .fetch_optional(&mut change.connection)
    .await?;
    if let Some((id, stored, top, bytes_total)) = found {
        return Ok(Ok(Target { id, epoch: epoch(&stored), top, bytes_total, is_changed: false }));
    }
    let Some(kind) = implicit else { return Ok(Err(ErrorCode::NotFound)) };
    let room = NewRoom { id: RoomId::new(), name: name.clone(), kind, retention: Retention::default() };
    let room = insert(change, room).await?;
    Ok(Ok(Target { id: room.id.as_uuid(), epoch: room.epoch, top: 0, bytes_total: 0, is_changed: false }))
}

async fn append_one(change: &mut Change, target: &mut Target, event: NewEvent) -> DbResult<AppendOutcome> {
    let sender = event.sender.to_string();
    let pos = target.top + 1;
    if let MessageId::Given(msg_id) = &event.msg_id
        && let Some(offset) = remember(change, target.id, (&sender, msg_id.as_str()), pos).await?
    {
        return Ok(AppendOutcome::Duplicate(Position { epoch: target.epoch.clone(), offset }));
    }
    let stored = StoredEvent {
        offset: pos,
        event: event.event,
        payload: event.payload,
        msg_id: event.msg_id.to_string(),
        sender,
        at: instant(change.now)?,
    };
    target.top = pos;
    // The payload is text in memory, so its length is far below 2^63.
    target.bytes_total += stored.payload.as_str().len() as i64;
    target.is_changed = true;
    sqlx::query(
        "-- rooms.append
        INSERT INTO room_events (room_id, pos, msg_id, event, payload, sender, bytes_total, at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(target.id)
    .bind(pos)
    .bind(&stored.msg_id)
    .bind(stored.event.as_str())
    .bind(stored.payload.as_str())
    .bind(&stored.sender)
    .bind(target.bytes_total)
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    Ok(AppendOutcome::Appended { position: Position { epoch: target.epoch.clone(), offset: pos }, event: stored })
}

/// Remembers a message id for a while; returns the position of an earlier event with it. An expired
/// row is overwritten.
async fn remember(
    change: &mut Change,
    room_id: Uuid,
    (sender, msg_id): (&str, &str),
    pos: i64,
) -> DbResult<Option<i64>> {
    let remembered = sqlx::query(
        "-- rooms.remember_message
        INSERT INTO room_dedupe (room_id, sender, msg_id, pos, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT DO UPDATE SET pos = excluded.pos, expires_at = excluded.expires_at WHERE expires_at <= ?6",
    )
    .bind(room_id)
    .bind(sender)
    .bind(msg_id)
    .bind(pos)
    .bind(later(change.now, DEDUPE_TTL))
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    if remembered.rows_affected() > 0 {
        return Ok(None);
    }
    let known = sqlx::query_scalar(
        "-- rooms.known_message
        SELECT pos FROM room_dedupe WHERE room_id = ? AND sender = ? AND msg_id = ?",
    )
    .bind(room_id)
    .bind(sender)
    .bind(msg_id)
    .fetch_one(&mut change.connection)
    .await?;
    Ok(Some(known))
}
