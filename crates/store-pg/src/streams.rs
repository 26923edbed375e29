//! Streams: append-only sequences of chunks. An append locks its rows, decides by the rule of the model, and writes
//! what it was allowed to in one statement for all of them.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{FromRow as _, Row as _};
use switchboard_model::Timestamp;
use switchboard_model::feed::SignalKind;
use switchboard_model::identity::UserId;
use switchboard_model::ids::{Fence, RunId, StreamId};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_model::stream::{
    NewStream, PRODUCER_LEASE, STREAM_PAGE_BYTES, Stream, StreamAppend, StreamChunk, StreamContent, StreamPage,
    StreamState,
};
use switchboard_model::stream_rule::{Admission, StreamHead};
use switchboard_store_api::{
    OpenedStream, StopOutcome, StoreError, StoreResult, StreamAppendOutcome, StreamStore, WriteContext, Written,
};
use uuid::Uuid;

use crate::connect::{Database, Tx};
use crate::context::{audit, claim, complete};
use crate::error::fault;
use crate::rows::{after_id, parsed, storable};

pub(crate) struct Streams(pub(crate) Arc<Database>);

#[derive(sqlx::FromRow)]
struct StreamRow {
    id: Uuid,
    content: String,
    user_id: Option<String>,
    run_id: Option<Uuid>,
    state: String,
    reason: Option<String>,
    tail: i64,
    bytes: i64,
    stop_requested_at: Option<Timestamp>,
    created_at: Timestamp,
    ended_at: Option<Timestamp>,
}

impl TryFrom<StreamRow> for Stream {
    type Error = StoreError;

    fn try_from(row: StreamRow) -> StoreResult<Self> {
        let unknown = |text: &str| StoreError::corrupt("stream", format!("unknown text {text:?}"));
        Ok(Self {
            id: StreamId::from_uuid(row.id),
            content: StreamContent::from_stored(&row.content).ok_or_else(|| unknown(&row.content))?,
            user_id: row.user_id.as_deref().map(|id| parsed::<UserId>("stream", id)).transpose()?,
            run_id: row.run_id.map(RunId::from_uuid),
            state: state(&row.state)?,
            reason: row.reason,
            tail: row.tail,
            bytes: row.bytes,
            stop_requested_at: row.stop_requested_at,
            created_at: row.created_at,
            ended_at: row.ended_at,
        })
    }
}

fn state(text: &str) -> StoreResult<StreamState> {
    StreamState::from_stored(text).ok_or_else(|| StoreError::corrupt("stream", format!("unknown state {text:?}")))
}

#[async_trait]
impl StreamStore for Streams {
    #[tracing::instrument(name = "db.streams.open", level = "debug", skip_all)]
    async fn open(&self, context: &WriteContext, stream: &NewStream) -> StoreResult<Written<OpenedStream>> {
        let mut tx = self.0.begin().await?;
        if let Some(before) = claim(&mut tx, context, stream.id.as_uuid()).await? {
            return tx.undo(before).await;
        }
        let row: Option<PgRow> = sqlx::query(
            "-- streams.open
             INSERT INTO switchboard.streams AS stream
                 (id, content, user_id, run_id, owner, state, producer, fence, lease_until, created_at)
             VALUES ($1, $2, $3, $4, $5, 'open', $6, coalesce($7, nextval('switchboard.fences')),
                     clock_timestamp() + $8 * interval '1 millisecond', clock_timestamp())
             ON CONFLICT (run_id) WHERE run_id IS NOT NULL DO UPDATE
                 SET fence = excluded.fence, producer = excluded.producer, state = 'open', reason = NULL,
                     stop_requested_at = NULL, ended_at = NULL,
                     lease_until = clock_timestamp() + $8 * interval '1 millisecond'
                 WHERE stream.fence < excluded.fence
                    OR (stream.fence = excluded.fence AND stream.state IN ('open', 'interrupted'))
             RETURNING id, content, user_id, run_id, state, reason, tail, bytes, stop_requested_at, created_at, ended_at,
                       fence",
        )
        .bind(stream.id.as_uuid())
        .bind(stream.content.as_str())
        .bind(stream.user_id.as_ref().map(UserId::as_str))
        .bind(stream.run_id.map(RunId::as_uuid))
        .bind(context.actor.to_string())
        .bind(storable(stream.producer.as_str()))
        .bind(stream.fence.map(|fence| fence.0))
        .bind(PRODUCER_LEASE.as_millis_i64())
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(row) = row else { return tx.undo(()).await.and(Err(StoreError::Fenced)) };
        let fence = Fence(row.try_get("fence").map_err(fault)?);
        let opened = OpenedStream { stream: Stream::try_from(StreamRow::from_row(&row).map_err(fault)?)?, fence };
        complete(&mut tx, context, &opened.record()).await?;
        audit(&mut tx, context).await?;
        if opened.stream.id != stream.id {
            // Who reads it may hold that it has ended.
            tx.signal(SignalKind::StreamGrew, &opened.stream.id);
        } else if let Some(run) = stream.run_id {
            tx.signal(SignalKind::OutputBegan, &run);
        }
        tx.commit().await?;
        Ok(Written::Now(opened))
    }

