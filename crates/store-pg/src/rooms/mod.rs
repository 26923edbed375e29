//! Rooms: their rows and reads; locking, appending and retention have files of their own.

pub(crate) mod append;
pub(crate) mod lock;
mod retention;

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{FromRow as _, Row as _};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::RoomName;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::room::{Epoch, HistoryPage, NewEvent, NewRoom, Room, StoredEvent};
use switchboard_model::wire::limits::HISTORY_BYTES;
use switchboard_store_api::{
    AppendAnswer, AppendOutcome, RoomCreateOutcome, RoomStore, RoomTop, StoreResult, WriteContext, Written,
};
use uuid::Uuid;

use self::lock::Held;
use crate::connect::{Database, Session, Tx};
use crate::context::{audit, claim, collided};
use crate::error::fault;
use crate::link::Link;
use crate::rows::{EventRow, RoomRow, after_name, parsed};

pub(crate) struct Rooms(pub(crate) Arc<Database>);

#[async_trait]
impl RoomStore for Rooms {
    #[tracing::instrument(name = "db.rooms.create", level = "debug", skip_all)]
    async fn create(&self, context: &WriteContext, room: &NewRoom) -> StoreResult<Written<RoomCreateOutcome>> {
        let mut tx = self.0.begin().await?;
        if let Some(before) = claim(&mut tx, context, room.id.as_uuid()).await? {
            return tx.undo(before).await;
        }
        let created = sqlx::query(
            "-- rooms.create
             INSERT INTO switchboard.rooms (id, name, kind, epoch, max_count, max_age_ms, max_bytes, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp())
             ON CONFLICT (name) DO NOTHING",
        )
        .bind(room.id.as_uuid())
        .bind(room.name.as_str())
        .bind(room.kind.as_str())
        .bind(Epoch::fresh_room_epoch())
        .bind(room.retention.max_count)
        .bind(room.retention.max_age.as_millis_i64())
        .bind(room.retention.max_bytes)
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected();
        let stored = find(&mut tx, &room.name).await?.ok_or_else(collided)?;
        if created == 0 {
            return tx.undo(Written::Now(RoomCreateOutcome::NameTaken(stored))).await;
        }
        audit(&mut tx, context).await?;
        tx.signal(SignalKind::RoomChanged, &room.name);
        tx.commit().await?;
        Ok(Written::Now(RoomCreateOutcome::Created(stored)))
    }

    #[tracing::instrument(name = "db.rooms.find", level = "debug", skip_all)]
    async fn find(&self, name: &RoomName) -> StoreResult<Option<Room>> {
        find(&mut *self.0.session().await?, name).await
    }

    #[tracing::instrument(name = "db.rooms.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Room>> {
        let after: Option<RoomName> = after_name(page)?;
        let mut session = self.0.session().await?;
        let rows: Vec<RoomRow> = sqlx::query_as(
            "-- rooms.list
             SELECT id, name, kind, epoch, top, first_kept, max_count, max_age_ms, max_bytes, created_at,
                    left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline
             FROM switchboard.rooms WHERE name > $1 ORDER BY name LIMIT $2",
        )
        .bind(after.as_ref().map_or("", RoomName::as_str))
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let rooms = rows.into_iter().map(Room::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(rooms, page.limit, |room| room.name.to_string()))
    }

    #[tracing::instrument(name = "db.rooms.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, name: &RoomName) -> StoreResult<bool> {
        let mut tx = self.0.begin().await?;
        let id: Option<Uuid> = sqlx::query_scalar(
            "-- rooms.lock
             SELECT id FROM switchboard.rooms WHERE name = $1 FOR UPDATE",
        )
        .bind(name.as_str())
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(id) = id else { return tx.undo(false).await };
        delete_events(&mut tx, id).await?;
        sqlx::query(
            "-- rooms.delete
             WITH dedupe AS (DELETE FROM switchboard.room_dedupe WHERE room_id = $1)
             DELETE FROM switchboard.rooms WHERE id = $1",
        )
        .bind(id)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        audit(&mut tx, context).await?;
        tx.signal(SignalKind::RoomChanged, name);
        tx.commit().await?;
        Ok(true)
    }

    #[tracing::instrument(name = "db.rooms.append", level = "debug", skip_all)]
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<AppendOutcome>> {
        Ok(append::all(append::append(&self.0, events, Held::Wait).await?))
    }

    #[tracing::instrument(name = "db.rooms.append_unless_busy", level = "debug", skip_all)]
    async fn append_unless_busy(&self, events: &[NewEvent]) -> StoreResult<Vec<Option<AppendOutcome>>> {
        append::append(&self.0, events, Held::PassOver).await
    }

    #[tracing::instrument(name = "db.rooms.append_once", level = "debug", skip_all)]
    async fn append_once(
        &self,
        context: &WriteContext,
        events: &[NewEvent],
        answer: &AppendAnswer,
    ) -> StoreResult<Written<Vec<AppendOutcome>>> {
        append::append_once(&self.0, context, events, answer).await
    }

    #[tracing::instrument(name = "db.rooms.history", level = "debug", skip_all)]
    async fn history(&self, name: &RoomName, after: i64, limit: u32) -> StoreResult<Option<HistoryPage>> {
        history(self.0.session().await?, name, after, limit).await
    }

    #[tracing::instrument(name = "db.rooms.tops", level = "debug", skip_all)]
    async fn tops(&self, names: &[RoomName]) -> StoreResult<Vec<RoomTop>> {
        let mut session = self.0.session().await?;
        let rows: Vec<(String, String, String, i64)> = sqlx::query_as(
            "-- rooms.tops
             SELECT name, epoch, left(pg_walfile_name(pg_current_wal_lsn()), 8), top
             FROM switchboard.rooms WHERE name = ANY ($1)",
        )
        .bind(names.iter().map(|name| name.as_str()).collect::<Vec<_>>())
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let top = |(name, epoch, timeline, top): (String, String, String, i64)| {
            Ok(RoomTop { room: parsed("room", &name)?, epoch: Epoch::new(&epoch, &timeline), top })
        };
        rows.into_iter().map(top).collect()
    }

    #[tracing::instrument(name = "db.rooms.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        retention::sweep(&self.0, limit).await
    }
}

