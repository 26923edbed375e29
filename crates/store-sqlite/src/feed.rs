//! The change feed in memory: the writer publishes after each commit, ticks read from there on.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use sqlx::FromRow;
use switchboard_model::feed::{Agenda, FeedCursor, ListenerMode, NextDue, Signal, Tick, TickRequest};
use switchboard_store_api::{FeedStore, HintReceiver, HintSender, StoreResult, hint_channel};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::instant;
use crate::writer::Lane;
use crate::{Database, connect};

/// The most signals that are kept; a reader that is further behind is told to resynchronise.
const RING_SIGNALS: usize = 65_536;
/// The most bytes of bodies that are kept, for the same reason.
const RING_BYTES: usize = 64 * 1024 * 1024;

/// The newest signals of this process.
pub(crate) struct Feed {
    /// Tells cursors of this process from those of an earlier one.
    nonce: String,
    ring: Mutex<Ring>,
    hints: HintSender,
}

#[derive(Default)]
struct Ring {
    signals: VecDeque<Signal>,
    /// How many signals were evicted: the number of the oldest that is kept.
    first: u64,
    /// The bytes of the bodies that are kept.
    bytes: usize,
}

impl Feed {
    pub(crate) fn new() -> Self {
        let (hints, _) = hint_channel(ListenerMode::InProcess);
        Self { nonce: Uuid::new_v4().simple().to_string(), ring: Mutex::default(), hints }
    }

    /// Adds signals in order and raises a hint if there are any; the oldest give way.
    pub(crate) fn publish(&self, signals: impl ExactSizeIterator<Item = Signal>) {
        if signals.len() == 0 {
            return;
        }
        let mut ring = self.ring();
        for signal in signals {
            ring.push(signal);
        }
        drop(ring);
        self.hints.raise();
    }

    /// Returns where the feed stands and what came after `previous`; `None` if that is not known.
    pub(crate) fn since(&self, previous: Option<&FeedCursor>) -> (FeedCursor, Option<Vec<Signal>>) {
        let number = previous.and_then(|FeedCursor(text)| {
            let (nonce, number) = text.split_once(':')?;
            if nonce == self.nonce { number.parse::<u64>().ok() } else { None }
        });
        let ring = self.ring();
        let top = ring.first + ring.signals.len() as u64;
        let signals = number.filter(|number| (ring.first..=top).contains(number)).map(|number| {
            // What is kept was counted by a usize, so the difference fits.
            let seen = usize::try_from(number - ring.first).unwrap_or(usize::MAX);
            fold(ring.signals.range(seen..))
        });
        (FeedCursor(format!("{}:{top}", self.nonce)), signals)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn push(&mut self, signal: Signal) {
        self.bytes += body_bytes(&signal);
        self.signals.push_back(signal);
        while self.signals.len() > RING_SIGNALS || self.bytes > RING_BYTES {
            let Some(oldest) = self.signals.pop_front() else { break };
            self.bytes -= body_bytes(&oldest);
            self.first += 1;
        }
    }
}

fn body_bytes(signal: &Signal) -> usize {
    signal.body.as_ref().map_or(0, |body| body.as_str().len())
}

/// Keeps the highest position per kind and key, and every signal with a body.
fn fold<'s>(signals: impl Iterator<Item = &'s Signal>) -> Vec<Signal> {
    let mut folded: Vec<Signal> = Vec::new();
    let mut places = HashMap::new();
    for signal in signals {
        if signal.body.is_some() {
            folded.push(signal.clone());
            continue;
        }
        let place = *places.entry((signal.kind, signal.key.as_str())).or_insert(folded.len());
        match folded.get_mut(place) {
            Some(known) => known.pos = known.pos.max(signal.pos),
            None => folded.push(signal.clone()),
        }
    }
    folded
}

#[derive(FromRow)]
struct NextRow {
    task: Option<i64>,
    scheduled_run: Option<i64>,
    start_by: Option<i64>,
    lease: Option<i64>,
    instance: Option<i64>,
    presence: Option<i64>,
    call: Option<i64>,
    stream: Option<i64>,
    has_queued: bool,
    has_waiting: bool,
}

