//! Streams: append-only sequences of chunks. An append decides by the rule of the model and writes what it was
//! allowed to.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _, SqliteExecutor};
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

use crate::error::DbResult;
use crate::rows::{Stored, cursor, earlier, later, parsed_option, time, time_option};
use crate::runs::lease::next_fences;
use crate::writer::{Change, Lane};
use crate::{Database, context};

impl FromRow<'_, SqliteRow> for Stored<Stream> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        let (content, state): (&str, &str) = (row.try_get("content")?, row.try_get("state")?);
        let unknown = |text: &str| sqlx::Error::Decode(format!("unknown text {text:?}").into());
        Ok(Self(Stream {
            id: StreamId::from_uuid(row.try_get("id")?),
            content: StreamContent::from_stored(content).ok_or_else(|| unknown(content))?,
            user_id: parsed_option(row, "user_id")?,
            run_id: row.try_get::<Option<Uuid>, _>("run_id")?.map(RunId::from_uuid),
            state: StreamState::from_stored(state).ok_or_else(|| unknown(state))?,
            reason: row.try_get("reason")?,
            tail: row.try_get("tail")?,
            bytes: row.try_get("bytes")?,
            stop_requested_at: time_option(row, "stop_requested_at")?,
            created_at: time(row, "created_at")?,
            ended_at: time_option(row, "ended_at")?,
        }))
    }
}

/// A stream with its fence, which [`Stream`] leaves out.
#[derive(FromRow)]
struct ProducedRow {
    #[sqlx(flatten)]
    stream: Stored<Stream>,
    fence: i64,
}

async fn open(change: &mut Change, context: WriteContext, new: NewStream) -> DbResult<Written<OpenedStream>> {
    if let Some(replayed) = context::replay(change, &context).await? {
        return Ok(replayed);
    }
    let fence = match new.fence {
        Some(fence) => fence.0,
        None => next_fences(change, 1).await?,
    };
    let row: Option<ProducedRow> = sqlx::query_as(
        "-- streams.open
        INSERT INTO streams AS stream
            (id, content, user_id, run_id, owner, state, producer, fence, lease_until, created_at)
        VALUES (?1, ?2, ?3, ?4, ?5, 'open', ?6, ?7, ?8, ?9)
        ON CONFLICT (run_id) WHERE run_id IS NOT NULL DO UPDATE
            SET fence = excluded.fence, producer = excluded.producer, state = 'open', reason = NULL,
                stop_requested_at = NULL, ended_at = NULL, lease_until = excluded.lease_until
            WHERE stream.fence < excluded.fence
                OR (stream.fence = excluded.fence AND stream.state IN ('open', 'interrupted'))
        RETURNING *",
    )
    .bind(new.id.as_uuid())
    .bind(new.content.as_str())
    .bind(new.user_id.as_ref().map(UserId::as_str))
    .bind(new.run_id.map(RunId::as_uuid))
    .bind(context.actor.to_string())
    .bind(new.producer.as_str())
    .bind(fence)
    .bind(later(change.now, PRODUCER_LEASE))
    .bind(change.now)
    .fetch_optional(&mut change.connection)
    .await?;
    let ProducedRow { stream: Stored(stream), fence } = row.ok_or(StoreError::Fenced)?;
    if stream.id != new.id {
        // Who reads it may hold that it has ended.
        change.signal(SignalKind::StreamGrew, stream.id.to_string(), 0);
    } else if let Some(run) = new.run_id {
        change.signal(SignalKind::OutputBegan, run.to_string(), 0);
    }
    let opened = OpenedStream { stream, fence: Fence(fence) };
    context::complete_with(change, &context, opened.record()).await?;
    Ok(Written::Now(opened))
}

async fn append(change: &mut Change, appends: Vec<StreamAppend>) -> DbResult<Vec<StreamAppendOutcome>> {
    let mut outcomes = Vec::with_capacity(appends.len());
    for append in &appends {
        outcomes.push(append_one(change, append).await?);
    }
    Ok(outcomes)
}

async fn append_one(change: &mut Change, append: &StreamAppend) -> DbResult<StreamAppendOutcome> {
    let row: Option<ProducedRow> = sqlx::query_as(
        "-- streams.find_for_append
        SELECT * FROM streams WHERE id = ?",
    )
    .bind(append.stream.as_uuid())
    .fetch_optional(&mut change.connection)
    .await?;
    let Some(ProducedRow { stream: Stored(stream), fence }) = row else { return Ok(StreamAppendOutcome::NotFound) };
    let mut head = StreamHead { state: stream.state, fence: Fence(fence), tail: stream.tail, bytes: stream.bytes };
    match head.admit(append) {
        Admission::Gap => return Ok(StreamAppendOutcome::Gap(stream.tail)),
        Admission::Fenced => return Ok(StreamAppendOutcome::Fenced),
        Admission::TooLarge => return Ok(StreamAppendOutcome::TooLarge),
        Admission::Repeated => {}
        Admission::Taken(chunks) => {
            write(change, append, &head, (stream.tail + 1, chunks)).await?;
        }
    }
    Ok(StreamAppendOutcome::Appended { tail: head.tail, is_stopping: stream.stop_requested_at.is_some() })
}

