//! Shared state. Whoever writes in a namespace locks its row first, so that writers of one namespace take turns: what is
//! expected, the quota and the order of versions are decided under that lock.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::identity::{ClientKey, Namespace};
use switchboard_model::json_text::JsonText;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_model::state::{StateEntry, StateHead, StateKey, StatePut, StateUsage};
use switchboard_model::wire::coordination::StateWritten;
use switchboard_store_api::{StateDeleteOutcome, StatePutOutcome, StateStore, StoreError, StoreResult, WriteContext};

use crate::connect::{Database, Tx};
use crate::context::audit;
use crate::error::fault;
use crate::rows::{after_name, parsed};

pub(crate) struct State(pub(crate) Arc<Database>);

#[derive(sqlx::FromRow)]
struct EntryRow {
    key: String,
    version: i64,
    value: String,
    updated_at: Timestamp,
    expires_at: Option<Timestamp>,
}

impl TryFrom<EntryRow> for StateEntry {
    type Error = StoreError;

    fn try_from(row: EntryRow) -> StoreResult<Self> {
        Ok(Self {
            key: parsed("state", &row.key)?,
            version: row.version,
            value: JsonText::parse(row.value).map_err(|error| StoreError::corrupt("state", error))?,
            updated_at: row.updated_at,
            expires_at: row.expires_at,
        })
    }
}

#[derive(sqlx::FromRow)]
struct HeadRow {
    key: String,
    version: i64,
    bytes: i64,
    updated_at: Timestamp,
    expires_at: Option<Timestamp>,
}

impl TryFrom<HeadRow> for StateHead {
    type Error = StoreError;

    fn try_from(row: HeadRow) -> StoreResult<Self> {
        let HeadRow { version, bytes, updated_at, expires_at, .. } = row;
        Ok(Self { key: parsed("state", &row.key)?, version, bytes, updated_at, expires_at })
    }
}

#[async_trait]
impl StateStore for State {
    #[tracing::instrument(name = "db.state.get", level = "debug", skip_all)]
    async fn get(&self, key: &StateKey) -> StoreResult<Option<StateEntry>> {
        let mut session = self.0.session().await?;
        let row: Option<EntryRow> = sqlx::query_as(
            "-- state.get
             SELECT key, version, value, updated_at, expires_at FROM switchboard.state
             WHERE ns = $1 AND key = $2 AND (expires_at IS NULL OR expires_at > clock_timestamp())",
        )
        .bind(key.ns.as_str())
        .bind(key.key.as_str())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(StateEntry::try_from).transpose()
    }

    #[tracing::instrument(name = "db.state.put", level = "debug", skip_all)]
    async fn put(&self, context: &WriteContext, put: &StatePut, quota: StateUsage) -> StoreResult<StatePutOutcome> {
        let mut tx = self.0.begin().await?;
        // A row that is there is locked by the conflict, and not written.
        sqlx::query(
            "-- state.lock_or_make_space
             INSERT INTO switchboard.state_spaces (ns, keys, bytes) VALUES ($1, 0, 0)
             ON CONFLICT (ns) DO UPDATE SET keys = excluded.keys WHERE false",
        )
        .bind(put.key.ns.as_str())
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(found) = look(&mut tx, &put.key).await? else {
            return Err(StoreError::corrupt("state", "its namespace is locked and not there"));
        };
        if !put.expected.holds(found.version()) {
            return tx.undo(StatePutOutcome::VersionMismatch(found.version())).await;
        }
        let (mut held, mut replaced) = (found.usage(), found.entry_bytes);
        let mut next = held.with(replaced, put.bytes());
        if !held.may_become(next, quota) {
            held = held.without(purge(&mut tx, &put.key.ns).await?);
            replaced = replaced.filter(|_| found.version().is_some());
            next = held.with(replaced, put.bytes());
            if !held.may_become(next, quota) {
                return tx.undo(StatePutOutcome::Full(held)).await;
            }
        }
        let written = write(&mut tx, put, next).await?;
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(StatePutOutcome::Written(written))
    }

