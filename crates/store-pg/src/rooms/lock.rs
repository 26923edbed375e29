//! Locking the rooms of an append, and making the implicit ones that are missing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use switchboard_model::identity::RoomName;
use switchboard_model::ids::RoomId;
use switchboard_model::room::{Epoch, Retention, RoomClass, RoomKind};
use switchboard_store_api::StoreResult;
use uuid::Uuid;

use crate::connect::Tx;
use crate::error::fault;
use crate::link::Link;

/// What to do about a room that somebody else holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// Wait for it.
    Wait,
    /// Pass it over.
    PassOver,
}

/// Names of rooms that may have a row, and of which kind they are made when they are missing.
pub(crate) type RoomNames<'a> = BTreeMap<&'a str, Option<RoomKind>>;

/// Picks the rooms that may have a row.
pub(crate) fn stored_rooms<'a>(rooms: impl Iterator<Item = &'a RoomName>) -> RoomNames<'a> {
    let mut names = BTreeMap::new();
    for room in rooms {
        let kind = match room.class() {
            RoomClass::Explicit => None,
            RoomClass::User(_) => Some(RoomKind::User),
            RoomClass::Direct(..) => Some(RoomKind::Direct),
            RoomClass::Ephemeral | RoomClass::Malformed => continue,
        };
        names.insert(room.as_str(), kind);
    }
    names
}

/// A room under its lock, with where its next event goes.
#[derive(sqlx::FromRow)]
pub(crate) struct LockedRoom {
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) epoch: String,
    pub(crate) timeline: String,
    pub(crate) top: i64,
    pub(crate) bytes_total: i64,
}

/// The rooms that are locked, and those that somebody else holds.
pub(crate) struct LockedRooms {
    locked: HashMap<String, LockedRoom>,
    busy: BTreeSet<String>,
}

impl LockedRooms {
    pub(crate) fn get(&self, name: &str) -> Option<&LockedRoom> {
        self.locked.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut LockedRoom> {
        self.locked.get_mut(name)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &LockedRoom> {
        self.locked.values()
    }

    /// Tells whether a room was passed over.
    pub(crate) fn is_busy(&self, name: &str) -> bool {
        self.busy.contains(name)
    }
}

/// Returns the implicit rooms that have no row.
pub(crate) fn missing<'a>(names: &RoomNames<'a>, rooms: &LockedRooms) -> Vec<(&'a str, RoomKind)> {
    let has_row = |name: &str| rooms.locked.contains_key(name) || rooms.busy.contains(name);
    let absent = names.iter().filter(|(name, _)| !has_row(name));
    absent.filter_map(|(name, kind)| kind.map(|kind| (*name, kind))).collect()
}

/// Locks rooms in the order of their ids.
pub(crate) async fn lock(tx: &mut Tx, names: &RoomNames<'_>, held: Held) -> StoreResult<LockedRooms> {
    let wanted: Vec<&str> = names.keys().copied().collect();
    let query = match held {
        Held::Wait => sqlx::query_as(
            "-- rooms.lock_for_append
             SELECT id, name, epoch, left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline, top, bytes_total
             FROM switchboard.rooms WHERE name = ANY ($1) ORDER BY id FOR UPDATE",
        ),
        Held::PassOver => sqlx::query_as(
            "-- rooms.lock_free_for_append
             SELECT id, name, epoch, left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline, top, bytes_total
             FROM switchboard.rooms WHERE name = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED",
        ),
    };
    let rows: Vec<LockedRoom> = query.bind(wanted).fetch_all(&mut **tx).await.map_err(fault)?;
    let locked: HashMap<_, _> = rows.into_iter().map(|room| (room.name.clone(), room)).collect();
    let absent: Vec<&str> = names.keys().copied().filter(|name| !locked.contains_key(*name)).collect();
    let busy =
        if held == Held::PassOver && !absent.is_empty() { existing(tx, &absent).await? } else { BTreeSet::new() };
    Ok(LockedRooms { locked, busy })
}

/// Tells which of the rooms that could not be locked are there all the same.
async fn existing(tx: &mut Tx, names: &[&str]) -> StoreResult<BTreeSet<String>> {
    let names: Vec<String> = sqlx::query_scalar(
        "-- rooms.existing
         SELECT name FROM switchboard.rooms WHERE name = ANY ($1)",
    )
    .bind(names)
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(names.into_iter().collect())
}

/// Makes implicit rooms, in the order of their names.
pub(crate) async fn make(connection: &mut Link, missing: &[(&str, RoomKind)]) -> StoreResult<()> {
    let retention = Retention::default();
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
    .execute(connection)
    .await
    .map_err(fault)?;
    Ok(())
}