    #[tracing::instrument(name = "db.streams.append", level = "debug", skip_all)]
    async fn append(&self, appends: &[StreamAppend]) -> StoreResult<Vec<StreamAppendOutcome>> {
        if appends.is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.0.begin().await?;
        let mut locked = lock(&mut tx, appends).await?;
        let mut batch = Batch::default();
        let outcomes = appends.iter().map(|append| batch.place(append, &mut locked)).collect();
        if batch.touched.is_empty() {
            return tx.undo(outcomes).await;
        }
        batch.write(&mut tx, &locked).await?;
        tx.commit().await?;
        Ok(outcomes)
    }

    #[tracing::instrument(name = "db.streams.stop", level = "debug", skip_all)]
    async fn stop(&self, context: &WriteContext, stream: StreamId) -> StoreResult<StopOutcome> {
        let mut tx = self.0.begin().await?;
        let found: Option<String> = sqlx::query_scalar(
            "-- streams.lock
             SELECT state FROM switchboard.streams WHERE id = $1 FOR UPDATE",
        )
        .bind(stream.as_uuid())
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(found) = found else { return tx.undo(StopOutcome::NotFound).await };
        if state(&found)?.is_terminal() {
            return tx.undo(StopOutcome::Ended).await;
        }
        sqlx::query(
            "-- streams.stop
             UPDATE switchboard.streams SET stop_requested_at = coalesce(stop_requested_at, clock_timestamp())
             WHERE id = $1",
        )
        .bind(stream.as_uuid())
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        audit(&mut tx, context).await?;
        tx.signal(SignalKind::StreamStopped, &stream);
        tx.commit().await?;
        Ok(StopOutcome::Requested)
    }

    #[tracing::instrument(name = "db.streams.find", level = "debug", skip_all)]
    async fn find(&self, stream: StreamId) -> StoreResult<Option<Stream>> {
        let mut session = self.0.session().await?;
        let row: Option<StreamRow> = sqlx::query_as(
            "-- streams.find
             SELECT id, content, user_id, run_id, state, reason, tail, bytes, stop_requested_at, created_at, ended_at
             FROM switchboard.streams WHERE id = $1",
        )
        .bind(stream.as_uuid())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(Stream::try_from).transpose()
    }

    #[tracing::instrument(name = "db.streams.find_of_run", level = "debug", skip_all)]
    async fn find_of_run(&self, run: RunId) -> StoreResult<Option<Stream>> {
        let mut session = self.0.session().await?;
        let row: Option<StreamRow> = sqlx::query_as(
            "-- streams.find_of_run
             SELECT id, content, user_id, run_id, state, reason, tail, bytes, stop_requested_at, created_at, ended_at
             FROM switchboard.streams WHERE run_id = $1",
        )
        .bind(run.as_uuid())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(Stream::try_from).transpose()
    }