async fn next_due(database: &Database, request: &TickRequest) -> DbResult<NextDue> {
    let row: NextRow = sqlx::query_as(
        "-- feed.next_due
        SELECT (SELECT MIN(next_run_at) FROM tasks
                WHERE is_active AND deleted_at IS NULL AND parked IS NULL AND next_run_at IS NOT NULL) AS task,
            (SELECT MIN(run_at) FROM runs WHERE state = 'scheduled') AS scheduled_run,
            (SELECT MIN(start_by) FROM runs
             WHERE start_by IS NOT NULL AND state IN ('scheduled', 'queued', 'waiting')) AS start_by,
            (SELECT MIN(lease_until) FROM runs WHERE state = 'running') AS lease,
            (SELECT MIN(expires_at) FROM instances) AS instance,
            (SELECT MIN(leaves_at) FROM presence WHERE leaves_at IS NOT NULL) AS presence,
            (SELECT MIN(at) FROM (
                SELECT MIN(offer_until) AS at FROM calls WHERE state = 'offered' AND offer_until IS NOT NULL
                UNION ALL SELECT MIN(deadline_at) FROM calls WHERE state IN ('offered', 'claimed'))) AS call,
            (SELECT MIN(lease_until) FROM streams WHERE state = 'open') AS stream,
            EXISTS (SELECT 1 FROM json_each(?) AS pools CROSS JOIN runs
                    WHERE runs.pool = pools.value AND runs.is_pull = 0 AND runs.state = 'queued') AS has_queued,
            EXISTS (SELECT 1 FROM runs WHERE state = 'waiting' AND is_paced = 0)
                OR EXISTS (SELECT 1 FROM runs WHERE state = 'waiting' AND is_paced = 1) AS has_waiting",
    )
    .bind(serde_json::to_string(&request.pools)?)
    .fetch_one(&database.readers)
    .await?;
    let now = instant(connect::now())?;
    let due = |at: Option<i64>| DbResult::Ok(database.schedule_clock.due(at.map(instant).transpose()?, now));
    Ok(NextDue {
        task: due(row.task)?,
        scheduled_run: due(row.scheduled_run)?,
        start_by: due(row.start_by)?,
        lease: row.lease.map(instant).transpose()?,
        instance: row.instance.map(instant).transpose()?,
        presence: row.presence.map(instant).transpose()?,
        call: row.call.map(instant).transpose()?,
        stream: row.stream.map(instant).transpose()?,
        has_queued: row.has_queued,
        has_waiting: row.has_waiting,
        has_outbox: false,
    })
}

async fn agenda(database: &Database) -> DbResult<Agenda> {
    let (task, scheduled_run, active): (Option<i64>, Option<i64>, i64) = sqlx::query_as(
        "-- feed.agenda
        SELECT (SELECT MIN(next_run_at) FROM tasks
                WHERE is_active AND deleted_at IS NULL AND parked IS NULL AND next_run_at IS NOT NULL),
            (SELECT MIN(run_at) FROM runs WHERE state = 'scheduled'),
            (SELECT COUNT(*) FROM runs INDEXED BY runs_active_by_task
             WHERE state IN ('scheduled', 'queued', 'waiting', 'running') AND state <> 'scheduled')",
    )
    .fetch_one(&database.readers)
    .await?;
    let next = [task, scheduled_run].into_iter().flatten().min().map(instant).transpose()?;
    Ok(Agenda { next, active: active.unsigned_abs() })
}

#[async_trait]
impl FeedStore for Database {
    #[tracing::instrument(name = "db.feed.tick", level = "debug", skip_all)]
    async fn tick(&self, previous: Option<&FeedCursor>, request: &TickRequest) -> StoreResult<Tick> {
        // Signals first: what commits in between is in the statement, and signalled to the next tick.
        let (cursor, signals) = self.feed.since(previous);
        let next = next_due(self, request).await?;
        Ok(Tick {
            now: instant(connect::now())?,
            cursor,
            resync: signals.is_none(),
            signals: signals.unwrap_or_default(),
            next,
        })
    }

