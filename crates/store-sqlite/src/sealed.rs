//! Encrypted values of all tables: counted, found and replaced by how they begin, which is all that is known of them here.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _};
use switchboard_model::sealed::{Canary, Reseal, Sealed, SealedCount, SealedTable, SealedValue};
use switchboard_store_api::{SealedStore, StoreResult, WriteContext};
use uuid::Uuid;

use crate::error::DbResult;
use crate::rows::{Stored, parsed, time, time_option};
use crate::writer::{Change, Lane};
use crate::{Database, context};

impl FromRow<'_, SqliteRow> for Stored<SealedCount> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(SealedCount {
            table: parsed(row, "table_name")?,
            head: Sealed(row.try_get("head")?),
            values: row.try_get::<i64, _>("value_count")?.unsigned_abs(),
        }))
    }
}

impl FromRow<'_, SqliteRow> for Stored<Canary> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(Canary {
            key_id: row.try_get("key_id")?,
            value: SealedValue { row: row.try_get("id")?, sealed: Sealed(row.try_get("sealed")?) },
            promoted_at: time(row, "promoted_at")?,
            retired_at: time_option(row, "retired_at")?,
        }))
    }
}

/// Returns the statement that finds the values of a table that begin otherwise. Of an empty value there is no part.
const fn stale_of(table: SealedTable) -> &'static str {
    match table {
        SealedTable::WebhookSecrets => {
            "-- sealed.stale_webhook_secrets
            SELECT id, sealed FROM webhook_secrets
            WHERE id > ?1 AND substr(sealed, 1, length(?2)) IS NOT ?2 ORDER BY id LIMIT ?3"
        }
        SealedTable::Secrets => {
            "-- sealed.stale_secrets
            SELECT id, sealed FROM secrets
            WHERE id > ?1 AND substr(sealed, 1, length(?2)) IS NOT ?2 ORDER BY id LIMIT ?3"
        }
        SealedTable::Tokens => {
            "-- sealed.stale_tokens
            SELECT id, sealed FROM tokens
            WHERE id > ?1 AND substr(sealed, 1, length(?2)) IS NOT ?2 ORDER BY id LIMIT ?3"
        }
    }
}

/// Returns the statement that replaces a value of a table, unless it was changed.
const fn reseal_of(table: SealedTable) -> &'static str {
    match table {
        SealedTable::WebhookSecrets => {
            "-- sealed.reseal_webhook_secret
            UPDATE webhook_secrets SET sealed = ?3 WHERE id = ?1 AND sealed = ?2"
        }
        SealedTable::Secrets => {
            "-- sealed.reseal_secret
            UPDATE secrets SET sealed = ?3 WHERE id = ?1 AND sealed = ?2"
        }
        SealedTable::Tokens => {
            "-- sealed.reseal_token
            UPDATE tokens SET sealed = ?3 WHERE id = ?1 AND sealed = ?2"
        }
    }
}

async fn counts(database: &Database) -> DbResult<Vec<SealedCount>> {
    // The second byte of a value is a small number, which is the same as the character of that number.
    let rows: Vec<Stored<SealedCount>> = sqlx::query_as(
        "-- sealed.counts
        WITH value AS (
            SELECT 'webhook_secrets' AS table_name, sealed FROM webhook_secrets
            UNION ALL SELECT 'secrets', sealed FROM secrets
            UNION ALL SELECT 'tokens', sealed FROM tokens
        )
        SELECT table_name, CASE WHEN length(sealed) > 1
                THEN substr(sealed, 1, 2 + COALESCE(unicode(substr(sealed, 2, 1)), 0)) ELSE sealed END AS head,
            COUNT(*) AS value_count
        FROM value GROUP BY table_name, head ORDER BY table_name, head",
    )
    .fetch_all(&database.readers)
    .await?;
    Ok(rows.into_iter().map(Stored::into_inner).collect())
}

async fn stale(
    database: &Database,
    table: SealedTable,
    head: &[u8],
    after: Uuid,
    limit: u32,
) -> DbResult<Vec<SealedValue>> {
    let rows: Vec<(Uuid, Vec<u8>)> =
        sqlx::query_as(stale_of(table)).bind(after).bind(head).bind(limit).fetch_all(&database.readers).await?;
    Ok(rows.into_iter().map(|(row, sealed)| SealedValue { row, sealed: Sealed(sealed) }).collect())
}