    #[tracing::instrument(name = "db.state.delete", level = "debug", skip_all)]
    async fn delete(
        &self,
        context: &WriteContext,
        key: &StateKey,
        version: Option<i64>,
    ) -> StoreResult<StateDeleteOutcome> {
        let mut tx = self.0.begin().await?;
        sqlx::query(
            "-- state.lock_space
             SELECT FROM switchboard.state_spaces WHERE ns = $1 FOR UPDATE",
        )
        .bind(key.ns.as_str())
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        let found = look(&mut tx, key).await?.and_then(|found| found.version());
        let Some(found) = found else { return tx.undo(StateDeleteOutcome::NotFound).await };
        if version.is_some_and(|version| version != found) {
            return tx.undo(StateDeleteOutcome::VersionMismatch(found)).await;
        }
        let deleted: i64 = sqlx::query_scalar(
            "-- state.delete
             WITH deleted AS (
                 DELETE FROM switchboard.state WHERE ns = $1 AND key = $2 RETURNING bytes
             ),
             counted AS (
                 UPDATE switchboard.state_spaces AS space
                 SET keys = space.keys - 1, bytes = space.bytes - deleted.bytes
                 FROM deleted WHERE space.ns = $1
             )
             INSERT INTO switchboard.signals (kind, key, pos)
             SELECT 'state_changed', $3, nextval('switchboard.fences') FROM deleted RETURNING pos",
        )
        .bind(key.ns.as_str())
        .bind(key.key.as_str())
        .bind(key.to_string())
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        audit(&mut tx, context).await?;
        tx.has_signalled();
        tx.commit().await?;
        Ok(StateDeleteOutcome::Deleted(deleted))
    }

    #[tracing::instrument(name = "db.state.list", level = "debug", skip_all)]
    async fn list(&self, ns: &Namespace, prefix: &str, page: &PageRequest) -> StoreResult<Page<StateHead>> {
        let after: Option<ClientKey> = after_name(page)?;
        let mut session = self.0.session().await?;
        // Keys consist of characters below U+007F, so the end of a prefix is known.
        let rows: Vec<HeadRow> = sqlx::query_as(
            "-- state.list
             SELECT key, version, bytes, updated_at, expires_at FROM switchboard.state
             WHERE ns = $1 AND key >= $2 AND key < $3 AND key > $4
               AND (expires_at IS NULL OR expires_at > statement_timestamp())
             ORDER BY key LIMIT $5",
        )
        .bind(ns.as_str())
        .bind(prefix)
        .bind(format!("{prefix}\u{7f}"))
        .bind(after.as_ref().map_or("", ClientKey::as_str))
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let heads = rows.into_iter().map(StateHead::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(heads, page.limit, |head| head.key.to_string()))
    }

    /// Takes the namespaces that nobody writes in now; the others have their turn with the next sweep.
    #[tracing::instrument(name = "db.state.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        let mut tx = self.0.begin().await?;
        let spaces: Vec<String> = sqlx::query_scalar(
            "-- state.lock_expired_spaces
             SELECT ns FROM switchboard.state_spaces
             WHERE ns IN (
                     SELECT ns FROM switchboard.state WHERE expires_at <= statement_timestamp()
                     ORDER BY expires_at LIMIT $1
                 )
             ORDER BY ns FOR UPDATE SKIP LOCKED",
        )
        .bind(i64::from(limit))
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        let expired = if spaces.is_empty() { 0 } else { expire(&mut tx, &spaces, limit).await? };
        let empty = sqlx::query(
            "-- state.sweep_spaces
             WITH empty AS MATERIALIZED (
                 SELECT ns FROM switchboard.state_spaces WHERE keys = 0 LIMIT $1 FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.state_spaces AS space USING empty WHERE space.ns = empty.ns",
        )
        .bind(i64::from(limit))
        .execute(&mut *tx)
        .await
        .map_err(fault)?
        .rows_affected();
        if expired + empty == 0 {
            return tx.undo(0).await;
        }
        tx.commit().await?;
        Ok(expired + empty)
    }
}

/// What is found under the lock of a namespace.
#[derive(sqlx::FromRow)]
struct Found {
    keys: i64,
    bytes: i64,
    entry_version: Option<i64>,
    /// That of a row whose time is over too, which still counts.
    entry_bytes: Option<i64>,
    is_over: bool,
}

impl Found {
    /// Returns the version that is there.
    fn version(&self) -> Option<i64> {
        self.entry_version.filter(|_| !self.is_over)
    }

