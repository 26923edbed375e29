//! A fresh database with any number of replicas on it.

use async_trait::async_trait;
use switchboard_model::ids::{InstanceId, TaskId};
use switchboard_store_api::{ScheduleClock, Stores};
use switchboard_store_conformance::Backend;
use switchboard_store_pg::{HintTransport, PgOptions, open};
use switchboard_testkit::TestDatabase;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// One database, and what its replicas run on.
pub(crate) struct PgBackend {
    pub(crate) database: TestDatabase,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl PgBackend {
    /// Goes by a database that was made for the test.
    pub(crate) fn on(database: TestDatabase) -> Self {
        Self { database, tracker: TaskTracker::new(), stop: CancellationToken::new() }
    }

    /// Opens one more replica.
    pub(crate) async fn open(&self, options: &PgOptions) -> Stores {
        open(options, &self.tracker, self.stop.clone()).await.unwrap()
    }

    /// The options of one more replica.
    pub(crate) fn options(&self) -> PgOptions {
        options(self.database.url())
    }
}

/// The options of a replica on the database at `url`.
pub(crate) fn options(url: &str) -> PgOptions {
    PgOptions {
        url: url.to_owned(),
        direct_url: None,
        pool_size: 6,
        pooled: false,
        notify: HintTransport::Notify,
        instance: InstanceId::boot("replica"),
        schedule_clock: ScheduleClock::default(),
    }
}

#[async_trait]
impl Backend for PgBackend {
    async fn create() -> Self {
        Self::on(TestDatabase::create().await)
    }

    async fn stores(&self) -> Stores {
        self.open(&self.options()).await
    }

    async fn stores_at(&self, schedule_clock: ScheduleClock) -> Stores {
        self.open(&PgOptions { schedule_clock, ..self.options() }).await
    }

    async fn idle_transaction(&self) -> Option<Box<dyn Send>> {
        let mut transaction = self.database.pool().begin().await.unwrap();
        sqlx::query("INSERT INTO switchboard.signals (kind, key) VALUES ('setting_changed', 'never committed')")
            .execute(&mut *transaction)
            .await
            .unwrap();
        Some(Box::new(transaction))
    }

    async fn unarm(&self, task: TaskId) {
        sqlx::query("UPDATE switchboard.tasks SET next_run_at = NULL WHERE id = $1")
            .bind(task.as_uuid())
            .execute(self.database.pool())
            .await
            .unwrap();
    }

    async fn close(self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}