async fn reseal(change: &mut Change, table: SealedTable, changes: Vec<Reseal>) -> DbResult<u64> {
    let mut replaced = 0;
    for Reseal { row, before, after } in changes {
        let update = sqlx::query(reseal_of(table)).bind(row).bind(before.0).bind(after.0);
        replaced += update.execute(&mut change.connection).await?.rows_affected();
    }
    Ok(replaced)
}

async fn canaries(database: &Database) -> DbResult<Vec<Canary>> {
    let rows: Vec<Stored<Canary>> = sqlx::query_as(
        "-- sealed.canaries
        SELECT * FROM sealing_canaries ORDER BY promoted_at DESC, key_id",
    )
    .fetch_all(&database.readers)
    .await?;
    Ok(rows.into_iter().map(Stored::into_inner).collect())
}

async fn add_canary(change: &mut Change, key_id: String, value: SealedValue) -> DbResult<()> {
    sqlx::query(
        "-- sealed.add_canary
        INSERT INTO sealing_canaries (key_id, id, sealed, promoted_at) VALUES (?, ?, ?, ?)
        ON CONFLICT (key_id) DO NOTHING",
    )
    .bind(key_id)
    .bind(value.row)
    .bind(value.sealed.0)
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    Ok(())
}

async fn promote(change: &mut Change, context: WriteContext, key_id: String) -> DbResult<bool> {
    let promoted = sqlx::query(
        "-- sealed.promote
        UPDATE sealing_canaries SET promoted_at = ?2 WHERE key_id = ?1 AND retired_at IS NULL",
    )
    .bind(key_id)
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    noted(change, &context, promoted.rows_affected()).await
}

async fn retire(change: &mut Change, context: WriteContext, key_id: String) -> DbResult<bool> {
    let retired = sqlx::query(
        "-- sealed.retire
        UPDATE sealing_canaries SET retired_at = ?2 WHERE key_id = ?1 AND retired_at IS NULL",
    )
    .bind(key_id)
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    noted(change, &context, retired.rows_affected()).await
}

/// Writes the audit row of a change that took effect.
async fn noted(change: &mut Change, context: &WriteContext, changed: u64) -> DbResult<bool> {
    if changed > 0 {
        context::audit(change, context).await?;
    }
    Ok(changed > 0)
}

#[async_trait]
impl SealedStore for Database {
    #[tracing::instrument(name = "db.sealed.counts", level = "debug", skip_all)]
    async fn counts(&self) -> StoreResult<Vec<SealedCount>> {
        Ok(counts(self).await?)
    }

    #[tracing::instrument(name = "db.sealed.stale", level = "debug", skip_all)]
    async fn stale(&self, table: SealedTable, head: &[u8], after: Uuid, limit: u32) -> StoreResult<Vec<SealedValue>> {
        Ok(stale(self, table, head, after, limit).await?)
    }

    #[tracing::instrument(name = "db.sealed.reseal", level = "debug", skip_all)]
    async fn reseal(&self, table: SealedTable, changes: &[Reseal]) -> StoreResult<u64> {
        let changes = changes.to_vec();
        self.writer.write(Lane::Normal, move |change| Box::pin(reseal(change, table, changes))).await
    }

    #[tracing::instrument(name = "db.sealed.canaries", level = "debug", skip_all)]
    async fn canaries(&self) -> StoreResult<Vec<Canary>> {
        Ok(canaries(self).await?)
    }

    #[tracing::instrument(name = "db.sealed.add_canary", level = "debug", skip_all)]
    async fn add_canary(&self, key_id: &str, value: &SealedValue) -> StoreResult<()> {
        let (key_id, value) = (key_id.to_owned(), value.clone());
        self.writer.write(Lane::Normal, move |change| Box::pin(add_canary(change, key_id, value))).await
    }

    #[tracing::instrument(name = "db.sealed.promote", level = "debug", skip_all)]
    async fn promote(&self, context: &WriteContext, key_id: &str) -> StoreResult<bool> {
        let (context, key_id) = (context.clone(), key_id.to_owned());
        self.writer.write(Lane::Normal, move |change| Box::pin(promote(change, context, key_id))).await
    }

    #[tracing::instrument(name = "db.sealed.retire", level = "debug", skip_all)]
    async fn retire(&self, context: &WriteContext, key_id: &str) -> StoreResult<bool> {
        let (context, key_id) = (context.clone(), key_id.to_owned());
        self.writer.write(Lane::Normal, move |change| Box::pin(retire(change, context, key_id))).await
    }
}
