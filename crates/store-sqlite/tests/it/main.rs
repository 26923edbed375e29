//! The SQLite backend against the meaning of the store traits, and what only this backend promises.

#![expect(clippy::unwrap_used, reason = "every line of this crate is test code")]

mod bad_rows;
mod process;
mod sweeps;
mod writers;

use async_trait::async_trait;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, SqliteConnection};
use switchboard_model::ids::TaskId;
use switchboard_store_api::{ScheduleClock, Stores};
use switchboard_store_conformance::Backend;
use switchboard_store_sqlite::{SqliteOptions, open};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A database file in a folder of its own.
struct SqliteBackend {
    folder: TempDir,
    stores: Stores,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl SqliteBackend {
    fn options(&self) -> SqliteOptions {
        SqliteOptions::new(self.folder.path().join("switchboard.db"))
    }

    /// Opens a connection beside those of the store.
    async fn raw(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.options().path).connect().await.unwrap()
    }

    /// Stops the writer and waits until the file is free again.
    async fn stop(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    async fn create() -> Self {
        let folder = TempDir::new().unwrap();
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let options = SqliteOptions::new(folder.path().join("switchboard.db"));
        let stores = open(&options, &tracker, stop.clone()).await.unwrap();
        Self { folder, stores, tracker, stop }
    }

    async fn stores(&self) -> Stores {
        self.stores.clone()
    }

    async fn stores_at(&self, schedule_clock: ScheduleClock) -> Stores {
        let path = self.folder.path().join("other.db");
        let options = SqliteOptions { schedule_clock, ..SqliteOptions::new(path) };
        open(&options, &self.tracker, self.stop.clone()).await.unwrap()
    }

    async fn idle_transaction(&self) -> Option<Box<dyn Send>> {
        None
    }

    async fn unarm(&self, task: TaskId) {
        let mut connection = self.raw().await;
        sqlx::query("UPDATE tasks SET next_run_at = NULL WHERE id = ?")
            .bind(task.as_uuid())
            .execute(&mut connection)
            .await
            .unwrap();
    }

    async fn close(self) {
        self.stop().await;
    }
}

switchboard_store_conformance::suite!(sqlite, SqliteBackend);
