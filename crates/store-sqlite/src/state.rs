//! Shared state: the writer is alone, so it looks and then writes.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _};
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::Namespace;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::state::{StateEntry, StateHead, StateKey, StatePut, StateUsage};
use switchboard_model::wire::coordination::StateWritten;
use switchboard_store_api::{StateDeleteOutcome, StatePutOutcome, StateStore, StoreResult, WriteContext};

use crate::error::DbResult;
use crate::rows::{Stored, cursor, instant, json, later, parsed, time, time_option};
use crate::runs::lease::next_fences;
use crate::writer::{Change, Lane};
use crate::{Database, connect, context};

impl FromRow<'_, SqliteRow> for Stored<StateEntry> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(StateEntry {
            key: parsed(row, "key")?,
            version: row.try_get("version")?,
            value: json(row, "value")?,
            updated_at: time(row, "updated_at")?,
            expires_at: time_option(row, "expires_at")?,
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<StateHead> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(StateHead {
            key: parsed(row, "key")?,
            version: row.try_get("version")?,
            bytes: row.try_get("bytes")?,
            updated_at: time(row, "updated_at")?,
            expires_at: time_option(row, "expires_at")?,
        }))
    }
}

async fn get(database: &Database, key: &StateKey) -> DbResult<Option<StateEntry>> {
    let entry: Option<Stored<StateEntry>> = sqlx::query_as(
        "-- state.get
        SELECT * FROM state WHERE ns = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?)",
    )
    .bind(key.ns.as_str())
    .bind(key.key.as_str())
    .bind(connect::now())
    .fetch_optional(&database.readers)
    .await?;
    Ok(entry.map(Stored::into_inner))
}

