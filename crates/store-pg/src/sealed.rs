//! Encrypted values of all tables: counted, found and replaced by how they begin, which is all that is known of them here.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::sealed::{Canary, Reseal, Sealed, SealedCount, SealedTable, SealedValue};
use switchboard_store_api::{SealedStore, StoreResult, WriteContext};
use uuid::Uuid;

use crate::connect::Database;
use crate::context::audit;
use crate::error::fault;
use crate::rows::{count, parsed};

pub(crate) struct SealedValues(pub(crate) Arc<Database>);

/// Returns the statement that finds the values of a table that begin otherwise.
const fn stale_of(table: SealedTable) -> &'static str {
    match table {
        SealedTable::WebhookSecrets => {
            "-- sealed.stale_webhook_secrets
             SELECT id, sealed FROM switchboard.webhook_secrets
             WHERE id > $1 AND substring(sealed FROM 1 FOR octet_length($2)) <> $2 ORDER BY id LIMIT $3"
        }
        SealedTable::Secrets => {
            "-- sealed.stale_secrets
             SELECT id, sealed FROM switchboard.secrets
             WHERE id > $1 AND substring(sealed FROM 1 FOR octet_length($2)) <> $2 ORDER BY id LIMIT $3"
        }
        SealedTable::Tokens => {
            "-- sealed.stale_tokens
             SELECT id, sealed FROM switchboard.tokens
             WHERE id > $1 AND substring(sealed FROM 1 FOR octet_length($2)) <> $2 ORDER BY id LIMIT $3"
        }
    }
}

/// Returns the statement that replaces a value of a table, unless it was changed: one row, so what a concurrent change
/// leaves is looked at once more after it.
const fn reseal_of(table: SealedTable) -> &'static str {
    match table {
        SealedTable::WebhookSecrets => {
            "-- sealed.reseal_webhook_secret
             UPDATE switchboard.webhook_secrets SET sealed = $3 WHERE id = $1 AND sealed = $2"
        }
        SealedTable::Secrets => {
            "-- sealed.reseal_secret
             UPDATE switchboard.secrets SET sealed = $3 WHERE id = $1 AND sealed = $2"
        }
        SealedTable::Tokens => {
            "-- sealed.reseal_token
             UPDATE switchboard.tokens SET sealed = $3 WHERE id = $1 AND sealed = $2"
        }
    }
}

#[async_trait]
impl SealedStore for SealedValues {
    #[tracing::instrument(name = "db.sealed.counts", level = "debug", skip_all)]
    async fn counts(&self) -> StoreResult<Vec<SealedCount>> {
        let mut session = self.0.session().await?;
        let rows: Vec<(String, Vec<u8>, i64)> = sqlx::query_as(
            "-- sealed.counts
             WITH value AS (
                 SELECT 'webhook_secrets' AS table_name, sealed FROM switchboard.webhook_secrets
                 UNION ALL SELECT 'secrets', sealed FROM switchboard.secrets
                 UNION ALL SELECT 'tokens', sealed FROM switchboard.tokens
             )
             SELECT table_name, head, count(*)
             FROM value, LATERAL (
                 SELECT CASE WHEN octet_length(sealed) > 1
                     THEN substring(sealed FROM 1 FOR 2 + get_byte(sealed, 1)) ELSE sealed END AS head
             ) AS beginning
             GROUP BY table_name, head ORDER BY table_name, head",
        )
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let read = |(table, head, values): (String, Vec<u8>, i64)| {
            Ok(SealedCount { table: parsed("sealed value", &table)?, head: Sealed(head), values: count(values) })
        };
        rows.into_iter().map(read).collect()
    }

