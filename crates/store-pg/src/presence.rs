//! Who shows themselves in which room, by the sockets that are entered there.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::connection::NewConnection;
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::ConnectionId;
use switchboard_model::presence::{PRESENCE_MEMBERS, Presence, PresentUser};
use switchboard_store_api::{PresenceChange, PresenceStore, StoreResult};
use uuid::Uuid;

use crate::connect::{Database, Tx};
use crate::error::fault;
use crate::rows::parsed;

pub(crate) struct PresenceRows(pub(crate) Arc<Database>);

#[async_trait]
impl PresenceStore for PresenceRows {
    #[tracing::instrument(name = "db.presence.change", level = "debug", skip_all)]
    async fn change(&self, changes: &[PresenceChange]) -> StoreResult<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let net = net(changes);
        let mut tx = self.0.begin().await?;
        let open = keep_open(&mut tx, &net.entered).await?;
        let mut rooms = leave(&mut tx, &net.left).await?;
        rooms.extend(enter(&mut tx, &open).await?);
        if rooms.is_empty() {
            return tx.undo(()).await;
        }
        for room in rooms {
            tx.signal(SignalKind::PresenceChanged, &room);
        }
        tx.commit().await
    }

    #[tracing::instrument(name = "db.presence.read", level = "debug", skip_all)]
    async fn read(&self, rooms: &[RoomName]) -> StoreResult<Vec<Presence>> {
        let mut session = self.0.session().await?;
        let rows: Vec<MemberRow> = sqlx::query_as(
            "-- presence.read
             WITH present AS MATERIALIZED (
                 SELECT shown.room, shown.user_id, min(shown.since) AS since
                 FROM switchboard.presence AS shown
                 LEFT JOIN switchboard.instances AS instance
                   ON instance.id = shown.instance_id AND instance.expires_at > clock_timestamp()
                 WHERE shown.room = ANY ($1)
                   AND CASE WHEN shown.leaves_at IS NULL THEN instance.id IS NOT NULL
                            ELSE shown.leaves_at > clock_timestamp() END
                 GROUP BY shown.room, shown.user_id
             ),
             numbered AS (
                 SELECT *, count(*) OVER (PARTITION BY room) AS total,
                        row_number() OVER (PARTITION BY room ORDER BY user_id) AS place
                 FROM present
             )
             SELECT room, user_id, since, total FROM numbered WHERE total <= $2 OR place = 1
             ORDER BY room, place",
        )
        .bind(rooms.iter().map(|room| room.as_str()).collect::<Vec<_>>())
        .bind(i64::try_from(PRESENCE_MEMBERS).unwrap_or(i64::MAX))
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        gather(rooms, rows)
    }

    #[tracing::instrument(name = "db.presence.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        let mut tx = self.0.begin().await?;
        let rooms: Vec<String> = sqlx::query_scalar(
            "-- presence.sweep
             WITH ended AS MATERIALIZED (
                 SELECT room, connection_id FROM switchboard.presence WHERE leaves_at <= clock_timestamp()
                 ORDER BY leaves_at LIMIT $1 FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.presence AS present USING ended
             WHERE present.room = ended.room AND present.connection_id = ended.connection_id
             RETURNING present.room",
        )
        .bind(i64::from(limit))
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        if rooms.is_empty() {
            return tx.undo(0).await;
        }
        for room in &rooms {
            tx.signal(SignalKind::PresenceChanged, room);
        }
        let deleted = rooms.len() as u64;
        tx.commit().await?;
        Ok(deleted)
    }
}

/// What a batch comes down to: of several changes of one socket in one room the last one counts.
struct Net<'a> {
    entered: Vec<Entry<'a>>,
    left: Vec<(&'a RoomName, ConnectionId)>,
}

fn net(changes: &[PresenceChange]) -> Net<'_> {
    let last: HashMap<_, _> = changes
        .iter()
        .map(|change| match change {
            PresenceChange::Enter { room, connection } => ((room, connection.id), Some(connection)),
            PresenceChange::Leave { room, connection } => ((room, *connection), None),
        })
        .collect();
    let mut net = Net { entered: Vec::new(), left: Vec::new() };
    for ((room, id), entered) in last {
        match entered {
            Some(connection) => net.entered.push((room, connection)),
            None => net.left.push((room, id)),
        }
    }
    net
}

