//! What the database itself writes down: each change of the state of a run, in the transaction that makes it.
//!
//! A run changes to and from `running` under the lock on its permit key, so the order of the entries of one key is the
//! order in which its permits were taken and given back.

use std::future::Future;
use std::time::Duration;

use sqlx::postgres::PgPool;
use switchboard_model::Timestamp;
use switchboard_model::ids::{Fence, RunId};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::fleet::{LONG, PATIENCE};
use crate::ledger::PermitMove;
use crate::must::Must as _;

/// How long to pause after a vain question.
const PAUSE: Duration = Duration::from_millis(50);

/// The states that nothing follows.
const TERMINAL: [&str; 4] = ["succeeded", "failed", "cancelled", "dead"];

const OPEN: &str = "
    CREATE TABLE public.chaos_book (
        seq       bigserial   PRIMARY KEY,
        run_id    uuid        NOT NULL,
        key       text,
        key_max   integer,
        was       text        NOT NULL,
        state     text        NOT NULL,
        fence     bigint      NOT NULL,
        leased_by text,
        at        timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE FUNCTION public.chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.chaos_book (run_id, key, key_max, was, state, fence, leased_by)
        VALUES (NEW.id, NEW.key, NEW.key_max, OLD.state, NEW.state, NEW.fence, NEW.leased_by);
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER chaos_note AFTER UPDATE ON switchboard.runs FOR EACH ROW
        WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION public.chaos_note();";

/// Runs that a replica took along when it was killed.
#[derive(Clone, Debug)]
pub(crate) struct Orphans {
    killed_at: Timestamp,
    runs: Vec<(Uuid, i64)>,
}

/// How a run of a killed replica was executed again.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    /// The time from the kill until then.
    pub(crate) time: Duration,
    /// The permit key; such a run may have to wait for others that have its permit now.
    pub(crate) key: Option<String>,
    /// What happened to it in between.
    pub(crate) history: String,
}

/// One change of state.
#[derive(Debug, sqlx::FromRow)]
struct Entry {
    run_id: Uuid,
    key: Option<String>,
    key_max: Option<i32>,
    was: String,
    state: String,
    fence: i64,
    at: Timestamp,
}

/// Everything that was written down, in order.
#[derive(Debug)]
pub(crate) struct Book(Vec<Entry>);

/// Lets the database begin to write.
pub(crate) async fn open(pool: &PgPool) {
    sqlx::raw_sql(OPEN).execute(pool).await.map(drop).must("opening the book");
}

/// Repeats a question to a database that may be down.
pub(crate) async fn insist<T, F>(what: &str, ask: impl Fn() -> F + Send) -> T
where
    F: Future<Output = Result<T, sqlx::Error>> + Send,
{
    let give_up = Instant::now() + LONG;
    loop {
        match timeout(PATIENCE, ask()).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(error)) if Instant::now() >= give_up => panic!("{what}: {error}"),
            // It is down, or stands still.
            Ok(Err(_)) | Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Looks up which runs a replica held that was killed just now; its name begins so.
pub(crate) async fn orphans(pool: &PgPool, prefix: &str) -> Orphans {
    let held = insist("the runs of a killed replica", || {
        sqlx::query_as::<_, (Uuid, i64, Timestamp)>(
            "SELECT id, fence, clock_timestamp() FROM switchboard.runs
             WHERE state = 'running' AND starts_with(leased_by, $1)",
        )
        .bind(prefix)
        .fetch_all(pool)
    })
    .await;
    let killed_at = held.first().map_or(Timestamp::UNIX_EPOCH, |(_, _, at)| *at);
    Orphans { killed_at, runs: held.into_iter().map(|(id, fence, _)| (id, fence)).collect() }
}

impl Book {
    pub(crate) async fn read(pool: &PgPool) -> Self {
        Self(
            insist("the book", || {
                sqlx::query_as("SELECT run_id, key, key_max, was, state, fence, at FROM public.chaos_book ORDER BY seq")
                    .fetch_all(pool)
            })
            .await,
        )
    }

    /// Returns every terminal write that was accepted.
    pub(crate) fn endings(&self) -> Vec<(RunId, Fence)> {
        let ends = self.0.iter().filter(|entry| TERMINAL.contains(&entry.state.as_str()));
        ends.map(|entry| (RunId::from_uuid(entry.run_id), Fence(entry.fence))).collect()
    }

    /// Returns how the permits of keys went to and fro.
    pub(crate) fn permits(&self) -> Vec<PermitMove> {
        let moves = self.0.iter().filter(|entry| entry.state == "running" || entry.was == "running");
        moves
            .filter_map(|entry| {
                Some(PermitMove {
                    key: entry.key.clone()?,
                    max: usize::try_from(entry.key_max?).ok()?,
                    run: RunId::from_uuid(entry.run_id),
                    is_taken: entry.state == "running",
                })
            })
            .collect()
    }

    /// Returns how the runs of killed replicas were executed again. Those whose ending was under way when their replica was
    /// killed are not.
    pub(crate) fn recoveries(&self, killed: &[Orphans]) -> Vec<Recovery> {
        let again = |killed_at: Timestamp, run: Uuid, fence: i64| {
            let mut history = String::new();
            for entry in self.0.iter().filter(|entry| entry.run_id == run && entry.at > killed_at) {
                let time = (entry.at - killed_at).to_std().ok()?;
                history += &format!(", {} after {:.1} s", entry.state, time.as_secs_f64());
                if entry.state == "running" && entry.fence > fence {
                    return Some(Recovery { time, key: entry.key.clone(), history });
                }
            }
            None
        };
        let lost =
            killed.iter().flat_map(|orphans| orphans.runs.iter().map(|(run, fence)| (orphans.killed_at, run, fence)));
        lost.filter_map(|(killed_at, run, fence)| again(killed_at, *run, *fence)).collect()
    }
}
