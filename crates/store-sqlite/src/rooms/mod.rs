//! Rooms: rows, history and the way of each write to its transaction.

mod append;
mod retention;

use async_trait::async_trait;
use sqlx::{SqliteConnection, SqliteExecutor};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::RoomName;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::room::{Epoch, HistoryPage, NewEvent, NewRoom, Room, StoredEvent};
use switchboard_model::wire::limits::HISTORY_BYTES;
use switchboard_store_api::{
    AppendAnswer, AppendOutcome, RoomCreateOutcome, RoomStore, RoomTop, StoreError, StoreResult, WriteContext, Written,
};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, cursor, epoch, instant};
use crate::writer::{Change, Lane};
use crate::{Database, context};

async fn find(executor: impl SqliteExecutor<'_>, name: &RoomName) -> DbResult<Option<Room>> {
    let room: Option<Stored<Room>> = sqlx::query_as(
        "-- rooms.find
        SELECT * FROM rooms WHERE name = ?",
    )
    .bind(name.as_str())
    .fetch_optional(executor)
    .await?;
    Ok(room.map(Stored::into_inner))
}

async fn list(database: &Database, page: &PageRequest) -> DbResult<Page<Room>> {
    let rows: Vec<Stored<Room>> = sqlx::query_as(
        "-- rooms.list
        SELECT * FROM rooms WHERE name > ? ORDER BY name LIMIT ?",
    )
    .bind(cursor(page, String::new())?)
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(room)| room.name.to_string()).map(Stored::into_inner))
}

async fn create(change: &mut Change, context: WriteContext, room: NewRoom) -> DbResult<Written<RoomCreateOutcome>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    if let Some(other) = find(&mut change.connection, &room.name).await? {
        return Ok(Written::Now(RoomCreateOutcome::NameTaken(other)));
    }
    let room = insert(change, room).await?;
    context::complete(change, &context, room.id.as_uuid()).await?;
    Ok(Written::Now(RoomCreateOutcome::Created(room)))
}