    #[tracing::instrument(name = "db.streams.settled_runs", level = "debug", skip_all)]
    async fn settled_runs(&self, runs: &[RunId]) -> StoreResult<Vec<RunId>> {
        let mut session = self.0.session().await?;
        let settled: Vec<Uuid> = sqlx::query_scalar(
            "-- streams.settled_runs
             SELECT asked.id FROM unnest($1::uuid[]) AS asked (id)
             WHERE EXISTS (SELECT FROM switchboard.streams WHERE run_id = asked.id)
                OR NOT EXISTS (
                    SELECT FROM switchboard.runs
                    WHERE id = asked.id AND state IN ('scheduled', 'queued', 'waiting', 'running')
                )",
        )
        .bind(runs.iter().map(|run| run.as_uuid()).collect::<Vec<_>>())
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        Ok(settled.into_iter().map(RunId::from_uuid).collect())
    }

    #[tracing::instrument(name = "db.streams.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Stream>> {
        let after = after_id(page)?;
        let mut session = self.0.session().await?;
        let rows: Vec<StreamRow> = sqlx::query_as(
            "-- streams.list
             SELECT id, content, user_id, run_id, state, reason, tail, bytes, stop_requested_at, created_at, ended_at
             FROM switchboard.streams WHERE ($1 IS NULL OR id < $1) ORDER BY id DESC LIMIT $2",
        )
        .bind(after)
        .bind(i64::from(page.limit) + 1)
        .persistent(false)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let streams = rows.into_iter().map(Stream::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(streams, page.limit, |stream| stream.id.to_string()))
    }

    /// Reads the row and its chunks in one statement, hence in one snapshot.
    #[tracing::instrument(name = "db.streams.read", level = "debug", skip_all)]
    async fn read(&self, stream: StreamId, after: i64, limit: u32) -> StoreResult<Option<StreamPage>> {
        let mut session = self.0.session().await?;
        let rows: Vec<PgRow> = sqlx::query(
            "-- streams.read
             SELECT id, content, user_id, run_id, state, reason, tail, bytes, stop_requested_at, created_at, ended_at,
                    page.seq, page.data
             FROM switchboard.streams AS stream
             LEFT JOIN LATERAL (
                 SELECT chunk.seq, chunk.data, sum(length(chunk.data)) OVER (ORDER BY chunk.seq) - length(chunk.data) AS bytes_before
                 FROM (
                     SELECT seq, data FROM switchboard.stream_chunks
                     WHERE stream_id = stream.id AND seq > $2
                     ORDER BY seq LIMIT $3
                 ) AS chunk
             ) AS page ON page.bytes_before < $4
             WHERE stream.id = $1
             ORDER BY page.seq",
        )
        .bind(stream.as_uuid())
        .bind(after)
        .bind(i64::from(limit))
        .bind(STREAM_PAGE_BYTES as i64)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let Some(first) = rows.first() else { return Ok(None) };
        let stream = Stream::try_from(StreamRow::from_row(first).map_err(fault)?)?;
        let mut chunks = Vec::with_capacity(rows.len());
        for row in &rows {
            // A stream without chunks on this page has one row without a chunk.
            if let Some(seq) = row.try_get::<Option<i64>, _>("seq").map_err(fault)? {
                chunks.push(StreamChunk { seq, data: row.try_get("data").map_err(fault)? });
            }
        }
        Ok(Some(StreamPage { stream, chunks }).filter(|page| page.goes_on_after(after)))
    }

    #[tracing::instrument(name = "db.streams.interrupt", level = "debug", skip_all)]
    async fn interrupt(&self, limit: u32) -> StoreResult<u64> {
        let mut tx = self.0.begin().await?;
        let interrupted: i64 = sqlx::query_scalar(
            "-- streams.interrupt
             WITH lost AS MATERIALIZED (
                 SELECT id FROM switchboard.streams
                 WHERE state = 'open' AND lease_until <= statement_timestamp()
                 ORDER BY lease_until LIMIT $1 FOR UPDATE SKIP LOCKED
             ),
             ended AS (
                 UPDATE switchboard.streams AS stream
                 SET state = 'interrupted', reason = 'the producer was lost', ended_at = clock_timestamp(),
                     lease_until = NULL
                 FROM lost WHERE stream.id = lost.id
                 RETURNING stream.id, stream.tail
             ),
             signals AS (
                 INSERT INTO switchboard.signals (kind, key, pos) SELECT 'stream_grew', id::text, tail FROM ended
             )
             SELECT count(*) FROM ended",
        )
        .bind(i64::from(limit))
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        if interrupted == 0 {
            return tx.undo(0).await;
        }
        tx.has_signalled();
        tx.commit().await?;
        Ok(interrupted.unsigned_abs())
    }

    /// Deletes a stream with its last chunks; a large one loses its first chunks before.
    #[tracing::instrument(name = "db.streams.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        let mut tx = self.0.begin().await?;
        let old: Vec<Uuid> = sqlx::query_scalar(
            "-- streams.lock_old
             SELECT id FROM switchboard.streams
             WHERE ended_at < statement_timestamp() - $1 * interval '1 millisecond'
             ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED",
        )
        .bind(age.as_millis_i64())
        .bind(i64::from(limit))
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        if old.is_empty() {
            return tx.undo(0).await;
        }
        let chunks = sqlx::query(
            "-- streams.sweep_chunks
             DELETE FROM switchboard.stream_chunks WHERE ctid = ANY (ARRAY (
                 SELECT ctid FROM switchboard.stream_chunks WHERE stream_id = ANY ($1)
                 ORDER BY stream_id, seq LIMIT $2
             ))",
        )
        .bind(&old)
        .bind(i64::from(limit))
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        let streams = sqlx::query(
            "-- streams.sweep
             DELETE FROM switchboard.streams AS stream
             WHERE id = ANY ($1) AND NOT EXISTS (
                 SELECT FROM switchboard.stream_chunks AS chunk WHERE chunk.stream_id = stream.id
             )",
        )
        .bind(&old)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        tx.commit().await?;
        Ok(chunks.rows_affected() + streams.rows_affected())
    }
}