    #[tracing::instrument(name = "db.sealed.stale", level = "debug", skip_all)]
    async fn stale(&self, table: SealedTable, head: &[u8], after: Uuid, limit: u32) -> StoreResult<Vec<SealedValue>> {
        let mut session = self.0.session().await?;
        let rows: Vec<(Uuid, Vec<u8>)> = sqlx::query_as(stale_of(table))
            .bind(after)
            .bind(head)
            .bind(i64::from(limit))
            .fetch_all(&mut *session)
            .await
            .map_err(fault)?;
        Ok(rows.into_iter().map(|(row, sealed)| SealedValue { row, sealed: Sealed(sealed) }).collect())
    }

    #[tracing::instrument(name = "db.sealed.reseal", level = "debug", skip_all)]
    async fn reseal(&self, table: SealedTable, changes: &[Reseal]) -> StoreResult<u64> {
        // Locked in the order of the rows, as everywhere.
        let mut changes: Vec<&Reseal> = changes.iter().collect();
        changes.sort_unstable_by_key(|change| change.row);
        let mut tx = self.0.begin().await?;
        let mut replaced = 0;
        for Reseal { row, before, after } in changes {
            let update = sqlx::query(reseal_of(table)).bind(row).bind(&before.0).bind(&after.0);
            replaced += update.execute(&mut *tx).await.map_err(fault)?.rows_affected();
        }
        tx.commit().await?;
        Ok(replaced)
    }

    #[tracing::instrument(name = "db.sealed.canaries", level = "debug", skip_all)]
    async fn canaries(&self) -> StoreResult<Vec<Canary>> {
        let mut session = self.0.session().await?;
        let rows: Vec<(String, Uuid, Vec<u8>, Timestamp, Option<Timestamp>)> = sqlx::query_as(
            "-- sealed.canaries
             SELECT key_id, id, sealed, promoted_at, retired_at FROM switchboard.sealing_canaries
             ORDER BY promoted_at DESC, key_id",
        )
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let read = |(key_id, row, sealed, promoted_at, retired_at)| Canary {
            key_id,
            value: SealedValue { row, sealed: Sealed(sealed) },
            promoted_at,
            retired_at,
        };
        Ok(rows.into_iter().map(read).collect())
    }

    #[tracing::instrument(name = "db.sealed.add_canary", level = "debug", skip_all)]
    async fn add_canary(&self, key_id: &str, value: &SealedValue) -> StoreResult<()> {
        let mut session = self.0.session().await?;
        sqlx::query(
            "-- sealed.add_canary
             INSERT INTO switchboard.sealing_canaries (key_id, id, sealed, promoted_at)
             VALUES ($1, $2, $3, clock_timestamp()) ON CONFLICT (key_id) DO NOTHING",
        )
        .bind(key_id)
        .bind(value.row)
        .bind(&value.sealed.0)
        .execute(&mut *session)
        .await
        .map_err(fault)?;
        session.commit().await
    }

    #[tracing::instrument(name = "db.sealed.promote", level = "debug", skip_all)]
    async fn promote(&self, context: &WriteContext, key_id: &str) -> StoreResult<bool> {
        let promote = "-- sealed.promote
             UPDATE switchboard.sealing_canaries SET promoted_at = clock_timestamp()
             WHERE key_id = $1 AND retired_at IS NULL";
        self.change_canary(context, promote, key_id).await
    }

    #[tracing::instrument(name = "db.sealed.retire", level = "debug", skip_all)]
    async fn retire(&self, context: &WriteContext, key_id: &str) -> StoreResult<bool> {
        let retire = "-- sealed.retire
             UPDATE switchboard.sealing_canaries SET retired_at = clock_timestamp()
             WHERE key_id = $1 AND retired_at IS NULL";
        self.change_canary(context, retire, key_id).await
    }
}

impl SealedValues {
    async fn change_canary(&self, context: &WriteContext, statement: &'static str, key_id: &str) -> StoreResult<bool> {
        let mut tx = self.0.begin().await?;
        let changed = sqlx::query(statement).bind(key_id).execute(&mut *tx).await.map_err(fault)?.rows_affected();
        if changed == 0 {
            return tx.undo(false).await;
        }
        audit(&mut tx, context).await?;
        tx.commit().await?;
        Ok(true)
    }
}