/// Inserts the row of a room and signals it.
async fn insert(change: &mut Change, room: NewRoom) -> DbResult<Room> {
    let stored_epoch = Epoch::fresh_room_epoch();
    sqlx::query(
        "-- rooms.create
        INSERT INTO rooms (id, name, kind, epoch, max_count, max_age_ms, max_bytes, created_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(room.id.as_uuid())
    .bind(room.name.as_str())
    .bind(room.kind.as_str())
    .bind(&stored_epoch)
    .bind(room.retention.max_count)
    .bind(room.retention.max_age.as_millis_i64())
    .bind(room.retention.max_bytes)
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::RoomChanged, room.name.as_str(), 0);
    Ok(Room {
        id: room.id,
        name: room.name,
        kind: room.kind,
        epoch: epoch(&stored_epoch),
        top: 0,
        first_kept: 1,
        retention: room.retention,
        created_at: instant(change.now)?,
    })
}

/// Deletes the row of a room, and with it the way to its events; returns which room it was.
async fn delete(change: &mut Change, context: WriteContext, name: RoomName) -> DbResult<Option<Uuid>> {
    let deleted: Option<Uuid> = sqlx::query_scalar(
        "-- rooms.delete
        DELETE FROM rooms WHERE name = ? RETURNING id",
    )
    .bind(name.as_str())
    .fetch_optional(&mut change.connection)
    .await?;
    if deleted.is_some() {
        change.signal(SignalKind::RoomChanged, name.as_str(), 0);
        context::audit(change, &context).await?;
    }
    Ok(deleted)
}

async fn history(database: &Database, name: &RoomName, after: i64, limit: u32) -> DbResult<Option<HistoryPage>> {
    // One snapshot for the room and its events, so that neither is ahead of the other.
    let mut snapshot = database.readers.begin().await?;
    let Some(room) = find(&mut *snapshot, name).await? else { return Ok(None) };
    let events = events_after(&mut snapshot, &room, after, limit).await?;
    snapshot.rollback().await?;
    Ok(Some(HistoryPage { epoch: room.epoch, top: room.top, first_kept: room.first_kept, events }))
}

/// Reads a page of kept events; its first event counts with its full length, so a page is never empty.
async fn events_after(
    connection: &mut SqliteConnection,
    room: &Room,
    after: i64,
    limit: u32,
) -> DbResult<Vec<StoredEvent>> {
    let events: Vec<Stored<StoredEvent>> = sqlx::query_as(
        "-- rooms.history
        SELECT pos, msg_id, event, payload, sender, at FROM room_events
        WHERE room_id = ?1 AND pos >= ?2 AND bytes_total <= ?3 +
            (SELECT bytes_total FROM room_events WHERE room_id = ?1 AND pos >= ?2 ORDER BY pos LIMIT 1)
        ORDER BY pos LIMIT ?4",
    )
    .bind(room.id.as_uuid())
    .bind(room.first_kept.max(after.saturating_add(1)))
    .bind(HISTORY_BYTES)
    .bind(limit)
    .fetch_all(connection)
    .await?;
    Ok(events.into_iter().map(Stored::into_inner).collect())
}

async fn tops(database: &Database, names: &[RoomName]) -> DbResult<Vec<RoomTop>> {
    let rows: Vec<(String, String, i64)> = sqlx::query_as(
        "-- rooms.tops
        SELECT name, epoch, top FROM rooms WHERE name IN (SELECT value FROM json_each(?))",
    )
    .bind(serde_json::to_string(names)?)
    .fetch_all(&database.readers)
    .await?;
    let top = |(name, stored, top): (String, String, i64)| {
        let room = name.parse().map_err(|error| StoreError::corrupt("room", error))?;
        Ok(RoomTop { room, epoch: epoch(&stored), top })
    };
    rows.into_iter().map(top).collect()
}

#[async_trait]
impl RoomStore for Database {
    #[tracing::instrument(name = "db.rooms.create", level = "debug", skip_all)]
    async fn create(&self, context: &WriteContext, room: &NewRoom) -> StoreResult<Written<RoomCreateOutcome>> {
        let (context, room) = (context.clone(), room.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(create(change, context, room))).await
    }

    #[tracing::instrument(name = "db.rooms.find", level = "debug", skip_all)]
    async fn find(&self, name: &RoomName) -> StoreResult<Option<Room>> {
        Ok(find(&self.readers, name).await?)
    }

    #[tracing::instrument(name = "db.rooms.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Room>> {
        Ok(list(self, page).await?)
    }

    #[tracing::instrument(name = "db.rooms.delete", level = "debug", skip_all)]
    async fn delete(&self, context: &WriteContext, name: &RoomName) -> StoreResult<bool> {
        let (context, name) = (context.clone(), name.clone());
        let deleted = self.writer.write(Lane::Normal, |change| Box::pin(delete(change, context, name))).await?;
        if let Some(room) = deleted
            && let Err(error) = retention::delete_events(&self.writer, room).await
        {
            // The room is gone all the same, and the next sweep goes on.
            tracing::warn!(error = &error as &dyn std::error::Error, "events of a deleted room are left to the sweep");
        }
        Ok(deleted.is_some())
    }

    #[tracing::instrument(name = "db.rooms.append", level = "debug", skip_all)]
    async fn append(&self, events: &[NewEvent]) -> StoreResult<Vec<AppendOutcome>> {
        let events = events.to_vec();
        self.writer.write(Lane::Normal, |change| Box::pin(append::append(change, events))).await
    }

    #[tracing::instrument(name = "db.rooms.append_once", level = "debug", skip_all)]
    async fn append_once(
        &self,
        context: &WriteContext,
        events: &[NewEvent],
        answer: &AppendAnswer,
    ) -> StoreResult<Written<Vec<AppendOutcome>>> {
        let (context, events, answer) = (context.clone(), events.to_vec(), answer.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(append::append_once(change, context, events, answer))).await
    }

    #[tracing::instrument(name = "db.rooms.history", level = "debug", skip_all)]
    async fn history(&self, name: &RoomName, after: i64, limit: u32) -> StoreResult<Option<HistoryPage>> {
        Ok(history(self, name, after, limit).await?)
    }

    #[tracing::instrument(name = "db.rooms.tops", level = "debug", skip_all)]
    async fn tops(&self, names: &[RoomName]) -> StoreResult<Vec<RoomTop>> {
        Ok(tops(self, names).await?)
    }

    #[tracing::instrument(name = "db.rooms.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        retention::sweep(self, limit).await
    }
}
