//! The sockets of all replicas. Whether a replica lives is asked of its row; nothing here ends a lease.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::connection::{Connection, NewConnection};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::UserId;
use switchboard_model::ids::{ConnectionId, InstanceId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::presence::PRESENCE_GRACE;
use switchboard_store_api::{ConnectOutcome, ConnectionStore, StoreError, StoreResult, WriteContext};
use uuid::Uuid;

use crate::connect::{Database, Tx};
use crate::context::audit;
use crate::error::fault;
use crate::rows::{after_id, parsed};

pub(crate) struct Connections(pub(crate) Arc<Database>);

#[async_trait]
impl ConnectionStore for Connections {
    #[tracing::instrument(name = "db.connections.connect", level = "debug", skip_all)]
    async fn connect(&self, connections: &[NewConnection], most: u32) -> StoreResult<Vec<ConnectOutcome>> {
        if connections.is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.0.begin().await?;
        lock_users(&mut tx, connections).await?;
        if !keep_instances(&mut tx, connections).await? {
            tx.undo(()).await?;
            return Err(StoreError::Fenced);
        }
        let mut open = count(&mut tx, connections).await?;
        let mut admitted = Vec::with_capacity(connections.len());
        let mut outcomes = Vec::with_capacity(connections.len());
        for connection in connections {
            let count = open.entry(connection.user_id.as_str().to_owned()).or_default();
            if *count >= i64::from(most) {
                outcomes.push(ConnectOutcome::TooMany);
                continue;
            }
            *count += 1;
            outcomes.push(ConnectOutcome::Connected);
            admitted.push(connection);
        }
        if admitted.is_empty() {
            return tx.undo(outcomes).await;
        }
        insert(&mut tx, &admitted).await?;
        for connection in admitted {
            tx.signal(SignalKind::ConnectionsChanged, &connection.user_id);
        }
        tx.commit().await?;
        Ok(outcomes)
    }

    #[tracing::instrument(name = "db.connections.disconnect", level = "debug", skip_all)]
    async fn disconnect(&self, connections: &[ConnectionId]) -> StoreResult<()> {
        if connections.is_empty() {
            return Ok(());
        }
        let mut tx = self.0.begin().await?;
        let users: Vec<String> = sqlx::query_scalar(
            "-- connections.disconnect
             WITH gone AS MATERIALIZED (
                 SELECT id FROM switchboard.connections WHERE id = ANY ($1) ORDER BY id FOR UPDATE
             )
             DELETE FROM switchboard.connections AS connection USING gone WHERE connection.id = gone.id
             RETURNING connection.user_id",
        )
        .bind(uuids(connections))
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        if users.is_empty() {
            return tx.undo(()).await;
        }
        let_go(&mut tx, connections).await?;
        for user in users {
            tx.signal(SignalKind::ConnectionsChanged, &user);
        }
        tx.commit().await
    }

    #[tracing::instrument(name = "db.connections.list", level = "debug", skip_all)]
    async fn list(&self, user: Option<&UserId>, page: &PageRequest) -> StoreResult<Page<Connection>> {
        let after = after_id(page)?.unwrap_or_default();
        let mut session = self.0.session().await?;
        let rows: Vec<ConnectionRow> = sqlx::query_as(
            "-- connections.list
             SELECT connection.id, connection.instance_id, connection.user_id, connection.since
             FROM switchboard.connections AS connection
             JOIN switchboard.instances AS instance
               ON instance.id = connection.instance_id AND instance.expires_at > clock_timestamp()
             WHERE connection.id > $1 AND ($2::text IS NULL OR connection.user_id = $2)
             ORDER BY connection.id LIMIT $3",
        )
        .bind(after)
        .bind(user.map(UserId::as_str))
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let connections = rows.into_iter().map(Connection::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(connections, page.limit, |connection| connection.id.to_string()))
    }

    #[tracing::instrument(name = "db.connections.kick", level = "debug", skip_all)]
    async fn kick(&self, context: &WriteContext, connection: ConnectionId) -> StoreResult<bool> {
        let mut tx = self.0.begin().await?;
        let user: Option<String> = sqlx::query_scalar(
            "-- connections.kick
             DELETE FROM switchboard.connections AS connection USING switchboard.instances AS instance
             WHERE connection.id = $1
               AND instance.id = connection.instance_id AND instance.expires_at > clock_timestamp()
             RETURNING connection.user_id",
        )
        .bind(connection.as_uuid())
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(user) = user else { return tx.undo(false).await };
        let_go(&mut tx, &[connection]).await?;
        audit(&mut tx, context).await?;
        tx.signal(SignalKind::Kicked, &connection);
        tx.signal(SignalKind::ConnectionsChanged, &user);
        tx.commit().await?;
        Ok(true)
    }

    /// Looks at both lists in one statement: a sweep takes a replica and its sockets off them in one commit.
    #[tracing::instrument(name = "db.connections.kicked", level = "debug", skip_all)]
    async fn kicked(&self, instance: &InstanceId, connections: &[ConnectionId]) -> StoreResult<Vec<ConnectionId>> {
        let mut session = self.0.session().await?;
        let kicked: Vec<Uuid> = sqlx::query_scalar(
            "-- connections.kicked
             SELECT asked.id FROM unnest($2::uuid[]) AS asked (id)
             WHERE EXISTS (SELECT FROM switchboard.instances WHERE id = $1)
               AND NOT EXISTS (SELECT FROM switchboard.connections WHERE id = asked.id)",
        )
        .bind(instance.as_str())
        .bind(uuids(connections))
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        Ok(kicked.into_iter().map(ConnectionId::from_uuid).collect())
    }
}

/// Begins the grace of whoever was shown by sockets that are gone.
async fn let_go(tx: &mut Tx, connections: &[ConnectionId]) -> StoreResult<()> {
    sqlx::query(
        "-- presence.let_go
         WITH shown AS MATERIALIZED (
             SELECT room, connection_id FROM switchboard.presence
             WHERE connection_id = ANY ($1) AND leaves_at IS NULL
             ORDER BY room, connection_id FOR UPDATE
         )
         UPDATE switchboard.presence AS present
         SET leaves_at = clock_timestamp() + $2 * interval '1 millisecond'
         FROM shown WHERE present.room = shown.room AND present.connection_id = shown.connection_id",
    )
    .bind(uuids(connections))
    .bind(PRESENCE_GRACE.as_millis_i64())
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}

/// Deletes the sockets of replicas whose locked rows were just deleted, with the presence that hangs on them. A socket
/// that was closed before keeps its grace: a replica that stops moves its clients away first.
pub(crate) async fn forget(tx: &mut Tx, instances: &[&str]) -> StoreResult<()> {
    let users: Vec<String> = sqlx::query_scalar(
        "-- connections.forget
         WITH gone AS MATERIALIZED (
             SELECT id FROM switchboard.connections WHERE instance_id = ANY ($1) ORDER BY id FOR UPDATE
         )
         DELETE FROM switchboard.connections AS connection USING gone WHERE connection.id = gone.id
         RETURNING connection.user_id",
    )
    .bind(instances)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let rooms: Vec<String> = sqlx::query_scalar(
        "-- presence.forget
         WITH gone AS MATERIALIZED (
             SELECT room, connection_id FROM switchboard.presence
             WHERE instance_id = ANY ($1) AND leaves_at IS NULL
             ORDER BY room, connection_id FOR UPDATE
         )
         DELETE FROM switchboard.presence AS present USING gone
         WHERE present.room = gone.room AND present.connection_id = gone.connection_id
         RETURNING present.room",
    )
    .bind(instances)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    for user in users {
        tx.signal(SignalKind::ConnectionsChanged, &user);
    }
    for room in rooms {
        tx.signal(SignalKind::PresenceChanged, &room);
    }
    Ok(())
}

/// Makes the users of a batch wait for each other's commits; accounts of other issuers have no row to lock.
async fn lock_users(tx: &mut Tx, connections: &[NewConnection]) -> StoreResult<()> {
    sqlx::query(
        "-- connections.lock_users
         WITH keys AS MATERIALIZED (
             SELECT DISTINCT hashtextextended('switchboard.sockets:' || name, 0) AS key
             FROM unnest($1::text[]) AS people (name) ORDER BY key
         )
         SELECT pg_advisory_xact_lock(key) FROM keys",
    )
    .bind(users(connections))
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}

/// Keeps the rows of the replicas from being deleted, so that no socket is left behind without its replica; tells
/// whether all of them are there.
async fn keep_instances(tx: &mut Tx, connections: &[NewConnection]) -> StoreResult<bool> {
    let mut wanted: Vec<&str> = connections.iter().map(|connection| connection.instance.as_str()).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let found = sqlx::query(
        "-- instances.keep
         SELECT FROM switchboard.instances WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE",
    )
    .bind(&wanted)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(found.len() == wanted.len())
}

/// Counts the sockets on live replicas of each user who has any.
async fn count(tx: &mut Tx, connections: &[NewConnection]) -> StoreResult<HashMap<String, i64>> {
    let rows: Vec<(String, i64)> = sqlx::query_as(
        "-- connections.count
         SELECT connection.user_id, count(*)
         FROM switchboard.connections AS connection
         JOIN switchboard.instances AS instance
           ON instance.id = connection.instance_id AND instance.expires_at > clock_timestamp()
         WHERE connection.user_id = ANY ($1) GROUP BY connection.user_id",
    )
    .bind(users(connections))
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(rows.into_iter().collect())
}

async fn insert(tx: &mut Tx, connections: &[&NewConnection]) -> StoreResult<()> {
    sqlx::query(
        "-- connections.insert
         INSERT INTO switchboard.connections (id, instance_id, user_id, since)
         SELECT id, instance, person, clock_timestamp()
         FROM unnest($1::uuid[], $2::text[], $3::text[]) AS socket (id, instance, person)",
    )
    .bind(connections.iter().map(|connection| connection.id.as_uuid()).collect::<Vec<_>>())
    .bind(connections.iter().map(|connection| connection.instance.as_str()).collect::<Vec<_>>())
    .bind(connections.iter().map(|connection| connection.user_id.as_str()).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(())
}

fn users(connections: &[NewConnection]) -> Vec<&str> {
    connections.iter().map(|connection| connection.user_id.as_str()).collect()
}

fn uuids(connections: &[ConnectionId]) -> Vec<Uuid> {
    connections.iter().map(|id| id.as_uuid()).collect()
}

#[derive(sqlx::FromRow)]
struct ConnectionRow {
    id: Uuid,
    instance_id: String,
    user_id: String,
    since: Timestamp,
}

impl TryFrom<ConnectionRow> for Connection {
    type Error = StoreError;

    fn try_from(row: ConnectionRow) -> StoreResult<Self> {
        Ok(Self {
            id: ConnectionId::from_uuid(row.id),
            instance: InstanceId::from_stored(row.instance_id),
            user_id: parsed("connection", &row.user_id)?,
            since: row.since,
        })
    }
}
