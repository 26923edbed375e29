//! The change feed: signals by transaction snapshot, so that nothing is skipped when commits interleave
//! and nothing stalls behind a long transaction.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::feed::{Agenda, FeedCursor, NextDue, Signal, SignalKind, Tick, TickRequest};
use switchboard_model::json_text::JsonText;
use switchboard_store_api::{FeedStore, HintReceiver, StoreError, StoreResult};
use uuid::Uuid;

use crate::connect::Database;
use crate::error::fault;
use crate::link::Link;

pub(crate) struct Feed(pub(crate) Arc<Database>);

#[async_trait]
impl FeedStore for Feed {
    #[tracing::instrument(name = "db.feed.tick", level = "debug", skip_all)]
    async fn tick(&self, previous: Option<&FeedCursor>, request: &TickRequest) -> StoreResult<Tick> {
        let mut row = self.read(previous, request).await?;
        if row.life.is_none() {
            // A new or a crashed database: its feed begins a new life, and the tick reads it.
            self.begin_life().await?;
            row = self.read(None, request).await?;
        }
        self.0.hints.count_replicas(row.replicas);
        let mut tick = Tick::try_from(row)?;
        let NextDue { task, scheduled_run, start_by, .. } = &mut tick.next;
        for at in [task, scheduled_run, start_by] {
            *at = self.0.schedule_clock.due(*at, tick.now);
        }
        Ok(tick)
    }

    #[tracing::instrument(name = "db.feed.agenda", level = "debug", skip_all)]
    async fn agenda(&self) -> StoreResult<Agenda> {
        let mut session = self.0.session().await?;
        let (next, active): (Option<Timestamp>, i64) = sqlx::query_as(
            "-- feed.agenda
             SELECT least((SELECT min(next_run_at) FROM switchboard.tasks
                           WHERE is_active AND deleted_at IS NULL AND parked IS NULL AND next_run_at IS NOT NULL),
                          (SELECT min(run_at) FROM switchboard.runs WHERE state = 'scheduled')),
                    (SELECT count(*) FROM switchboard.runs WHERE state IN ('queued', 'waiting', 'running'))",
        )
        .fetch_one(&mut *session)
        .await
        .map_err(fault)?;
        Ok(Agenda { next, active: active.unsigned_abs() })
    }

    #[tracing::instrument(name = "db.feed.emit", level = "debug", skip_all)]
    async fn emit(&self, signals: &[Signal]) -> StoreResult<()> {
        if signals.is_empty() {
            return Ok(());
        }
        let mut tx = self.0.begin().await?;
        insert(&mut tx, signals).await?;
        tx.has_signalled();
        tx.commit().await
    }

    #[tracing::instrument(name = "db.feed.broadcast", level = "debug", skip_all)]
    async fn broadcast(&self, signals: &[Signal]) -> StoreResult<()> {
        let left = self.0.hints.broadcast(signals);
        self.emit(&left).await
    }

    #[tracing::instrument(name = "db.feed.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.delete_read(limit).await
    }

    fn hints(&self) -> HintReceiver {
        self.0.hints.subscribe()
    }

    #[tracing::instrument(name = "db.feed.ping", level = "debug", skip_all)]
    async fn ping(&self) -> StoreResult<()> {
        let mut session = self.0.vital_session().await?;
        sqlx::query("SELECT 1").execute(&mut *session).await.map_err(fault)?;
        Ok(())
    }
}

/// Writes signals in the transaction of the change that they tell of.
pub(crate) async fn insert(connection: &mut Link, signals: &[Signal]) -> StoreResult<()> {
    let kinds: Vec<&str> = signals.iter().map(|signal| signal.kind.as_str()).collect();
    let keys: Vec<&str> = signals.iter().map(|signal| signal.key.as_str()).collect();
    let positions: Vec<i64> = signals.iter().map(|signal| signal.pos).collect();
    let bodies: Vec<Option<&str>> = signals.iter().map(|signal| signal.body.as_ref().map(JsonText::as_str)).collect();
    sqlx::query(
        "-- feed.insert
         INSERT INTO switchboard.signals (kind, key, pos, body)
         SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])",
    )
    .bind(kinds)
    .bind(keys)
    .bind(positions)
    .bind(bodies)
    .execute(connection)
    .await
    .map_err(fault)?;
    Ok(())
}

