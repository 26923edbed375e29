//! Work on the database itself, without a server.

use std::fmt::Display;

use switchboard_model::ids::InstanceId;
use switchboard_model::json_text::JsonText;
use switchboard_store_api::{AuditEntry, Stores, WriteContext};
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

/// Describes a change by whoever has the database, as the audit log will tell it.
pub(super) fn change(
    action: &'static str,
    subject: impl Display,
    before: Option<JsonText>,
    after: Option<JsonText>,
) -> WriteContext {
    let entry = AuditEntry { action, subject: subject.to_string(), before, after };
    WriteContext { audit: Some(entry), ..WriteContext::system("cli") }
}
