//! The sockets of this process.

use async_trait::async_trait;
use switchboard_model::connection::{Connection, NewConnection};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::UserId;
use switchboard_model::ids::{ConnectionId, InstanceId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::presence::PRESENCE_GRACE;
use switchboard_store_api::{ConnectOutcome, ConnectionStore, StoreError, StoreResult, WriteContext};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, cursor, later};
use crate::writer::{Change, Lane};
use crate::{Database, connect, context};

async fn connect(change: &mut Change, connections: Vec<NewConnection>, most: u32) -> DbResult<Vec<ConnectOutcome>> {
    let mut outcomes = Vec::with_capacity(connections.len());
    for connection in connections {
        outcomes.push(connect_one(change, connection, most).await?);
    }
    Ok(outcomes)
}

async fn connect_one(change: &mut Change, new: NewConnection, most: u32) -> DbResult<ConnectOutcome> {
    let (is_known, open): (bool, i64) = sqlx::query_as(
        "-- connections.count
        SELECT EXISTS (SELECT 1 FROM instances WHERE id = ?1),
            (SELECT COUNT(*) FROM connections JOIN instances ON instances.id = instance_id AND expires_at > ?3
             WHERE user_id = ?2)",
    )
    .bind(new.instance.as_str())
    .bind(new.user_id.as_str())
    .bind(change.now)
    .fetch_one(&mut change.connection)
    .await?;
    if !is_known {
        return Err(StoreError::Fenced.into());
    }
    if open >= i64::from(most) {
        return Ok(ConnectOutcome::TooMany);
    }
    sqlx::query(
        "-- connections.insert
        INSERT INTO connections (id, instance_id, user_id, since) VALUES (?, ?, ?, ?)",
    )
    .bind(new.id.as_uuid())
    .bind(new.instance.as_str())
    .bind(new.user_id.as_str())
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    change.signal(SignalKind::ConnectionsChanged, new.user_id.as_str(), 0);
    Ok(ConnectOutcome::Connected)
}

async fn disconnect(change: &mut Change, connections: Vec<ConnectionId>) -> DbResult<()> {
    for id in connections {
        let user: Option<String> = sqlx::query_scalar(
            "-- connections.disconnect
            DELETE FROM connections WHERE id = ? RETURNING user_id",
        )
        .bind(id.as_uuid())
        .fetch_optional(&mut change.connection)
        .await?;
        let Some(user) = user else { continue };
        change.signal(SignalKind::ConnectionsChanged, user, 0);
        let_go(change, id).await?;
    }
    Ok(())
}

/// Begins the grace of whoever was shown by a socket that is gone.
async fn let_go(change: &mut Change, id: ConnectionId) -> DbResult<()> {
    sqlx::query(
        "-- presence.let_go
        UPDATE presence SET leaves_at = ? WHERE connection_id = ? AND leaves_at IS NULL",
    )
    .bind(later(change.now, PRESENCE_GRACE))
    .bind(id.as_uuid())
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

/// Deletes the sockets of a replica whose row was just deleted, with the presence that hangs on them. A socket that was
/// closed before keeps its grace: a replica that stops moves its clients away first.
pub(crate) async fn forget(change: &mut Change, instance: &str) -> DbResult<()> {
    let users: Vec<String> = sqlx::query_scalar(
        "-- connections.forget
        DELETE FROM connections WHERE instance_id = ? RETURNING user_id",
    )
    .bind(instance)
    .fetch_all(&mut change.connection)
    .await?;
    let rooms: Vec<String> = sqlx::query_scalar(
        "-- presence.forget
        DELETE FROM presence WHERE instance_id = ? AND leaves_at IS NULL RETURNING room",
    )
    .bind(instance)
    .fetch_all(&mut change.connection)
    .await?;
    for user in users {
        change.signal(SignalKind::ConnectionsChanged, user, 0);
    }
    for room in rooms {
        change.signal(SignalKind::PresenceChanged, room, 0);
    }
    Ok(())
}

async fn list(database: &Database, user: Option<&UserId>, page: &PageRequest) -> DbResult<Page<Connection>> {
    let rows: Vec<Stored<Connection>> = sqlx::query_as(
        "-- connections.list
        SELECT connections.* FROM connections JOIN instances ON instances.id = instance_id AND expires_at > ?1
        WHERE connections.id > ?2 AND (?3 IS NULL OR user_id = ?3)
        ORDER BY connections.id LIMIT ?4",
    )
    .bind(connect::now())
    .bind(cursor(page, Uuid::nil())?)
    .bind(user.map(UserId::as_str))
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(connection)| connection.id.to_string()).map(Stored::into_inner))
}