/// Writes chunks and row, and a signal if the stream grew or ended.
async fn write(
    change: &mut Change,
    append: &StreamAppend,
    head: &StreamHead,
    (first, chunks): (i64, &[Vec<u8>]),
) -> DbResult<()> {
    for (seq, chunk) in (first..).zip(chunks) {
        sqlx::query(
            "-- streams.append_chunk
            INSERT INTO stream_chunks (stream_id, seq, data) VALUES (?, ?, ?)",
        )
        .bind(append.stream.as_uuid())
        .bind(seq)
        .bind(chunk)
        .execute(&mut change.connection)
        .await?;
    }
    let is_open = !head.state.is_terminal();
    sqlx::query(
        "-- streams.append
        UPDATE streams SET tail = ?2, bytes = ?3, state = ?4, reason = ?5, lease_until = ?6, ended_at = ?7
        WHERE id = ?1",
    )
    .bind(append.stream.as_uuid())
    .bind(head.tail)
    .bind(head.bytes)
    .bind(head.state.as_str())
    .bind(append.end.as_ref().and_then(|end| end.reason.as_deref()))
    .bind(is_open.then(|| later(change.now, PRODUCER_LEASE)))
    .bind((!is_open).then_some(change.now))
    .execute(&mut change.connection)
    .await?;
    if !chunks.is_empty() || append.end.is_some() {
        change.signal(SignalKind::StreamGrew, append.stream.to_string(), head.tail);
    }
    Ok(())
}

async fn stop(change: &mut Change, context: WriteContext, id: StreamId) -> DbResult<StopOutcome> {
    let stopped = sqlx::query(
        "-- streams.stop
        UPDATE streams SET stop_requested_at = COALESCE(stop_requested_at, ?2) WHERE id = ?1 AND state = 'open'",
    )
    .bind(id.as_uuid())
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    if stopped.rows_affected() == 0 {
        let is_there = find(&mut change.connection, id).await?.is_some();
        return Ok(if is_there { StopOutcome::Ended } else { StopOutcome::NotFound });
    }
    change.signal(SignalKind::StreamStopped, id.to_string(), 0);
    context::audit(change, &context).await?;
    Ok(StopOutcome::Requested)
}

async fn find(executor: impl SqliteExecutor<'_>, id: StreamId) -> DbResult<Option<Stream>> {
    let stream: Option<Stored<Stream>> = sqlx::query_as(
        "-- streams.find
        SELECT * FROM streams WHERE id = ?",
    )
    .bind(id.as_uuid())
    .fetch_optional(executor)
    .await?;
    Ok(stream.map(Stored::into_inner))
}

async fn find_of_run(database: &Database, run: RunId) -> DbResult<Option<Stream>> {
    let stream: Option<Stored<Stream>> = sqlx::query_as(
        "-- streams.find_of_run
        SELECT * FROM streams WHERE run_id = ?",
    )
    .bind(run.as_uuid())
    .fetch_optional(&database.readers)
    .await?;
    Ok(stream.map(Stored::into_inner))
}

async fn settled_runs(database: &Database, runs: &[RunId]) -> DbResult<Vec<RunId>> {
    let asked: Vec<Uuid> = runs.iter().map(|run| run.as_uuid()).collect();
    let settled: Vec<Uuid> = sqlx::query_scalar(
        "-- streams.settled_runs
        SELECT asked.id FROM (SELECT unhex(value, '-') AS id FROM json_each(?)) AS asked
        WHERE EXISTS (SELECT 1 FROM streams WHERE run_id = asked.id)
            OR NOT EXISTS (
                SELECT 1 FROM runs
                WHERE runs.id = asked.id AND state IN ('scheduled', 'queued', 'waiting', 'running'))",
    )
    .bind(serde_json::to_string(&asked)?)
    .fetch_all(&database.readers)
    .await?;
    Ok(settled.into_iter().map(RunId::from_uuid).collect())
}

async fn list(database: &Database, page: &PageRequest) -> DbResult<Page<Stream>> {
    let rows: Vec<Stored<Stream>> = sqlx::query_as(
        "-- streams.list
        SELECT * FROM streams WHERE id < ? ORDER BY id DESC LIMIT ?",
    )
    .bind(cursor(page, Uuid::max())?)
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(stream)| stream.id.to_string()).map(Stored::into_inner))
}

async fn read(database: &Database, id: StreamId, after: i64, limit: u32) -> DbResult<Option<StreamPage>> {
    // One snapshot for the row and its chunks, so that an ended stream is never without its last chunk.
    let mut snapshot = database.readers.begin().await?;
    let Some(stream) = find(&mut *snapshot, id).await? else { return Ok(None) };
    let rows: Vec<(i64, Vec<u8>)> = sqlx::query_as(
        "-- streams.read
        SELECT seq, data FROM (
            SELECT seq, data, SUM(LENGTH(data)) OVER (ORDER BY seq) - LENGTH(data) AS bytes_before
            FROM (SELECT seq, data FROM stream_chunks WHERE stream_id = ? AND seq > ? ORDER BY seq LIMIT ?)
        ) WHERE bytes_before < ? ORDER BY seq",
    )
    .bind(id.as_uuid())
    .bind(after)
    .bind(limit)
    .bind(STREAM_PAGE_BYTES as i64)
    .fetch_all(&mut *snapshot)
    .await?;
    snapshot.rollback().await?;
    let chunks = rows.into_iter().map(|(seq, data)| StreamChunk { seq, data }).collect();
    Ok(Some(StreamPage { stream, chunks }).filter(|page| page.goes_on_after(after)))
}