/// Deletes entries and returns their rooms.
async fn leave(tx: &mut Tx, left: &[(&RoomName, ConnectionId)]) -> StoreResult<Vec<String>> {
    if left.is_empty() {
        return Ok(Vec::new());
    }
    sqlx::query_scalar(
        "-- presence.leave
         WITH gone AS MATERIALIZED (
             SELECT room, connection_id FROM switchboard.presence
             WHERE (room, connection_id) IN (SELECT * FROM unnest($1::text[], $2::uuid[]))
             ORDER BY room, connection_id FOR UPDATE
         )
         DELETE FROM switchboard.presence AS present USING gone
         WHERE present.room = gone.room AND present.connection_id = gone.connection_id
         RETURNING present.room",
    )
    .bind(left.iter().map(|(room, _)| room.as_str()).collect::<Vec<_>>())
    .bind(left.iter().map(|(_, id)| id.as_uuid()).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

/// An entry to be made.
type Entry<'a> = (&'a RoomName, &'a NewConnection);

/// Returns the entries of sockets that are open, and keeps those from closing: who closes meanwhile waits for the
/// commit, and finds the entry.
async fn keep_open<'a>(tx: &mut Tx, entered: &[Entry<'a>]) -> StoreResult<Vec<Entry<'a>>> {
    if entered.is_empty() {
        return Ok(Vec::new());
    }
    let open: Vec<Uuid> = sqlx::query_scalar(
        "-- connections.keep
         SELECT id FROM switchboard.connections WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE",
    )
    .bind(entered.iter().map(|(_, connection)| connection.id.as_uuid()).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let is_open = |(_, connection): &&Entry<'_>| open.binary_search(&connection.id.as_uuid()).is_ok();
    Ok(entered.iter().filter(is_open).copied().collect())
}

/// Makes entries and returns the rooms in which they are new.
async fn enter(tx: &mut Tx, entered: &[Entry<'_>]) -> StoreResult<Vec<String>> {
    if entered.is_empty() {
        return Ok(Vec::new());
    }
    sqlx::query_scalar(
        "-- presence.enter
         INSERT INTO switchboard.presence (room, connection_id, instance_id, user_id, since)
         SELECT room, id, instance, person, clock_timestamp()
         FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[]) AS socket (room, id, instance, person)
         ORDER BY room, id
         ON CONFLICT DO NOTHING RETURNING room",
    )
    .bind(entered.iter().map(|(room, _)| room.as_str()).collect::<Vec<_>>())
    .bind(entered.iter().map(|(_, connection)| connection.id.as_uuid()).collect::<Vec<_>>())
    .bind(entered.iter().map(|(_, connection)| connection.instance.as_str()).collect::<Vec<_>>())
    .bind(entered.iter().map(|(_, connection)| connection.user_id.as_str()).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)
}

/// Somebody in a room; a room with too many people has one such row, for its number.
#[derive(sqlx::FromRow)]
struct MemberRow {
    room: String,
    user_id: String,
    since: Timestamp,
    total: i64,
}

fn gather(rooms: &[RoomName], rows: Vec<MemberRow>) -> StoreResult<Vec<Presence>> {
    let mut found: HashMap<String, Presence> = HashMap::new();
    for row in rows {
        let is_told = usize::try_from(row.total).is_ok_and(|total| total <= PRESENCE_MEMBERS);
        let presence =
            found.entry(row.room).or_insert_with(|| Presence { count: row.total, members: is_told.then(Vec::new) });
        if let Some(members) = &mut presence.members {
            members.push(PresentUser { user_id: parsed("presence", &row.user_id)?, since: row.since });
        }
    }
    let nobody = Presence { count: 0, members: Some(Vec::new()) };
    Ok(rooms.iter().map(|room| found.get(room.as_str()).unwrap_or(&nobody).clone()).collect())
}