async fn kick(change: &mut Change, context: WriteContext, id: ConnectionId) -> DbResult<bool> {
    let user: Option<String> = sqlx::query_scalar(
        "-- connections.kick
        DELETE FROM connections
        WHERE id = ?2 AND instance_id IN (SELECT id FROM instances WHERE expires_at > ?1)
        RETURNING user_id",
    )
    .bind(change.now)
    .bind(id.as_uuid())
    .fetch_optional(&mut change.connection)
    .await?;
    let Some(user) = user else { return Ok(false) };
    let_go(change, id).await?;
    change.signal(SignalKind::Kicked, id.to_string(), 0);
    change.signal(SignalKind::ConnectionsChanged, user, 0);
    context::audit(change, &context).await?;
    Ok(true)
}

async fn kicked(database: &Database, instance: &InstanceId, ids: &[ConnectionId]) -> DbResult<Vec<ConnectionId>> {
    let asked: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let kicked: Vec<Uuid> = sqlx::query_scalar(
        "-- connections.kicked
        SELECT asked.id FROM (SELECT unhex(value, '-') AS id FROM json_each(?2)) AS asked
        WHERE EXISTS (SELECT 1 FROM instances WHERE instances.id = ?1)
            AND NOT EXISTS (SELECT 1 FROM connections WHERE connections.id = asked.id)",
    )
    .bind(instance.as_str())
    .bind(serde_json::to_string(&asked)?)
    .fetch_all(&database.readers)
    .await?;
    Ok(kicked.into_iter().map(ConnectionId::from_uuid).collect())
}

#[async_trait]
impl ConnectionStore for Database {
    #[tracing::instrument(name = "db.connections.connect", level = "debug", skip_all)]
    async fn connect(&self, connections: &[NewConnection], most: u32) -> StoreResult<Vec<ConnectOutcome>> {
        let connections = connections.to_vec();
        self.writer.write(Lane::Normal, move |change| Box::pin(connect(change, connections, most))).await
    }

    #[tracing::instrument(name = "db.connections.disconnect", level = "debug", skip_all)]
    async fn disconnect(&self, connections: &[ConnectionId]) -> StoreResult<()> {
        let connections = connections.to_vec();
        self.writer.write(Lane::Normal, move |change| Box::pin(disconnect(change, connections))).await
    }

    #[tracing::instrument(name = "db.connections.list", level = "debug", skip_all)]
    async fn list(&self, user: Option<&UserId>, page: &PageRequest) -> StoreResult<Page<Connection>> {
        Ok(list(self, user, page).await?)
    }

    #[tracing::instrument(name = "db.connections.kick", level = "debug", skip_all)]
    async fn kick(&self, context: &WriteContext, connection: ConnectionId) -> StoreResult<bool> {
        let context = context.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(kick(change, context, connection))).await
    }

    #[tracing::instrument(name = "db.connections.kicked", level = "debug", skip_all)]
    async fn kicked(&self, instance: &InstanceId, connections: &[ConnectionId]) -> StoreResult<Vec<ConnectionId>> {
        Ok(kicked(self, instance, connections).await?)
    }
}
