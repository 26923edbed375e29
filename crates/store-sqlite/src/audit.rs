//! Reading and forgetting the audit log; its entries are written with the changes that they tell of.

use async_trait::async_trait;
use switchboard_model::audit::{AuditFilter, AuditOrder, AuditRecord};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_store_api::{AuditStore, StoreResult};
use uuid::Uuid;

use crate::Database;
use crate::error::DbResult;
use crate::rows::{Stored, cursor, earlier, micros};
use crate::writer::{Change, Lane};

async fn list(
    database: &Database,
    filter: &AuditFilter,
    order: AuditOrder,
    page: &PageRequest,
) -> DbResult<Page<AuditRecord>> {
    // Each branch follows an index of its own, in the order of the list; all but one are empty at once.
    let (list, first) = match order {
        AuditOrder::NewestFirst => (
            "-- audit.list_newest_first
            SELECT * FROM (
                SELECT * FROM audit WHERE actor = ?1
                UNION ALL SELECT * FROM audit WHERE ?1 IS NULL AND subject = ?2
                UNION ALL SELECT * FROM audit WHERE ?1 IS NULL AND ?2 IS NULL)
            WHERE id < ?6 AND (?2 IS NULL OR subject = ?2) AND (?4 IS NULL OR at >= ?4) AND (?5 IS NULL OR at < ?5)
                AND (?3 IS NULL OR action = ?3 OR substr(?3, -1) = '.' AND substr(action, 1, length(?3)) = ?3)
            ORDER BY id DESC LIMIT ?7",
            Uuid::max(),
        ),
        AuditOrder::OldestFirst => (
            "-- audit.list_oldest_first
            SELECT * FROM (
                SELECT * FROM audit WHERE actor = ?1
                UNION ALL SELECT * FROM audit WHERE ?1 IS NULL AND subject = ?2
                UNION ALL SELECT * FROM audit WHERE ?1 IS NULL AND ?2 IS NULL)
            WHERE id > ?6 AND (?2 IS NULL OR subject = ?2) AND (?4 IS NULL OR at >= ?4) AND (?5 IS NULL OR at < ?5)
                AND (?3 IS NULL OR action = ?3 OR substr(?3, -1) = '.' AND substr(action, 1, length(?3)) = ?3)
            ORDER BY id LIMIT ?7",
            Uuid::nil(),
        ),
    };
    let rows: Vec<Stored<AuditRecord>> = sqlx::query_as(list)
        .bind(&filter.actor)
        .bind(&filter.subject)
        .bind(&filter.action)
        .bind(filter.from.map(micros))
        .bind(filter.to.map(micros))
        .bind(cursor(page, first)?)
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&database.readers)
        .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(record)| record.id.to_string()).map(Stored::into_inner))
}

async fn sweep(change: &mut Change, age: Span, limit: u32) -> DbResult<u64> {
    let swept = sqlx::query(
        "-- audit.sweep
        DELETE FROM audit WHERE rowid IN (SELECT rowid FROM audit WHERE at < ? ORDER BY at LIMIT ?)",
    )
    .bind(earlier(change.now, age))
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    Ok(swept.rows_affected())
}

#[async_trait]
impl AuditStore for Database {
    #[tracing::instrument(name = "db.audit.list", level = "debug", skip_all)]
    async fn list(
        &self,
        filter: &AuditFilter,
        order: AuditOrder,
        page: &PageRequest,
    ) -> StoreResult<Page<AuditRecord>> {
        Ok(list(self, filter, order, page).await?)
    }

    #[tracing::instrument(name = "db.audit.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep(change, age, limit))).await
    }
}
