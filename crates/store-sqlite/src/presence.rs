//! Who shows themselves in which room, by the sockets that are entered there.

use async_trait::async_trait;
use sqlx::SqliteConnection;
use switchboard_model::connection::NewConnection;
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::ConnectionId;
use switchboard_model::presence::{PRESENCE_MEMBERS, Presence, PresentUser};
use switchboard_store_api::{PresenceChange, PresenceStore, StoreResult};

use crate::error::DbResult;
use crate::rows::Stored;
use crate::writer::{Change, Lane};
use crate::{Database, connect};

async fn apply(change: &mut Change, changes: Vec<PresenceChange>) -> DbResult<()> {
    for wanted in changes {
        let (room, has_changed) = match wanted {
            PresenceChange::Enter { room, connection } => {
                let has_changed = enter(change, &room, &connection).await?;
                (room, has_changed)
            }
            PresenceChange::Leave { room, connection } => {
                let has_changed = leave(change, &room, connection).await?;
                (room, has_changed)
            }
        };
        if has_changed {
            change.signal(SignalKind::PresenceChanged, room.as_str(), 0);
        }
    }
    Ok(())
}

async fn enter(change: &mut Change, room: &RoomName, connection: &NewConnection) -> DbResult<bool> {
    let entered = sqlx::query(
        "-- presence.enter
        INSERT INTO presence (room, connection_id, instance_id, user_id, since)
        SELECT ?1, id, instance_id, user_id, ?3 FROM connections WHERE id = ?2
        ON CONFLICT DO NOTHING",
    )
    .bind(room.as_str())
    .bind(connection.id.as_uuid())
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    Ok(entered.rows_affected() > 0)
}

async fn leave(change: &mut Change, room: &RoomName, connection: ConnectionId) -> DbResult<bool> {
    let left = sqlx::query(
        "-- presence.leave
        DELETE FROM presence WHERE room = ? AND connection_id = ?",
    )
    .bind(room.as_str())
    .bind(connection.as_uuid())
    .execute(&mut change.connection)
    .await?;
    Ok(left.rows_affected() > 0)
}

async fn read(database: &Database, rooms: &[RoomName]) -> DbResult<Vec<Presence>> {
    let mut snapshot = database.readers.begin().await?;
    let mut found = Vec::with_capacity(rooms.len());
    for room in rooms {
        found.push(read_one(&mut snapshot, room).await?);
    }
    snapshot.rollback().await?;
    Ok(found)
}

async fn read_one(snapshot: &mut SqliteConnection, room: &RoomName) -> DbResult<Presence> {
    let mut members: Vec<Stored<PresentUser>> = sqlx::query_as(
        "-- presence.read
        SELECT presence.user_id, MIN(presence.since) AS since
        FROM presence LEFT JOIN instances ON instances.id = presence.instance_id AND expires_at > ?2
        WHERE room = ?1 AND CASE WHEN leaves_at IS NULL THEN instances.id IS NOT NULL ELSE leaves_at > ?2 END
        GROUP BY presence.user_id ORDER BY presence.user_id",
    )
    .bind(room.as_str())
    .bind(connect::now())
    .fetch_all(snapshot)
    .await?;
    let is_told = members.len() <= PRESENCE_MEMBERS;
    let count = i64::try_from(members.len()).unwrap_or(i64::MAX);
    Ok(Presence { count, members: is_told.then(|| members.drain(..).map(Stored::into_inner).collect()) })
}

async fn sweep(change: &mut Change, limit: u32) -> DbResult<u64> {
    let rooms: Vec<String> = sqlx::query_scalar(
        "-- presence.sweep
        DELETE FROM presence WHERE rowid IN
            (SELECT rowid FROM presence WHERE leaves_at <= ? ORDER BY leaves_at LIMIT ?)
        RETURNING room",
    )
    .bind(change.now)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    let count = rooms.len() as u64;
    for room in rooms {
        change.signal(SignalKind::PresenceChanged, room, 0);
    }
    Ok(count)
}

#[async_trait]
impl PresenceStore for Database {
    #[tracing::instrument(name = "db.presence.change", level = "debug", skip_all)]
    async fn change(&self, changes: &[PresenceChange]) -> StoreResult<()> {
        let changes = changes.to_vec();
        self.writer.write(Lane::Normal, move |change| Box::pin(apply(change, changes))).await
    }

    #[tracing::instrument(name = "db.presence.read", level = "debug", skip_all)]
    async fn read(&self, rooms: &[RoomName]) -> StoreResult<Vec<Presence>> {
        Ok(read(self, rooms).await?)
    }

    #[tracing::instrument(name = "db.presence.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep(change, limit))).await
    }
}