/// A stream under its lock.
struct Locked {
    head: StreamHead,
    is_stopping: bool,
    /// How it ends in this batch, if it does.
    reason: Option<String>,
}

#[derive(sqlx::FromRow)]
struct LockedRow {
    id: Uuid,
    state: String,
    fence: i64,
    tail: i64,
    bytes: i64,
    is_stopping: bool,
}

/// Locks the streams of a batch in the order of their ids, waiting for each.
async fn lock(tx: &mut Tx, appends: &[StreamAppend]) -> StoreResult<HashMap<Uuid, Locked>> {
    let rows: Vec<LockedRow> = sqlx::query_as(
        "-- streams.lock_for_append
         SELECT id, state, fence, tail, bytes, stop_requested_at IS NOT NULL AS is_stopping
         FROM switchboard.streams WHERE id = ANY ($1) ORDER BY id FOR UPDATE",
    )
    .bind(appends.iter().map(|append| append.stream.as_uuid()).collect::<Vec<_>>())
    .fetch_all(&mut **tx)
    .await
    .map_err(fault)?;
    let locked = |row: LockedRow| {
        let head = StreamHead { state: state(&row.state)?, fence: Fence(row.fence), tail: row.tail, bytes: row.bytes };
        Ok((row.id, Locked { head, is_stopping: row.is_stopping, reason: None }))
    };
    rows.into_iter().map(locked).collect()
}

