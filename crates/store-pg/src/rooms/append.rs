//! Appending: a batch of events for any number of rooms in one commit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::ids::RoomId;
use switchboard_model::room::{Epoch, MessageId, NewEvent, Position, Retention, RoomClass, RoomKind, StoredEvent};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::limits::DEDUPE_TTL;
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{AppendAnswer, AppendOutcome, OnceRecord, StoreError, StoreResult, WriteContext, Written};
use uuid::Uuid;

use crate::connect::{Database, Tx};
use crate::context::{audit, claim, complete};
use crate::error::fault;

/// How often an event that is appended alone and collides with another change is tried again.
const ALONE_TRIES: u32 = 5;

pub(super) async fn append(database: &Arc<Database>, events: &[NewEvent]) -> StoreResult<Vec<AppendOutcome>> {
    match append_batch(database, events).await {
        Err(error) if !error.is_transient() => Ok(append_one_by_one(database, events, &error).await),
        outcomes => outcomes,
    }
}

/// Appends each event alone after their batch was refused, so that one that the database refuses does
/// not take its neighbours with it.
///
/// Each commit counts from then on, so no failure is returned for the batch: its repetition would append
/// the committed events twice. Once the database is away, what is left is refused without being tried.
async fn append_one_by_one(database: &Arc<Database>, events: &[NewEvent], refusal: &StoreError) -> Vec<AppendOutcome> {
    tracing::error!(
        events = events.len(),
        error = refusal as &dyn std::error::Error,
        "a batch of events was refused and is appended one by one"
    );
    let mut outcomes = Vec::with_capacity(events.len());
    for event in events {
        match append_alone(database, event).await {
            Ok(outcome) => outcomes.extend(outcome),
            Err(StoreError::Unavailable(_)) => break,
            Err(StoreError::Conflict(_)) => outcomes.push(AppendOutcome::Refused(ErrorCode::Unavailable)),
            Err(_) => outcomes.push(AppendOutcome::Refused(ErrorCode::Internal)),
        }
    }
    outcomes.resize(events.len(), AppendOutcome::Refused(ErrorCode::Unavailable));
    outcomes
}