async fn find(connection: &mut Link, name: &RoomName) -> StoreResult<Option<Room>> {
    let row: Option<RoomRow> = sqlx::query_as(
        "-- rooms.find
         SELECT id, name, kind, epoch, top, first_kept, max_count, max_age_ms, max_bytes, created_at,
                left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline
         FROM switchboard.rooms WHERE name = $1",
    )
    .bind(name.as_str())
    .fetch_optional(connection)
    .await
    .map_err(fault)?;
    row.map(Room::try_from).transpose()
}

/// Deletes the events of a locked room in steps, each of which keeps within the statement timeout.
async fn delete_events(tx: &mut Tx, room: Uuid) -> StoreResult<()> {
    const STEP: i64 = 10_000;
    let mut deleted = STEP;
    while deleted == STEP {
        deleted = sqlx::query(
            "-- rooms.delete_events
             DELETE FROM switchboard.room_events
             WHERE room_id = $1 AND pos = ANY (ARRAY (
                 SELECT pos FROM switchboard.room_events WHERE room_id = $1 ORDER BY pos LIMIT $2
             ))",
        )
        .bind(room)
        .bind(STEP)
        .execute(&mut **tx)
        .await
        .map_err(fault)?
        .rows_affected()
        .cast_signed();
    }
    Ok(())
}

/// Reads the room and a page of its events in one statement, hence in one snapshot.
async fn history(mut session: Session, name: &RoomName, after: i64, limit: u32) -> StoreResult<Option<HistoryPage>> {
    #[derive(sqlx::FromRow)]
    struct HeadRow {
        epoch: String,
        timeline: String,
        top: i64,
        first_kept: i64,
    }
    // The inner limit comes first: the bound on bytes alone would be tried on all the rest of the room.
    let rows: Vec<PgRow> = sqlx::query(
        "-- rooms.history
         SELECT room.epoch, left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline, room.top, room.first_kept,
                page.pos, page.event, page.payload, page.msg_id, page.sender, page.at
         FROM switchboard.rooms AS room
         LEFT JOIN LATERAL (
             SELECT event.*, first_value(event.bytes_total) OVER (ORDER BY event.pos) AS bytes_before
             FROM (
                 SELECT pos, event, payload, msg_id, sender, at, bytes_total
                 FROM switchboard.room_events
                 WHERE room_id = room.id AND pos > $2 AND pos >= room.first_kept
                 ORDER BY pos LIMIT $3
             ) AS event
         ) AS page ON page.bytes_total <= page.bytes_before + $4
         WHERE room.name = $1
         ORDER BY page.pos",
    )
    .bind(name.as_str())
    .bind(after)
    .bind(i64::from(limit))
    .bind(HISTORY_BYTES)
    .fetch_all(&mut *session)
    .await
    .map_err(fault)?;
    let Some(first) = rows.first() else { return Ok(None) };
    let head = HeadRow::from_row(first).map_err(fault)?;
    let mut events = Vec::with_capacity(rows.len());
    for row in &rows {
        // A room without events on this page has one row without an event.
        if row.try_get::<Option<i64>, _>("pos").map_err(fault)?.is_some() {
            events.push(StoredEvent::try_from(EventRow::from_row(row).map_err(fault)?)?);
        }
    }
    Ok(Some(HistoryPage {
        epoch: Epoch::new(&head.epoch, &head.timeline),
        top: head.top,
        first_kept: head.first_kept,
        events,
    }))
}
