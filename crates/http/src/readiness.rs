//! Whether the replica takes traffic. Knows nothing of HTTP.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchboard_events::FeedStatus;
use switchboard_store_api::FeedStore;
use tokio::time::{Instant, sleep};

use crate::{Api, Lifecycle};

/// How long the database may take to answer a probe.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// How long an answer of the database is good for.
const CACHED_FOR: Duration = Duration::from_secs(1);

/// How long a request may wait before the database is asked whether it lives.
const UNSUSPICIOUS: Duration = Duration::from_secs(1);

/// How many pings in a row must fail before requests are given up.
const FAILURES_TO_GIVE_UP: u32 = 2;

/// How many pings in a row must fail before the database counts as gone.
const FAILURES_TO_UNREADY: u32 = 3;

/// How old the last read of the change feed may be. It reads through the pool, the ping does not: a pool
/// that gives nothing shows here.
const FEED_AGE: Duration = Duration::from_secs(30);

/// One check and whether it passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// What is checked.
    pub(crate) name: &'static str,
    /// Whether it is as it should be.
    pub(crate) is_ok: bool,
    /// What a failure means.
    pub(crate) fault: &'static str,
}

/// Finds out whether the replica is ready. Its state is one instant and one count.
pub(crate) struct Readiness {
    lifecycle: Lifecycle,
    database: Arc<dyn FeedStore>,
    /// Whether the database is another process, which can fall silent.
    is_remote: bool,
    feed: FeedStatus,
    pings: Mutex<Pings>,
}

/// The latest pings of the database.
struct Pings {
    /// When the latest one started.
    started: Option<Instant>,
    /// How many have failed in a row; before the first answer as many as it takes.
    failures: u32,
}

impl Readiness {
    pub(crate) fn new(api: &Api) -> Self {
        Self {
            lifecycle: api.lifecycle.clone(),
            database: Arc::clone(&api.stores.feed),
            is_remote: api.stores.capabilities.allows_replicas,
            feed: api.feed.clone(),
            pings: Mutex::new(Pings { started: None, failures: FAILURES_TO_UNREADY }),
        }
    }

    /// Returns every check with its result.
    pub(crate) async fn checks(&self) -> [Check; 4] {
        let is_reachable = self.is_database_reachable().await;
        let check = |name, is_ok, fault| Check { name, is_ok, fault };
        [
            check("started", self.lifecycle.is_started(), "the process is still starting"),
            check("not_draining", !self.lifecycle.is_draining(), "the process is being stopped"),
            check("database", is_reachable, "the database does not answer"),
            check("change_feed", self.feed.age() < FEED_AGE, "the change feed has not been read for long"),
        ]
    }

    /// Returns once a database beyond a network gives no answer to pings, of which the first is sent after a while.
    pub(crate) async fn silence(&self) {
        loop {
            sleep(UNSUSPICIOUS).await;
            if self.is_remote && self.failed_pings().await >= FAILURES_TO_GIVE_UP {
                return;
            }
        }
    }

    async fn is_database_reachable(&self) -> bool {
        self.failed_pings().await < FAILURES_TO_UNREADY
    }

    /// Returns how many pings have failed in a row. Pings the database unless the latest ping is fresh; whoever asks
    /// meanwhile gets the result before.
    async fn failed_pings(&self) -> u32 {
        let is_due = {
            let mut pings = self.pings.lock();
            let is_due = pings.started.is_none_or(|started| started.elapsed() >= CACHED_FOR);
            if is_due {
                pings.started = Some(Instant::now());
            }
            is_due
        };
        if is_due {
            let answer = tokio::time::timeout(PING_TIMEOUT, self.database.ping()).await;
            let mut pings = self.pings.lock();
            pings.failures = if matches!(answer, Ok(Ok(()))) { 0 } else { pings.failures.saturating_add(1) };
        }
        self.pings.lock().failures
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;
    use switchboard_events::Feed;
    use switchboard_model::feed::{Agenda, FeedCursor, ListenerMode, Signal, Tick, TickRequest};
    use switchboard_store_api::{HintReceiver, StoreError, StoreResult, hint_channel};

    use super::*;

    /// A database that answers while `is_up` is not 0 and counts the questions.
    #[derive(Default)]
    struct Database {
        is_up: AtomicU32,
        pings: AtomicU32,
    }

    #[async_trait]
    impl FeedStore for Database {
        async fn tick(&self, _: Option<&FeedCursor>, _: &TickRequest) -> StoreResult<Tick> {
            Err(StoreError::Fenced)
        }

        async fn agenda(&self) -> StoreResult<Agenda> {
            Err(StoreError::Fenced)
        }

        async fn emit(&self, _: &[Signal]) -> StoreResult<()> {
            Ok(())
        }

        async fn broadcast(&self, _: &[Signal]) -> StoreResult<()> {
            Ok(())
        }

        async fn sweep(&self, _: u32) -> StoreResult<u64> {
            Ok(0)
        }

        fn hints(&self) -> HintReceiver {
            hint_channel(ListenerMode::InProcess).1
        }

        async fn ping(&self) -> StoreResult<()> {
            self.pings.fetch_add(1, Ordering::SeqCst);
            if self.is_up.load(Ordering::SeqCst) == 0 {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    }

    fn readiness(database: &Arc<Database>) -> Readiness {
        let database: Arc<dyn FeedStore> = database.clone();
        let lifecycle = Lifecycle::new();
        lifecycle.set_ready();
        Readiness {
            lifecycle,
            feed: Feed::new(database.clone(), TickRequest::default(), Vec::new()).status(),
            database,
            is_remote: true,
            pings: Mutex::new(Pings { started: None, failures: FAILURES_TO_UNREADY }),
        }
    }

    async fn faults(readiness: &Readiness) -> Vec<&'static str> {
        readiness.checks().await.into_iter().filter(|check| !check.is_ok).map(|check| check.name).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn three_failures_in_a_row_make_it_unready_and_one_success_ready() {
        let database = Arc::new(Database::default());
        let readiness = readiness(&database);
        assert_eq!(faults(&readiness).await, ["database"], "nothing is known before the first answer");
        database.is_up.store(1, Ordering::SeqCst);
        tokio::time::advance(CACHED_FOR).await;
        assert_eq!(faults(&readiness).await, [""; 0]);
        database.is_up.store(0, Ordering::SeqCst);
        for expected in [&[][..], &[], &["database"]] {
            tokio::time::advance(CACHED_FOR).await;
            assert_eq!(faults(&readiness).await, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_good_for_a_second() {
        let database = Arc::new(Database::default());
        database.is_up.store(1, Ordering::SeqCst);
        let readiness = readiness(&database);
        for _ in 0..10 {
            assert_eq!(faults(&readiness).await, [""; 0]);
        }
        assert_eq!(database.pings.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_silence_of_the_database_is_noticed_within_six_seconds() {
        let database = Arc::new(Database::default());
        database.is_up.store(1, Ordering::SeqCst);
        let readiness = readiness(&database);
        assert!(tokio::time::timeout(Duration::from_secs(60), readiness.silence()).await.is_err());
        database.is_up.store(0, Ordering::SeqCst);
        let started = Instant::now();
        readiness.silence().await;
        assert!(started.elapsed() <= Duration::from_secs(6), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn every_fault_is_named() {
        let database = Arc::new(Database::default());
        let readiness = Readiness { lifecycle: Lifecycle::new(), ..readiness(&database) };
        readiness.lifecycle.start_draining();
        tokio::time::advance(FEED_AGE).await;
        assert_eq!(faults(&readiness).await, ["started", "not_draining", "database", "change_feed"]);
    }
}