/// What a batch adds.
#[derive(Default)]
struct Batch<'a> {
    ids: Vec<Uuid>,
    seqs: Vec<i64>,
    chunks: Vec<&'a [u8]>,
    /// Which streams are written to, and whether that is more than a prolonged lease.
    touched: HashMap<Uuid, bool>,
}

impl<'a> Batch<'a> {
    fn place(&mut self, append: &'a StreamAppend, locked: &mut HashMap<Uuid, Locked>) -> StreamAppendOutcome {
        let id = append.stream.as_uuid();
        let Some(stream) = locked.get_mut(&id) else { return StreamAppendOutcome::NotFound };
        let tail = stream.head.tail;
        match stream.head.admit(append) {
            Admission::Gap => return StreamAppendOutcome::Gap(tail),
            Admission::Fenced => return StreamAppendOutcome::Fenced,
            Admission::TooLarge => return StreamAppendOutcome::TooLarge,
            Admission::Repeated => {}
            Admission::Taken(chunks) => {
                for (seq, chunk) in (tail + 1..).zip(chunks) {
                    self.ids.push(id);
                    self.seqs.push(seq);
                    self.chunks.push(chunk);
                }
                if let Some(end) = &append.end {
                    stream.reason = end.reason.as_deref().map(|reason| storable(reason).into_owned());
                }
                *self.touched.entry(id).or_default() |= !chunks.is_empty() || append.end.is_some();
            }
        }
        StreamAppendOutcome::Appended { tail: stream.head.tail, is_stopping: stream.is_stopping }
    }

    /// Writes chunks, rows and one signal for each stream that grew or ended.
    async fn write(&self, tx: &mut Tx, locked: &HashMap<Uuid, Locked>) -> StoreResult<()> {
        let touched: Vec<(&Uuid, &Locked)> = locked.iter().filter(|(id, _)| self.touched.contains_key(id)).collect();
        sqlx::query(
            "-- streams.append
             WITH chunks AS (
                 INSERT INTO switchboard.stream_chunks (stream_id, seq, data)
                 SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bytea[])
             ),
             touched AS (
                 UPDATE switchboard.streams AS stream
                 SET tail = given.tail, bytes = given.bytes, state = given.state, reason = given.reason,
                     ended_at = CASE WHEN given.state <> 'open' THEN clock_timestamp() END,
                     lease_until = CASE WHEN given.state = 'open'
                                        THEN clock_timestamp() + $10 * interval '1 millisecond' END
                 FROM unnest($4::uuid[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::boolean[])
                     AS given (id, tail, bytes, state, reason, has_grown)
                 WHERE stream.id = given.id
                 RETURNING stream.id, stream.tail, given.has_grown
             )
             INSERT INTO switchboard.signals (kind, key, pos)
             SELECT 'stream_grew', id::text, tail FROM touched WHERE has_grown",
        )
        .bind(&self.ids)
        .bind(&self.seqs)
        .bind(&self.chunks)
        .bind(touched.iter().map(|(id, _)| **id).collect::<Vec<_>>())
        .bind(touched.iter().map(|(_, stream)| stream.head.tail).collect::<Vec<_>>())
        .bind(touched.iter().map(|(_, stream)| stream.head.bytes).collect::<Vec<_>>())
        .bind(touched.iter().map(|(_, stream)| stream.head.state.as_str()).collect::<Vec<_>>())
        .bind(touched.iter().map(|(_, stream)| stream.reason.as_deref()).collect::<Vec<_>>())
        .bind(touched.iter().map(|(id, _)| self.touched[id]).collect::<Vec<_>>())
        .bind(PRODUCER_LEASE.as_millis_i64())
        .execute(&mut **tx)
        .await
        .map_err(fault)?;
        if self.touched.values().any(|has_grown| *has_grown) {
            tx.has_signalled();
        }
        Ok(())
    }
}
