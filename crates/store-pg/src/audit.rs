//! Reading and forgetting the audit log; its entries are written with the changes that they tell of.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::audit::{AuditFilter, AuditOrder, AuditRecord};
use switchboard_model::ids::AuditId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_store_api::{AuditStore, StoreError, StoreResult};
use uuid::Uuid;

use crate::connect::Database;
use crate::error::fault;
use crate::rows::{after_id, json};

pub(crate) struct AuditLog(pub(crate) Arc<Database>);

#[derive(sqlx::FromRow)]
struct EntryRow {
    id: Uuid,
    at: Timestamp,
    actor: String,
    request_id: String,
    action: String,
    subject: String,
    before: Option<String>,
    after: Option<String>,
}

impl TryFrom<EntryRow> for AuditRecord {
    type Error = StoreError;

    fn try_from(row: EntryRow) -> StoreResult<Self> {
        Ok(Self {
            id: AuditId::from_uuid(row.id),
            at: row.at,
            actor: row.actor,
            request_id: row.request_id,
            action: row.action,
            subject: row.subject,
            before: json("audit entry", row.before)?,
            after: json("audit entry", row.after)?,
        })
    }
}

#[async_trait]
impl AuditStore for AuditLog {
    #[tracing::instrument(name = "db.audit.list", level = "debug", skip_all)]
    async fn list(
        &self,
        filter: &AuditFilter,
        order: AuditOrder,
        page: &PageRequest,
    ) -> StoreResult<Page<AuditRecord>> {
        let after = after_id(page)?;
        let texts = [&filter.actor, &filter.action, &filter.subject];
        if texts.into_iter().flatten().any(|text| text.contains('\0')) {
            // No stored text has such a character, and the database would refuse the question.
            return Ok(Page { items: Vec::new(), next_cursor: None });
        }
        // No entry is older than the epoch, while an instant may be older than the database can say.
        let [from, to] = [filter.from, filter.to].map(|at| at.map(|at| at.max(Timestamp::UNIX_EPOCH)));
        let list = match order {
            AuditOrder::NewestFirst => sqlx::query_as(
                "-- audit.list_newest_first
                 SELECT id, at, actor, request_id, action, subject, before, after FROM switchboard.audit
                 WHERE ($1 IS NULL OR actor = $1) AND ($2 IS NULL OR subject = $2)
                   AND ($3 IS NULL OR action = $3 OR (right($3, 1) = '.' AND starts_with(action, $3)))
                   AND ($4 IS NULL OR at >= $4) AND ($5 IS NULL OR at < $5) AND ($6 IS NULL OR id < $6)
                 ORDER BY id DESC LIMIT $7",
            ),
            AuditOrder::OldestFirst => sqlx::query_as(
                "-- audit.list_oldest_first
                 SELECT id, at, actor, request_id, action, subject, before, after FROM switchboard.audit
                 WHERE ($1 IS NULL OR actor = $1) AND ($2 IS NULL OR subject = $2)
                   AND ($3 IS NULL OR action = $3 OR (right($3, 1) = '.' AND starts_with(action, $3)))
                   AND ($4 IS NULL OR at >= $4) AND ($5 IS NULL OR at < $5) AND ($6 IS NULL OR id > $6)
                 ORDER BY id LIMIT $7",
            ),
        };
        let mut session = self.0.session().await?;
        // Not persistent, so that it is planned for the filter at hand: each has an index of its own.
        let rows: Vec<EntryRow> = list
            .bind(&filter.actor)
            .bind(&filter.subject)
            .bind(&filter.action)
            .bind(from)
            .bind(to)
            .bind(after)
            .bind(i64::from(page.limit) + 1)
            .persistent(false)
            .fetch_all(&mut *session)
            .await
            .map_err(fault)?;
        let entries = rows.into_iter().map(AuditRecord::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(entries, page.limit, |entry| entry.id.to_string()))
    }

    #[tracing::instrument(name = "db.audit.sweep", level = "debug", skip_all)]
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64> {
        let statement = "-- audit.sweep
             WITH old AS MATERIALIZED (
                 SELECT id FROM switchboard.audit WHERE at < statement_timestamp() - $1 * interval '1 millisecond'
                 ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED
             )
             DELETE FROM switchboard.audit AS entry USING old WHERE entry.id = old.id";
        self.0.delete_old(statement, age, limit).await
    }
}