async fn put(
    change: &mut Change,
    context: WriteContext,
    put: StatePut,
    quota: StateUsage,
) -> DbResult<StatePutOutcome> {
    let found = find(change, &put.key).await?;
    let version = found.as_ref().and_then(Found::version);
    if !put.expected.holds(version) {
        return Ok(StatePutOutcome::VersionMismatch(version));
    }
    let (mut held, mut replaced) = (usage(change, &put.key.ns).await?, found.map(|found| found.bytes));
    let mut next = held.with(replaced, put.bytes());
    if !held.may_become(next, quota) {
        held = held.without(purge(change, &put.key.ns).await?);
        replaced = replaced.filter(|_| version.is_some());
        next = held.with(replaced, put.bytes());
        if !held.may_become(next, quota) {
            // What is over is gone all the same.
            count(change, &put.key.ns, held).await?;
            return Ok(StatePutOutcome::Full(held));
        }
    }
    let version = next_fences(change, 1).await?;
    let expires_at = put.ttl.map(|ttl| later(change.now, ttl));
    sqlx::query(
        "-- state.put
        INSERT OR REPLACE INTO state (ns, key, version, value, bytes, updated_at, expires_at)
        VALUES (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(put.key.ns.as_str())
    .bind(put.key.key.as_str())
    .bind(version)
    .bind(put.value.as_str())
    .bind(put.bytes())
    .bind(change.now)
    .bind(expires_at)
    .execute(&mut change.connection)
    .await?;
    count(change, &put.key.ns, next).await?;
    change.signal(SignalKind::StateChanged, put.key.to_string(), version);
    context::audit(change, &context).await?;
    let (updated_at, expires_at) = (instant(change.now)?, expires_at.map(instant).transpose()?);
    Ok(StatePutOutcome::Written(StateWritten { version, updated_at, expires_at }))
}

async fn delete(
    change: &mut Change,
    context: WriteContext,
    key: StateKey,
    expected: Option<i64>,
) -> DbResult<StateDeleteOutcome> {
    let found = find(change, &key).await?;
    let version = found.as_ref().and_then(Found::version);
    let (Some(found), Some(version)) = (found, version) else { return Ok(StateDeleteOutcome::NotFound) };
    if expected.is_some_and(|expected| expected != version) {
        return Ok(StateDeleteOutcome::VersionMismatch(version));
    }
    sqlx::query(
        "-- state.delete
        DELETE FROM state WHERE ns = ? AND key = ?",
    )
    .bind(key.ns.as_str())
    .bind(key.key.as_str())
    .execute(&mut change.connection)
    .await?;
    let held = usage(change, &key.ns).await?.without(StateUsage { keys: 1, bytes: found.bytes });
    count(change, &key.ns, held).await?;
    let deleted = next_fences(change, 1).await?;
    change.signal(SignalKind::StateChanged, key.to_string(), deleted);
    context::audit(change, &context).await?;
    Ok(StateDeleteOutcome::Deleted(deleted))
}

/// A row of a value, which may be over.
#[derive(FromRow)]
struct Found {
    version: i64,
    bytes: i64,
    is_over: bool,
}

impl Found {
    /// Returns the version that is there.
    fn version(&self) -> Option<i64> {
        (!self.is_over).then_some(self.version)
    }
}

async fn find(change: &mut Change, key: &StateKey) -> DbResult<Option<Found>> {
    let found = sqlx::query_as(
        "-- state.look
        SELECT version, bytes, COALESCE(expires_at <= ?, 0) AS is_over FROM state WHERE ns = ? AND key = ?",
    )
    .bind(change.now)
    .bind(key.ns.as_str())
    .bind(key.key.as_str())
    .fetch_optional(&mut change.connection)
    .await?;
    Ok(found)
}

async fn usage(change: &mut Change, ns: &Namespace) -> DbResult<StateUsage> {
    let held: Option<(i64, i64)> = sqlx::query_as(
        "-- state.usage
        SELECT keys, bytes FROM state_spaces WHERE ns = ?",
    )
    .bind(ns.as_str())
    .fetch_optional(&mut change.connection)
    .await?;
    let (keys, bytes) = held.unwrap_or_default();
    Ok(StateUsage { keys, bytes })
}

async fn count(change: &mut Change, ns: &Namespace, held: StateUsage) -> DbResult<()> {
    sqlx::query(
        "-- state.count
        INSERT OR REPLACE INTO state_spaces (ns, keys, bytes) VALUES (?, ?, ?)",
    )
    .bind(ns.as_str())
    .bind(held.keys)
    .bind(held.bytes)
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

/// Deletes what is over in a namespace, and returns how much that was.
async fn purge(change: &mut Change, ns: &Namespace) -> DbResult<StateUsage> {
    let gone: Vec<i64> = sqlx::query_scalar(
        "-- state.purge
        DELETE FROM state WHERE ns = ? AND expires_at <= ? RETURNING bytes",
    )
    .bind(ns.as_str())
    .bind(change.now)
    .fetch_all(&mut change.connection)
    .await?;
    Ok(StateUsage { keys: gone.len() as i64, bytes: gone.iter().sum() })
}

async fn list(database: &Database, ns: &Namespace, prefix: &str, page: &PageRequest) -> DbResult<Page<StateHead>> {
    // Keys consist of characters below U+007F, so the end of a prefix is known.
    let rows: Vec<Stored<StateHead>> = sqlx::query_as(
        "-- state.list
        SELECT key, version, bytes, updated_at, expires_at FROM state
        WHERE ns = ? AND key >= ? AND key < ? AND key > ? AND (expires_at IS NULL OR expires_at > ?)
        ORDER BY key LIMIT ?",
    )
    .bind(ns.as_str())
    .bind(prefix)
    .bind(format!("{prefix}\u{7f}"))
    .bind(cursor(page, String::new())?)
    .bind(connect::now())
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(head)| head.key.to_string()).map(Stored::into_inner))
}

async fn sweep(change: &mut Change, limit: u32) -> DbResult<u64> {
    let expired: Vec<(String, i64)> = sqlx::query_as(
        "-- state.sweep
        DELETE FROM state WHERE rowid IN (SELECT rowid FROM state WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)
        RETURNING ns, bytes",
    )
    .bind(change.now)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    for (ns, bytes) in &expired {
        sqlx::query(
            "-- state.count_expired
            UPDATE state_spaces SET keys = keys - 1, bytes = bytes - ? WHERE ns = ?",
        )
        .bind(bytes)
        .bind(ns)
        .execute(&mut change.connection)
        .await?;
    }
    let empty = sqlx::query(
        "-- state.sweep_spaces
        DELETE FROM state_spaces WHERE ns IN (SELECT ns FROM state_spaces WHERE keys = 0 LIMIT ?)",
    )
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    Ok(expired.len() as u64 + empty.rows_affected())
}

#[async_trait]
impl StateStore for Database {
    #[tracing::instrument(name = "db.state.get", level = "debug", skip_all)]
    async fn get(&self, key: &StateKey) -> StoreResult<Option<StateEntry>> {
        Ok(get(self, key).await?)
    }

    #[tracing::instrument(name = "db.state.put", level = "debug", skip_all)]
    async fn put(&self, context: &WriteContext, new: &StatePut, quota: StateUsage) -> StoreResult<StatePutOutcome> {
        let (context, new) = (context.clone(), new.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(put(change, context, new, quota))).await
    }

    #[tracing::instrument(name = "db.state.delete", level = "debug", skip_all)]
    async fn delete(
        &self,
        context: &WriteContext,
        key: &StateKey,
        version: Option<i64>,
    ) -> StoreResult<StateDeleteOutcome> {
        let (context, key) = (context.clone(), key.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(delete(change, context, key, version))).await
    }

    #[tracing::instrument(name = "db.state.list", level = "debug", skip_all)]
    async fn list(&self, ns: &Namespace, prefix: &str, page: &PageRequest) -> StoreResult<Page<StateHead>> {
        Ok(list(self, ns, prefix, page).await?)
    }

    #[tracing::instrument(name = "db.state.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep(change, limit))).await
    }
}
