//! The SQLite backend against the meaning of the store traits, and what only this backend promises.

#![expect(clippy::unwrap_used, reason = "every line of this crate is test code")]

mod bad_rows;
mod process;
mod sweeps;

use async_trait::async_trait;
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

    async fn close(self) {
        self.stop().await;
    }
}

switchboard_store_conformance::suite!(sqlite, SqliteBackend);