impl Feed {
    async fn read(&self, previous: Option<&FeedCursor>, request: &TickRequest) -> StoreResult<TickRow> {
        let previous = previous.and_then(|cursor| cursor.0.parse::<Cursor>().ok());
        let pools: Vec<&str> = request.pools.iter().map(|pool| pool.as_str()).collect();
        let mut session = self.0.feed_session().await?;
        // Signals of a transaction that is in progress now are invisible now, and are covered by the
        // next tick: their xid is in progress in, or above, the snapshot that this tick returns. The
        // bound at the top keeps out rows that a logical restore brought from another cluster. What a
        // deletion saw and the reader did not is lost to the reader: a resync.
        sqlx::query_as(
            "-- feed.tick
             WITH facts AS MATERIALIZED (
                 SELECT *, coalesce(
                            life = $1::uuid AND timeline = $2::text
                            AND pg_snapshot_xmax(horizon) <= pg_snapshot_xmax($3::text::pg_snapshot)
                            AND NOT EXISTS (
                                SELECT FROM pg_snapshot_xip($3::text::pg_snapshot) AS open (xid)
                                WHERE pg_visible_in_snapshot(open.xid, horizon)
                            ), false) AS goes_on
                 FROM (
                     SELECT clock_timestamp() AS now,
                            pg_current_snapshot() AS snapshot,
                            left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline,
                            (SELECT id FROM switchboard.feed_life) AS life,
                            (SELECT snapshot FROM switchboard.feed_horizon) AS horizon
                 ) AS server
             ),
             news AS MATERIALIZED (
                 SELECT id, kind, key, pos, body
                 FROM switchboard.signals
                 WHERE (SELECT goes_on FROM facts)
                   AND ((xid >= pg_snapshot_xmax($3::text::pg_snapshot)
                         AND xid < pg_snapshot_xmax(pg_current_snapshot()))
                        OR xid = ANY (ARRAY (SELECT pg_snapshot_xip($3::text::pg_snapshot))))
             ),
             folded AS (
                 SELECT min(id) AS id, kind, key, max(pos) AS pos, NULL AS body
                 FROM news WHERE body IS NULL GROUP BY kind, key
                 UNION ALL
                 SELECT id, kind, key, pos, body FROM news WHERE body IS NOT NULL
             ),
             packed AS (
                 SELECT coalesce(array_agg(kind ORDER BY id), '{}') AS kinds,
                        coalesce(array_agg(key ORDER BY id), '{}') AS keys,
                        coalesce(array_agg(pos ORDER BY id), '{}') AS positions,
                        coalesce(array_agg(body ORDER BY id), '{}') AS bodies
                 FROM folded
             )
             SELECT facts.now, facts.snapshot::text AS snapshot, facts.timeline, facts.life, facts.goes_on,
                    packed.kinds, packed.keys, packed.positions, packed.bodies,
                    (SELECT next_run_at FROM switchboard.tasks
                     WHERE is_active AND deleted_at IS NULL AND parked IS NULL AND next_run_at IS NOT NULL
                     ORDER BY next_run_at LIMIT 1) AS task,
                    (SELECT run_at FROM switchboard.runs WHERE state = 'scheduled'
                     ORDER BY run_at LIMIT 1) AS scheduled_run,
                    (SELECT start_by FROM switchboard.runs
                     WHERE start_by IS NOT NULL AND state IN ('scheduled', 'queued', 'waiting')
                     ORDER BY start_by LIMIT 1) AS start_by,
                    (SELECT lease_until FROM switchboard.runs WHERE state = 'running'
                     ORDER BY lease_until LIMIT 1) AS lease,
                    (SELECT min(expires_at) FROM switchboard.instances) AS instance,
                    (SELECT count(*) FROM switchboard.instances) AS replicas,
                    (SELECT leaves_at FROM switchboard.presence WHERE leaves_at IS NOT NULL
                     ORDER BY leaves_at LIMIT 1) AS presence,
                    least((SELECT offer_until FROM switchboard.calls
                           WHERE state = 'offered' AND offer_until IS NOT NULL ORDER BY offer_until LIMIT 1),
                          (SELECT deadline_at FROM switchboard.calls
                           WHERE state IN ('offered', 'claimed') ORDER BY deadline_at LIMIT 1)) AS call,
                    (SELECT lease_until FROM switchboard.streams WHERE state = 'open'
                     ORDER BY lease_until LIMIT 1) AS stream,
                    EXISTS (
                        SELECT FROM unnest($4::text[]) AS served (pool)
                        CROSS JOIN LATERAL (
                            SELECT FROM switchboard.runs
                            WHERE state = 'queued' AND pool = served.pool AND NOT is_pull LIMIT 1
                        ) AS ready
                    ) AS has_queued,
                    EXISTS (SELECT FROM switchboard.runs WHERE state = 'waiting' AND NOT is_paced)
                        OR EXISTS (SELECT FROM switchboard.runs WHERE state = 'waiting' AND is_paced) AS has_waiting,
                    EXISTS (SELECT FROM switchboard.outbox) AS has_outbox
             FROM facts CROSS JOIN packed",
        )
        .bind(previous.as_ref().map(|cursor| cursor.life))
        .bind(previous.as_ref().map(|cursor| cursor.timeline.as_str()))
        .bind(previous.as_ref().map(|cursor| cursor.snapshot.as_str()))
        .bind(pools)
        .fetch_one(&mut *session)
        .await
        .map_err(fault)
    }

    async fn begin_life(&self) -> StoreResult<()> {
        let mut session = self.0.session().await?;
        sqlx::query(
            "-- feed.begin_life
             INSERT INTO switchboard.feed_life (id) VALUES ($1) ON CONFLICT DO NOTHING",
        )
        .bind(Uuid::new_v4())
        .execute(&mut *session)
        .await
        .map_err(fault)?;
        session.commit().await
    }

