//! Once-keys: only their expiry; they are claimed inside the writes that carry them.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_store_api::{OnceStore, StoreResult};

use crate::connect::Database;
use crate::error::fault;

pub(crate) struct Once(pub(crate) Arc<Database>);

#[async_trait]
impl OnceStore for Once {
    #[tracing::instrument(name = "db.once.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        let mut session = self.0.session().await?;
        let deleted = sqlx::query(
            "-- once.sweep
             WITH expired AS MATERIALIZED (
                 SELECT scope, key FROM switchboard.once WHERE expires_at <= statement_timestamp()
                 ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.once AS known USING expired
             WHERE known.scope = expired.scope AND known.key = expired.key",
        )
        .bind(i64::from(limit))
        .execute(&mut *session)
        .await
        .map_err(fault)?
        .rows_affected();
        session.commit().await?;
        Ok(deleted)
    }
}
