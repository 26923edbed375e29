//! Appending: a batch of events for any number of rooms in one commit.

use std::collections::HashMap;
use std::sync::Arc;

use switchboard_model::Timestamp;
use switchboard_model::room::{Epoch, MessageId, NewEvent, Position, StoredEvent};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::limits::DEDUPE_TTL;
use switchboard_store_api::fail_point::{self, FailPoint};
use switchboard_store_api::{
    AppendAnswer, AppendOutcome, News, OnceRecord, StoreError, StoreResult, WriteContext, Written,
};
use uuid::Uuid;

use super::lock::{Held, LockedRoom, LockedRooms, RoomNames, lock, make, missing, stored_rooms};
use crate::connect::{Database, Tx};
use crate::context::{audit, claim, complete};
use crate::error::fault;

/// How often an event that is appended alone and collides with another change is tried again.
const ALONE_TRIES: u32 = 5;

/// What became of each event; `None` of those whose room somebody else holds.
type Outcomes = Vec<Option<AppendOutcome>>;

pub(super) async fn append(database: &Arc<Database>, events: &[NewEvent], held: Held) -> StoreResult<Outcomes> {
    match append_batch(database, events, held).await {
        Err(error) if !error.is_transient() => {
            Ok(append_one_by_one(database, events, &error).await.into_iter().map(Some).collect())
        }
        outcomes => outcomes,
    }
}

/// Completes the outcomes of a batch that waited for every room.
pub(crate) fn all(outcomes: Outcomes) -> Vec<AppendOutcome> {
    let or_refused = |outcome: Option<_>| outcome.unwrap_or(AppendOutcome::Refused(ErrorCode::Unavailable));
    outcomes.into_iter().map(or_refused).collect()
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
            Ok(outcome) => outcomes.extend(all(outcome)),
            Err(StoreError::Unavailable(_)) => break,
            Err(StoreError::Conflict(_)) => outcomes.push(AppendOutcome::Refused(ErrorCode::Unavailable)),
            Err(_) => outcomes.push(AppendOutcome::Refused(ErrorCode::Internal)),
        }
    }
    outcomes.resize(events.len(), AppendOutcome::Refused(ErrorCode::Unavailable));
    outcomes
}

async fn append_alone(database: &Arc<Database>, event: &NewEvent) -> StoreResult<Outcomes> {
    let mut tries = 1;
    loop {
        match append_batch(database, std::slice::from_ref(event), Held::Wait).await {
            Err(StoreError::Conflict(_)) if tries < ALONE_TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

async fn append_batch(database: &Arc<Database>, events: &[NewEvent], held: Held) -> StoreResult<Outcomes> {
    let names = stored_rooms(events.iter().map(|event| &event.room));
    if names.is_empty() {
        return Ok(vec![Some(AppendOutcome::Refused(ErrorCode::RoomNameInvalid)); events.len()]);
    }
    let (mut tx, rooms) = lock_rooms(database, &names, held).await?;
    let outcomes = append_locked(&mut tx, events, &names, rooms).await?;
    commit(tx).await?;
    Ok(outcomes)
}

/// Locks the rooms. Implicit ones that are missing are made by a commit of their own first, so that making them never
/// waits with a lock in hand.
async fn lock_rooms(database: &Arc<Database>, names: &RoomNames<'_>, held: Held) -> StoreResult<(Tx, LockedRooms)> {
    let mut tx = database.begin().await?;
    let mut rooms = lock(&mut tx, names, held).await?;
    let missing = missing(names, &rooms);
    if !missing.is_empty() {
        tx.undo(()).await?;
        let mut session = database.session().await?;
        make(&mut session, &missing).await?;
        session.commit().await?;
        tx = database.begin().await?;
        rooms = lock(&mut tx, names, held).await?;
    }
    Ok((tx, rooms))
}

/// Appends a batch under a once-key; what the database refuses, it refuses as a whole, in one commit.
pub(super) async fn append_once(
    database: &Arc<Database>,
    context: &WriteContext,
    events: &[NewEvent],
    answer: &AppendAnswer,
) -> StoreResult<Written<Vec<AppendOutcome>>> {
    let names = stored_rooms(events.iter().map(|event| &event.room));
    let result_id = Uuid::new_v4();
    loop {
        let mut tx = database.begin().await?;
        if let Some(before) = claim(&mut tx, context, result_id).await? {
            return tx.undo(before).await;
        }
        let rooms = lock(&mut tx, &names, Held::Wait).await?;
        let missing = missing(&names, &rooms);
        if !missing.is_empty() {
            // The claim is given back meanwhile, as a lock would be.
            tx.undo(()).await?;
            let mut session = database.session().await?;
            make(&mut session, &missing).await?;
            session.commit().await?;
            continue;
        }
        let outcomes = all(append_locked(&mut tx, events, &names, rooms).await?);
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

/// Appends events to rooms that are locked.
pub(crate) async fn append_locked(
    tx: &mut Tx,
    events: &[NewEvent],
    names: &RoomNames<'_>,
    mut rooms: LockedRooms,
) -> StoreResult<Outcomes> {
    let known = find_known(tx, &rooms, events).await?;
    let mut batch = Batch::default();
    for event in events {
        batch.place(event, names.contains_key(event.room.as_str()), &mut rooms, &known);
    }
    let at = if batch.appended.is_empty() { None } else { Some(write(tx, &batch, &rooms).await?) };
    let outcomes = batch.outcomes(events, &rooms, at.unwrap_or_default());
    for (given, outcome) in events.iter().zip(&outcomes) {
        if let Some(AppendOutcome::Appended { position, event }) = outcome {
            let (room, epoch) = (given.room.clone(), position.epoch.clone());
            tx.tell(News::Appended { room, epoch, event: event.clone() });
        }
    }
    Ok(outcomes)
}

async fn commit(tx: Tx) -> StoreResult<()> {
    fail_point::hit(FailPoint::BeforeAppendCommit);
    tx.commit().await?;
    fail_point::hit(FailPoint::AfterAppendCommit);
    Ok(())
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
    Busy,
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
        if rooms.is_busy(event.room.as_str()) {
            return self.placed.push(Placed::Busy);
        }
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

    fn outcomes(&self, events: &[NewEvent], rooms: &LockedRooms, at: Timestamp) -> Outcomes {
        let position = |event: &NewEvent, offset| {
            rooms
                .get(event.room.as_str())
                .map(|room| Position { epoch: Epoch::new(&room.epoch, &room.timeline), offset })
        };
        let gone = AppendOutcome::Refused(ErrorCode::NotFound);
        let outcome = |(event, placed): (&NewEvent, &Placed)| {
            Some(match placed {
                Placed::Busy => return None,
                Placed::Refused(code) => AppendOutcome::Refused(*code),
                Placed::Duplicate(pos) => position(event, *pos).map_or(gone.clone(), AppendOutcome::Duplicate),
                Placed::Appended(pos) => position(event, *pos).map_or(gone.clone(), |position| {
                    AppendOutcome::Appended { position, event: stored(event, *pos, at) }
                }),
            })
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
