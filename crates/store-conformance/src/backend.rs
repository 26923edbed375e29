//! What a backend gives to the suite: fresh databases, and several replicas on one of them.

use async_trait::async_trait;
use switchboard_model::ids::TaskId;
use switchboard_store_api::{ScheduleClock, Stores};

/// One fresh database of a backend under test.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Makes a migrated, empty database.
    async fn create() -> Self
    where
        Self: Sized;

    /// Opens one more `Stores` on the same database: another replica on PostgreSQL, a clone of the
    /// one process on SQLite.
    async fn stores(&self) -> Stores;

    /// Opens `Stores` that go by this clock: on the same database on PostgreSQL, on one of their own on SQLite, whose
    /// file has one process only.
    async fn stores_at(&self, schedule_clock: ScheduleClock) -> Stores;

    /// Holds an idle-in-transaction session open that has written something, until the guard
    /// drops; `None` where the database has no such thing.
    async fn idle_transaction(&self) -> Option<Box<dyn Send>>;

    /// Takes the next occurrence of a task away, behind the back of the store.
    async fn unarm(&self, task: TaskId);

    /// Removes the database after a case that passed.
    async fn close(self)
    where
        Self: Sized;
}