    #[tracing::instrument(name = "db.feed.agenda", level = "debug", skip_all)]
    async fn agenda(&self) -> StoreResult<Agenda> {
        Ok(agenda(self).await?)
    }

    #[tracing::instrument(name = "db.feed.emit", level = "debug", skip_all)]
    async fn emit(&self, signals: &[Signal]) -> StoreResult<()> {
        self.feed.publish(signals.iter().cloned());
        Ok(())
    }

    /// Finds nothing to do, because the oldest signals give way by themselves.
    #[tracing::instrument(name = "db.feed.sweep", level = "debug", skip_all)]
    async fn sweep(&self, _limit: u32) -> StoreResult<u64> {
        Ok(0)
    }

    fn hints(&self) -> HintReceiver {
        self.feed.hints.subscribe()
    }

    /// Asks the writer, without which nothing goes on; an empty transaction costs no write.
    #[tracing::instrument(name = "db.feed.ping", level = "debug", skip_all)]
    async fn ping(&self) -> StoreResult<()> {
        self.writer.write(Lane::Urgent, |_| Box::pin(async { Ok(()) })).await
    }
}

#[cfg(test)]
mod tests {
    use switchboard_model::feed::SignalKind;
    use switchboard_model::json_text::JsonText;

    use super::*;

    fn signal(kind: SignalKind, key: &str, pos: i64) -> Signal {
        Signal { kind, key: key.to_owned(), pos, body: None }
    }

    #[test]
    fn signals_fold_to_the_highest_position_and_bodies_keep_their_order() {
        let feed = Feed::new();
        let (start, _) = feed.since(None);
        let spoken =
            |text: &str| Signal { body: Some(JsonText::parse(text).unwrap()), ..signal(SignalKind::Ephemeral, "a", 0) };
        let given = [
            signal(SignalKind::RoomEvents, "a", 2),
            spoken("1"),
            signal(SignalKind::RoomEvents, "b", 1),
            signal(SignalKind::RoomEvents, "a", 1),
            spoken("1"),
        ];
        feed.publish(given.clone().into_iter());
        let (end, signals) = feed.since(Some(&start));
        assert_eq!(signals.unwrap(), [&given[0], &given[1], &given[2], &given[4]].map(Clone::clone));
        assert_eq!(feed.since(Some(&end)).1, Some(vec![]));
    }

    #[test]
    fn a_reader_too_far_behind_or_of_another_process_must_resynchronise() {
        let feed = Feed::new();
        let (start, _) = feed.since(None);
        feed.publish(
            (0..RING_SIGNALS as i64)
                .map(|pos| signal(SignalKind::RoomEvents, "a", pos))
                .collect::<Vec<_>>()
                .into_iter(),
        );
        assert!(feed.since(Some(&start)).1.is_some());
        feed.publish(std::iter::once(signal(SignalKind::RoomEvents, "a", 0)));
        assert!(feed.since(Some(&start)).1.is_none());
        assert!(Feed::new().since(Some(&start)).1.is_none());
        assert!(feed.since(Some(&FeedCursor("nonsense".to_owned()))).1.is_none());
    }

    #[test]
    fn large_bodies_give_way_before_the_ring_is_full() {
        let feed = Feed::new();
        let (start, _) = feed.since(None);
        let body = JsonText::parse(format!("\"{}\"", "x".repeat(RING_BYTES / 2))).unwrap();
        let large = Signal { body: Some(body), ..signal(SignalKind::Ephemeral, "a", 0) };
        feed.publish(std::iter::once(large.clone()));
        assert!(feed.since(Some(&start)).1.is_some());
        feed.publish(std::iter::once(large));
        assert!(feed.since(Some(&start)).1.is_none());
    }
}