    const fn usage(&self) -> StateUsage {
        StateUsage { keys: self.keys, bytes: self.bytes }
    }
}

/// Looks at a namespace that is locked, and at one of its keys; `None` when there is no such namespace.
async fn look(tx: &mut Tx, key: &StateKey) -> StoreResult<Option<Found>> {
    sqlx::query_as(
        "-- state.look
         SELECT space.keys, space.bytes, entry.version AS entry_version, entry.bytes AS entry_bytes,
                coalesce(entry.expires_at <= clock_timestamp(), false) AS is_over
         FROM switchboard.state_spaces AS space
         LEFT JOIN switchboard.state AS entry ON entry.ns = space.ns AND entry.key = $2
         WHERE space.ns = $1",
    )
    .bind(key.ns.as_str())
    .bind(key.key.as_str())
    .fetch_optional(&mut **tx)
    .await
    .map_err(fault)
}

/// Deletes what is over in a namespace that is locked, and returns how much that was.
async fn purge(tx: &mut Tx, ns: &Namespace) -> StoreResult<StateUsage> {
    let (keys, bytes): (i64, i64) = sqlx::query_as(
        "-- state.purge
         WITH expired AS (
             DELETE FROM switchboard.state WHERE ns = $1 AND expires_at <= clock_timestamp() RETURNING bytes
         )
         SELECT count(*), coalesce(sum(bytes), 0)::bigint FROM expired",
    )
    .bind(ns.as_str())
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(StateUsage { keys, bytes })
}

/// Writes a value, what its namespace holds then, and the signal.
async fn write(tx: &mut Tx, put: &StatePut, next: StateUsage) -> StoreResult<StateWritten> {
    let (version, updated_at, expires_at) = sqlx::query_as(
        "-- state.put
         WITH written AS (
             INSERT INTO switchboard.state AS entry (ns, key, version, value, bytes, updated_at, expires_at)
             VALUES ($1, $2, nextval('switchboard.fences'), $3, $4, clock_timestamp(),
                     clock_timestamp() + $5 * interval '1 millisecond')
             ON CONFLICT (ns, key) DO UPDATE
                 SET version = excluded.version, value = excluded.value, bytes = excluded.bytes,
                     updated_at = excluded.updated_at, expires_at = excluded.expires_at
             RETURNING entry.version, entry.updated_at, entry.expires_at
         ),
         counted AS (
             UPDATE switchboard.state_spaces SET keys = $6, bytes = $7 WHERE ns = $1
         ),
         signals AS (
             INSERT INTO switchboard.signals (kind, key, pos) SELECT 'state_changed', $8, version FROM written
         )
         SELECT version, updated_at, expires_at FROM written",
    )
    .bind(put.key.ns.as_str())
    .bind(put.key.key.as_str())
    .bind(put.value.as_str())
    .bind(put.bytes())
    .bind(put.ttl.map(Span::as_millis_i64))
    .bind(next.keys)
    .bind(next.bytes)
    .bind(put.key.to_string())
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)?;
    tx.has_signalled();
    Ok(StateWritten { version, updated_at, expires_at })
}

/// Deletes values whose time is over in namespaces that are locked.
async fn expire(tx: &mut Tx, spaces: &[String], limit: u32) -> StoreResult<u64> {
    let expired: i64 = sqlx::query_scalar(
        "-- state.sweep
         WITH expired AS (
             DELETE FROM switchboard.state WHERE ctid = ANY (ARRAY (
                 SELECT ctid FROM switchboard.state WHERE ns = ANY ($1) AND expires_at <= statement_timestamp()
                 ORDER BY expires_at LIMIT $2
             ))
             RETURNING ns, bytes
         ),
         gone AS (
             SELECT ns, count(*) AS keys, sum(bytes)::bigint AS bytes FROM expired GROUP BY ns
         ),
         counted AS (
             UPDATE switchboard.state_spaces AS space
             SET keys = space.keys - gone.keys, bytes = space.bytes - gone.bytes
             FROM gone WHERE space.ns = gone.ns
         )
         SELECT count(*) FROM expired",
    )
    .bind(spaces)
    .bind(i64::from(limit))
    .fetch_one(&mut **tx)
    .await
    .map_err(fault)?;
    Ok(expired.unsigned_abs())
}