    /// Deletes what was visible in a snapshot at least a minute old and leaves that snapshot as the
    /// horizon. The lock on the horizon makes deleters take turns, so that it never goes back.
    async fn delete_read(&self, limit: u32) -> StoreResult<u64> {
        let mut tx = self.0.begin().await?;
        // The lock alone would be a write.
        let has_work: bool = sqlx::query_scalar(
            "-- feed.has_signals
             SELECT EXISTS (SELECT FROM switchboard.signals)",
        )
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        if !has_work {
            return tx.undo(0).await;
        }
        let locked = sqlx::query(
            "-- feed.lock_horizon
             SELECT FROM switchboard.feed_horizon FOR UPDATE SKIP LOCKED",
        )
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        if locked.is_none() {
            return tx.undo(0).await;
        }
        let old: Option<(Timestamp, String)> = sqlx::query_as(
            "-- feed.old_snapshot
             SELECT at, snapshot::text FROM switchboard.feed_snapshots
             WHERE at <= clock_timestamp() - interval '60 seconds'
             ORDER BY at DESC LIMIT 1",
        )
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let deleted = match old {
            None => 0,
            Some((at, snapshot)) => sqlx::query(
                "-- feed.sweep
                 WITH forgotten AS (
                     DELETE FROM switchboard.feed_snapshots WHERE at < $1
                 ),
                 horizon AS (
                     UPDATE switchboard.feed_horizon SET snapshot = $2::text::pg_snapshot
                 )
                 DELETE FROM switchboard.signals
                 WHERE ctid = ANY (ARRAY (
                     SELECT ctid FROM switchboard.signals
                     WHERE xid < pg_snapshot_xmax($2::text::pg_snapshot)
                       AND pg_visible_in_snapshot(xid, $2::text::pg_snapshot)
                     ORDER BY xid LIMIT $3
                 ))",
            )
            .bind(at)
            .bind(snapshot)
            .bind(i64::from(limit))
            .execute(&mut *tx)
            .await
            .map_err(fault)?
            .rows_affected(),
        };
        sqlx::query(
            "-- feed.remember_snapshot
             INSERT INTO switchboard.feed_snapshots DEFAULT VALUES ON CONFLICT DO NOTHING",
        )
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        Ok(deleted)
    }
}

/// What a reader has seen: which life of the feed, on which timeline of the database, up to where.
struct Cursor {
    life: Uuid,
    timeline: String,
    snapshot: String,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}|{}|{}", self.life, self.timeline, self.snapshot)
    }
}

/// A text that is not a cursor of this backend.
struct NotACursor;

impl FromStr for Cursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let mut parts = text.split('|');
        let (Some(life), Some(timeline), Some(snapshot), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NotACursor);
        };
        let life = Uuid::parse_str(life).map_err(|_| NotACursor)?;
        Ok(Self { life, timeline: timeline.to_owned(), snapshot: snapshot.to_owned() })
    }
}

#[derive(sqlx::FromRow)]
struct TickRow {
    now: Timestamp,
    snapshot: String,
    timeline: String,
    life: Option<Uuid>,
    goes_on: bool,
    kinds: Vec<String>,
    keys: Vec<String>,
    positions: Vec<i64>,
    bodies: Vec<Option<String>>,
    task: Option<Timestamp>,
    scheduled_run: Option<Timestamp>,
    start_by: Option<Timestamp>,
    lease: Option<Timestamp>,
    instance: Option<Timestamp>,
    replicas: i64,
    presence: Option<Timestamp>,
    call: Option<Timestamp>,
    stream: Option<Timestamp>,
    has_queued: bool,
    has_waiting: bool,
    has_outbox: bool,
}

impl TryFrom<TickRow> for Tick {
    type Error = StoreError;

    fn try_from(row: TickRow) -> StoreResult<Self> {
        let life = row.life.ok_or_else(|| StoreError::corrupt("feed", "its life ended twice during one tick"))?;
        let mut signals = Vec::with_capacity(row.kinds.len());
        let columns = row.kinds.into_iter().zip(row.keys).zip(row.positions).zip(row.bodies);
        for (((kind, key), pos), body) in columns {
            // A newer replica may tell of things that this binary does not know.
            let Ok(kind) = kind.parse::<SignalKind>() else { continue };
            let body = body.map(JsonText::parse).transpose().map_err(|error| StoreError::corrupt("signal", error))?;
            signals.push(Signal { kind, key, pos, body });
        }
        let cursor = Cursor { life, timeline: row.timeline, snapshot: row.snapshot };
        Ok(Self {
            now: row.now,
            cursor: FeedCursor(cursor.to_string()),
            resync: !row.goes_on,
            signals,
            next: NextDue {
                task: row.task,
                scheduled_run: row.scheduled_run,
                start_by: row.start_by,
                lease: row.lease,
                instance: row.instance,
                presence: row.presence,
                call: row.call,
                stream: row.stream,
                has_queued: row.has_queued,
                has_waiting: row.has_waiting,
                has_outbox: row.has_outbox,
            },
        })
    }
}
