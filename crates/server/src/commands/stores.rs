//! Work on the database itself, without a server.

use switchboard_model::ids::InstanceId;
use switchboard_store_api::Stores;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::database::Database;

/// Opens the database for one piece of work and closes it again.
pub(super) async fn with_stores<T>(
    config: &Config,
    work: impl AsyncFnOnce(&Stores) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let stores = Database::of(config, InstanceId::boot("cli"))?.open(&tracker, stop.clone()).await?;
    let result = work(&stores).await;
    drop(stores);
    stop.cancel();
    tracker.close();
    tracker.wait().await;
    result
}