async fn append_alone(database: &Arc<Database>, event: &NewEvent) -> StoreResult<Vec<AppendOutcome>> {
    let mut tries = 1;
    loop {
        match append_batch(database, std::slice::from_ref(event)).await {
            Err(StoreError::Conflict(_)) if tries < ALONE_TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

async fn append_batch(database: &Arc<Database>, events: &[NewEvent]) -> StoreResult<Vec<AppendOutcome>> {
    let names = stored_rooms(events);
    if names.is_empty() {
        return Ok(events.iter().map(|_| AppendOutcome::Refused(ErrorCode::RoomNameInvalid)).collect());
    }
    let (mut tx, rooms) = lock_rooms(database, &names).await?;
    let outcomes = append_locked(&mut tx, events, &names, rooms).await?;
    commit(tx).await?;
    Ok(outcomes)
}

/// Appends a batch under a once-key; what the database refuses, it refuses as a whole, in one commit.
pub(super) async fn append_once(
    database: &Arc<Database>,
    context: &WriteContext,
    events: &[NewEvent],
    answer: &AppendAnswer,
) -> StoreResult<Written<Vec<AppendOutcome>>> {
    let names = stored_rooms(events);
    let result_id = Uuid::new_v4();
    loop {
        let mut tx = database.begin().await?;
        if let Some(before) = claim(&mut tx, context, result_id).await? {
            return tx.undo(before).await;
        }
        let rooms = lock(&mut tx, &names).await?;
        let missing = missing(&names, &rooms);
        if !missing.is_empty() {
            // The claim is given back meanwhile, as a lock would be.
            tx.undo(()).await?;
            make(database, &missing).await?;
            continue;
        }
        let outcomes = append_locked(&mut tx, events, &names, rooms).await?;
        let is_refused = |outcome: &AppendOutcome| matches!(outcome, AppendOutcome::Refused(_));
        if !outcomes.is_empty() && outcomes.iter().all(is_refused) {
            return tx.undo(Written::Now(outcomes)).await;
        }
        complete(&mut tx, context, &OnceRecord { result_id, result: Some(answer(&outcomes)) }).await?;
        audit(&mut tx, context).await?;
        commit(tx).await?;
        return Ok(Written::Now(outcomes));
    }
}

async fn append_locked(
    tx: &mut Tx,
    events: &[NewEvent],
    names: &BTreeMap<&str, Option<RoomKind>>,
    mut rooms: LockedRooms,
) -> StoreResult<Vec<AppendOutcome>> {
    let known = find_known(tx, &rooms, events).await?;
    let mut batch = Batch::default();
    for event in events {
        batch.place(event, names.contains_key(event.room.as_str()), &mut rooms, &known);
    }
    let at = if batch.appended.is_empty() { None } else { Some(write(tx, &batch, &rooms).await?) };
    if at.is_some() {
        tx.has_signalled();
    }
    Ok(batch.outcomes(events, &rooms, at.unwrap_or_default()))
}

async fn commit(tx: Tx) -> StoreResult<()> {
    fail_point::hit(FailPoint::BeforeAppendCommit);
    tx.commit().await?;
    fail_point::hit(FailPoint::AfterAppendCommit);
    Ok(())
}

/// The rooms of the batch that may have a row, and of which kind they are made when they are missing.
fn stored_rooms(events: &[NewEvent]) -> BTreeMap<&str, Option<RoomKind>> {
    let mut names = BTreeMap::new();
    for event in events {
        let kind = match event.room.class() {
            RoomClass::Explicit => None,
            RoomClass::User(_) => Some(RoomKind::User),
            RoomClass::Direct(..) => Some(RoomKind::Direct),
            RoomClass::Ephemeral | RoomClass::Malformed => continue,
        };
        names.insert(event.room.as_str(), kind);
    }
    names
}

/// A room under its lock, with where its next event goes.
#[derive(sqlx::FromRow)]
struct LockedRoom {
    id: Uuid,
    name: String,
    epoch: String,
    timeline: String,
    top: i64,
    bytes_total: i64,
}

type LockedRooms = HashMap<String, LockedRoom>;

/// Locks the rooms in the order of their ids. Implicit ones that are missing are made by a commit of
/// their own first, so that making them never waits with a lock in hand.
async fn lock_rooms(
    database: &Arc<Database>,
    names: &BTreeMap<&str, Option<RoomKind>>,
) -> StoreResult<(Tx, LockedRooms)> {
    let mut tx = database.begin().await?;
    let mut rooms = lock(&mut tx, names).await?;
    let missing = missing(names, &rooms);
    if !missing.is_empty() {
        tx.undo(()).await?;
        make(database, &missing).await?;
        tx = database.begin().await?;
        rooms = lock(&mut tx, names).await?;
    }
    Ok((tx, rooms))
}

/// Returns the implicit rooms that were not there to be locked.
fn missing<'a>(names: &BTreeMap<&'a str, Option<RoomKind>>, rooms: &LockedRooms) -> Vec<(&'a str, RoomKind)> {
    let absent = names.iter().filter(|(name, _)| !rooms.contains_key(**name));
    absent.filter_map(|(name, kind)| kind.map(|kind| (*name, kind))).collect()
}

async fn lock(tx: &mut Tx, names: &BTreeMap<&str, Option<RoomKind>>) -> StoreResult<LockedRooms> {
    let rows: Vec<LockedRoom> = sqlx::query_as(
        "-- rooms.lock_for_append
         SELECT id, name, epoch, left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline, top, bytes_total
         FROM switchboard.rooms WHERE name = ANY ($1) ORDER BY id FOR UPDATE",
    )
    .bind(names.keys().copied().collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(rows.into_iter().map(|room| (room.name.clone(), room)).collect())
}

/// Makes implicit rooms, in the order of their names.
async fn make(database: &Arc<Database>, missing: &[(&str, RoomKind)]) -> StoreResult<()> {
    let retention = Retention::default();
    let mut session = database.session().await?;
    sqlx::query(
        "-- rooms.make_implicit
         INSERT INTO switchboard.rooms (id, name, kind, epoch, max_count, max_age_ms, max_bytes, created_at)
         SELECT id, name, kind, epoch, $5, $6, $7, clock_timestamp()
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS given (id, name, kind, epoch)
         ON CONFLICT (name) DO NOTHING",
    )
    .bind(missing.iter().map(|_| RoomId::new().as_uuid()).collect::<Vec<_>>())
    .bind(missing.iter().map(|(name, _)| *name).collect::<Vec<_>>())
    .bind(missing.iter().map(|(_, kind)| kind.as_str()).collect::<Vec<_>>())
    .bind(missing.iter().map(|_| Epoch::fresh_room_epoch()).collect::<Vec<_>>())
    .bind(retention.max_count)
    .bind(retention.max_age.as_millis_i64())
    .bind(retention.max_bytes)
    .execute(&mut *session)
    .await
    .map_err(fault)?;
    session.commit().await
}

/// What a given message id is deduplicated by: its room, its sender and itself.
type GivenId = (Uuid, String, String);

fn given_id(room: &LockedRoom, event: &NewEvent) -> Option<GivenId> {
    match &event.msg_id {
        MessageId::Given(id) => Some((room.id, event.sender.to_string(), id.to_string())),
        MessageId::Generated(_) => None,
    }
}

/// Looks up, under the locks on the rooms, which of the given message ids were appended before.
async fn find_known(tx: &mut Tx, rooms: &LockedRooms, events: &[NewEvent]) -> StoreResult<HashMap<GivenId, i64>> {
    let given: Vec<GivenId> =
        events.iter().filter_map(|event| given_id(rooms.get(event.room.as_str())?, event)).collect();
    if given.is_empty() {
        return Ok(HashMap::new());
    }
    let known: Vec<(Uuid, String, String, i64)> = sqlx::query_as(
        "-- rooms.find_known_messages
         SELECT known.room_id, known.sender, known.msg_id, known.pos
         FROM unnest($1::uuid[], $2::text[], $3::text[]) AS given (room_id, sender, msg_id)
         JOIN switchboard.room_dedupe AS known USING (room_id, sender, msg_id)
         WHERE known.expires_at > clock_timestamp()",
    )
    .bind(given.iter().map(|(room, ..)| *room).collect::<Vec<_>>())
    .bind(given.iter().map(|(_, sender, _)| sender.as_str()).collect::<Vec<_>>())
    .bind(given.iter().map(|(.., id)| id.as_str()).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(known.into_iter().map(|(room, sender, id, pos)| ((room, sender, id), pos)).collect())
}

/// Where an event of the batch went.
enum Placed {
    Appended(i64),
    Duplicate(i64),
    Refused(ErrorCode),
}

/// An event with its position.
struct Appended<'a> {
    event: &'a NewEvent,
    room: Uuid,
    pos: i64,
    bytes_total: i64,
}

/// The batch as it is placed, event by event, in the locked rooms.
#[derive(Default)]
struct Batch<'a> {
    placed: Vec<Placed>,
    appended: Vec<Appended<'a>>,
    /// The given message ids of the batch, which later events of it may repeat.
    remembered: HashMap<GivenId, i64>,
}

impl<'a> Batch<'a> {
    fn place(&mut self, event: &'a NewEvent, has_row: bool, rooms: &mut LockedRooms, known: &HashMap<GivenId, i64>) {
        let Some(room) = rooms.get_mut(event.room.as_str()) else {
            let code = if has_row { ErrorCode::NotFound } else { ErrorCode::RoomNameInvalid };
            return self.placed.push(Placed::Refused(code));
        };
        let id = given_id(room, event);
        if let Some(pos) = id.as_ref().and_then(|id| known.get(id).or_else(|| self.remembered.get(id))) {
            return self.placed.push(Placed::Duplicate(*pos));
        }
        room.top += 1;
        room.bytes_total += event.payload.as_str().len() as i64;
        self.remembered.extend(id.map(|id| (id, room.top)));
        self.appended.push(Appended { event, room: room.id, pos: room.top, bytes_total: room.bytes_total });
        self.placed.push(Placed::Appended(room.top));
    }

    fn outcomes(&self, events: &[NewEvent], rooms: &LockedRooms, at: Timestamp) -> Vec<AppendOutcome> {
        let position = |event: &NewEvent, offset| {
            rooms
                .get(event.room.as_str())
                .map(|room| Position { epoch: Epoch::new(&room.epoch, &room.timeline), offset })
        };
        let outcome = |(event, placed): (&NewEvent, &Placed)| match placed {
            Placed::Refused(code) => AppendOutcome::Refused(*code),
            Placed::Duplicate(pos) => {
                position(event, *pos).map_or(AppendOutcome::Refused(ErrorCode::NotFound), AppendOutcome::Duplicate)
            }
            Placed::Appended(pos) => {
                position(event, *pos).map_or(AppendOutcome::Refused(ErrorCode::NotFound), |position| {
                    AppendOutcome::Appended { position, event: stored(event, *pos, at) }
                })
            }
        };
        events.iter().zip(&self.placed).map(outcome).collect()
    }
}

fn stored(event: &NewEvent, offset: i64, at: Timestamp) -> StoredEvent {
    StoredEvent {
        offset,
        event: event.event.clone(),
        payload: event.payload.clone(),
        msg_id: event.msg_id.to_string(),
        sender: event.sender.to_string(),
        at,
    }
}

/// Writes events, message ids, tops and one signal per room, and returns the instant they carry.
async fn write(tx: &mut Tx, batch: &Batch<'_>, rooms: &LockedRooms) -> StoreResult<Timestamp> {
    let events = &batch.appended;
    let grown: Vec<&LockedRoom> =
        rooms.values().filter(|room| events.iter().any(|event| event.room == room.id)).collect();
    let ids: Vec<_> = batch.remembered.iter().collect();
    sqlx::query_scalar(
        "-- rooms.append
         WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
         events AS (
             INSERT INTO switchboard.room_events (room_id, pos, msg_id, event, payload, sender, bytes_total, at)
             SELECT given.*, moment.now
             FROM moment, unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[])
                 AS given
         ),
         remembered AS (
             INSERT INTO switchboard.room_dedupe (room_id, sender, msg_id, pos, expires_at)
             SELECT given.*, moment.now + $12 * interval '1 millisecond'
             FROM moment, unnest($8::uuid[], $9::text[], $10::text[], $11::bigint[]) AS given
             ON CONFLICT (room_id, sender, msg_id)
                 DO UPDATE SET pos = excluded.pos, expires_at = excluded.expires_at
         ),
         grown AS (
             UPDATE switchboard.rooms AS room SET top = given.top, bytes_total = given.bytes_total
             FROM unnest($13::uuid[], $14::bigint[], $15::bigint[]) AS given (id, top, bytes_total)
             WHERE room.id = given.id
             RETURNING room.name, room.top
         ),
         signals AS (
             INSERT INTO switchboard.signals (kind, key, pos) SELECT 'room_events', name, top FROM grown
         )
         SELECT now FROM moment",
    )
    .bind(events.iter().map(|event| event.room).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.pos).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.event.msg_id.to_string()).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.event.event.as_str()).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.event.payload.as_str()).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.event.sender.to_string()).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.bytes_total).collect::<Vec<_>>())
    .bind(ids.iter().map(|((room, ..), _)| *room).collect::<Vec<_>>())
    .bind(ids.iter().map(|((_, sender, _), _)| sender.as_str()).collect::<Vec<_>>())
    .bind(ids.iter().map(|((.., id), _)| id.as_str()).collect::<Vec<_>>())
    .bind(ids.iter().map(|(_, pos)| **pos).collect::<Vec<_>>())
    .bind(DEDUPE_TTL.as_millis_i64())
    .bind(grown.iter().map(|room| room.id).collect::<Vec<_>>())
    .bind(grown.iter().map(|room| room.top).collect::<Vec<_>>())
    .bind(grown.iter().map(|room| room.bytes_total).collect::<Vec<_>>())
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)
}
