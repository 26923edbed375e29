//! The upkeep of once-keys; they are claimed and completed by the writes that carry them.

use async_trait::async_trait;
use switchboard_store_api::{OnceStore, StoreResult};

use crate::Database;
use crate::error::DbResult;
use crate::writer::{Change, Lane};

async fn sweep(change: &mut Change, limit: u32) -> DbResult<u64> {
    let swept = sqlx::query(
        "-- once.sweep
        DELETE FROM once WHERE rowid IN (SELECT rowid FROM once WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)",
    )
    .bind(change.now)
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    Ok(swept.rows_affected())
}

#[async_trait]
impl OnceStore for Database {
    #[tracing::instrument(name = "db.once.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep(change, limit))).await
    }
}