async fn interrupt(change: &mut Change, limit: u32) -> DbResult<u64> {
    let lost: Vec<(Uuid, i64)> = sqlx::query_as(
        "-- streams.interrupt
        UPDATE streams
        SET state = 'interrupted', reason = 'the producer was lost', ended_at = ?1, lease_until = NULL
        WHERE id IN (SELECT id FROM streams WHERE state = 'open' AND lease_until <= ?1 ORDER BY lease_until LIMIT ?2)
        RETURNING id, tail",
    )
    .bind(change.now)
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    for (id, tail) in &lost {
        change.signal(SignalKind::StreamGrew, id.to_string(), *tail);
    }
    Ok(lost.len() as u64)
}

/// Deletes a stream with its last chunks; a large one loses its first chunks before.
async fn sweep(change: &mut Change, age: Span, limit: u32) -> DbResult<u64> {
    let old: Vec<Uuid> = sqlx::query_scalar(
        "-- streams.old
        SELECT id FROM streams WHERE ended_at < ? ORDER BY ended_at LIMIT ?",
    )
    .bind(earlier(change.now, age))
    .bind(limit)
    .fetch_all(&mut change.connection)
    .await?;
    if old.is_empty() {
        return Ok(0);
    }
    let ids = serde_json::to_string(&old)?;
    let chunks = sqlx::query(
        "-- streams.sweep_chunks
        DELETE FROM stream_chunks WHERE rowid IN (
            SELECT rowid FROM stream_chunks WHERE stream_id IN (SELECT unhex(value, '-') FROM json_each(?))
            ORDER BY stream_id, seq LIMIT ?)",
    )
    .bind(&ids)
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    let streams = sqlx::query(
        "-- streams.sweep
        DELETE FROM streams WHERE id IN (SELECT unhex(value, '-') FROM json_each(?))
            AND NOT EXISTS (SELECT 1 FROM stream_chunks WHERE stream_id = streams.id)",
    )
    .bind(&ids)
    .execute(&mut change.connection)
    .await?;
    Ok(chunks.rows_affected() + streams.rows_affected())
}

#[async_trait]
impl StreamStore for Database {
    #[tracing::instrument(name = "db.streams.open", level = "debug", skip_all)]
    async fn open(&self, context: &WriteContext, stream: &NewStream) -> StoreResult<Written<OpenedStream>> {
        let (context, stream) = (context.clone(), stream.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(open(change, context, stream))).await
    }

    #[tracing::instrument(name = "db.streams.append", level = "debug", skip_all)]
    async fn append(&self, appends: &[StreamAppend]) -> StoreResult<Vec<StreamAppendOutcome>> {
        let appends = appends.to_vec();
        self.writer.write(Lane::Normal, |change| Box::pin(append(change, appends))).await
    }

    #[tracing::instrument(name = "db.streams.stop", level = "debug", skip_all)]
    async fn stop(&self, context: &WriteContext, stream: StreamId) -> StoreResult<StopOutcome> {
        let context = context.clone();
        self.writer.write(Lane::Normal, move |change| Box::pin(stop(change, context, stream))).await
    }

    #[tracing::instrument(name = "db.streams.find", level = "debug", skip_all)]
    async fn find(&self, stream: StreamId) -> StoreResult<Option<Stream>> {
        Ok(find(&self.readers, stream).await?)
    }

    #[tracing::instrument(name = "db.streams.find_of_run", level = "debug", skip_all)]
    async fn find_of_run(&self, run: RunId) -> StoreResult<Option<Stream>> {
        Ok(find_of_run(self, run).await?)
    }

    #[tracing::instrument(name = "db.streams.settled_runs", level = "debug", skip_all)]
    async fn settled_runs(&self, runs: &[RunId]) -> StoreResult<Vec<RunId>> {
        Ok(settled_runs(self, runs).await?)
    }

    #[tracing::instrument(name = "db.streams.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Stream>> {
        Ok(list(self, page).await?)
    }

    #[tracing::instrument(name = "db.streams.read", level = "debug", skip_all)]
    async fn read(&self, stream: StreamId, after: i64, limit: u32) -> StoreResult<Option<StreamPage>> {
        Ok(read(self, stream, after, limit).await?)
    }

    #[tracing::instrument(name = "db.streams.interrupt", level = "debug", skip_all)]
    async fn interrupt(&self, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(interrupt(change, limit))).await
    }

    #[tracing::instrument(name = "db.streams.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep(change, age, limit))).await
    }
}
