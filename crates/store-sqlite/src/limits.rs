//! Rate limits: the rule is the model's, the writer is alone with the rows.

use async_trait::async_trait;
use switchboard_model::limit::Decision;
use switchboard_store_api::{LimitStore, LimitTake, StoreResult};

use crate::error::DbResult;
use crate::writer::{Change, Lane};
use crate::{Database, connect};

async fn take(change: &mut Change, takes: Vec<LimitTake>) -> DbResult<Vec<Decision>> {
    let mut decisions = Vec::with_capacity(takes.len());
    let mut arrivals = Vec::with_capacity(takes.len());
    for LimitTake { key, rate, cost } in &takes {
        let (decision, next) = rate.take(find(change, key).await?, change.now, *cost);
        decisions.push(decision);
        arrivals.extend(next.map(|next| (key.as_str(), next)));
    }
    if arrivals.len() == takes.len() {
        put(change, arrivals).await?;
    }
    Ok(decisions)
}

/// Reads the arrival time of a key, in microseconds, if it was used before.
pub(crate) async fn find(change: &mut Change, key: &str) -> DbResult<Option<i64>> {
    let tat = sqlx::query_scalar(
        "-- limits.find
        SELECT tat FROM rate_limits WHERE key = ?",
    )
    .bind(key)
    .fetch_optional(&mut change.connection)
    .await?;
    Ok(tat)
}

/// Writes arrival times, in microseconds.
pub(crate) async fn put(change: &mut Change, arrivals: impl IntoIterator<Item = (&str, i64)>) -> DbResult<()> {
    for (key, tat) in arrivals {
        sqlx::query(
            "-- limits.put
            INSERT OR REPLACE INTO rate_limits (key, tat) VALUES (?, ?)",
        )
        .bind(key)
        .bind(tat)
        .execute(&mut change.connection)
        .await?;
    }
    Ok(())
}

/// Finds keys that are unused again. Their times change too often for an index, and a search through all of
/// them must not keep the writer.
async fn unused(database: &Database, limit: u32) -> DbResult<Vec<String>> {
    let keys = sqlx::query_scalar(
        "-- limits.unused
        SELECT key FROM rate_limits WHERE tat <= ? LIMIT ?",
    )
    .bind(connect::now())
    .bind(limit)
    .fetch_all(&database.readers)
    .await?;
    Ok(keys)
}

async fn sweep(change: &mut Change, keys: Vec<String>) -> DbResult<u64> {
    let swept = sqlx::query(
        "-- limits.sweep
        DELETE FROM rate_limits WHERE key IN (SELECT value FROM json_each(?)) AND tat <= ?",
    )
    .bind(serde_json::to_string(&keys)?)
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    Ok(swept.rows_affected())
}

#[async_trait]
impl LimitStore for Database {
    #[tracing::instrument(name = "db.limits.take", level = "debug", skip_all)]
    async fn take(&self, takes: &[LimitTake]) -> StoreResult<Vec<Decision>> {
        let takes = takes.to_vec();
        // Strangers decide how many of these there are, so they never go before a renewal.
        self.writer.write(Lane::Normal, |change| Box::pin(take(change, takes))).await
    }

    #[tracing::instrument(name = "db.limits.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        let keys = unused(self, limit).await?;
        if keys.is_empty() {
            return Ok(0);
        }
        self.writer.write(Lane::Normal, |change| Box::pin(sweep(change, keys))).await
    }
}
