//! Leases: the writer is alone with the rows, and its time is read when its turn has come.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _, SqliteExecutor};
use switchboard_model::identity::ClientKey;
use switchboard_model::ids::Fence;
use switchboard_model::json_text::JsonText;
use switchboard_model::lease::{LEASE_REST, Lease, LeaseHold, NewLease};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_store_api::{AcquireOutcome, LeaseRenewal, LeaseStore, StoreResult, WriteContext};

use crate::error::DbResult;
use crate::rows::{Stored, cursor, earlier, json_option, later, parsed, time};
use crate::runs::lease::next_fences;
use crate::writer::{Change, Lane};
use crate::{Database, connect, context};

impl FromRow<'_, SqliteRow> for Stored<Lease> {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        Ok(Self(Lease {
            key: parsed(row, "key")?,
            holder: parsed(row, "holder")?,
            fence: Fence(row.try_get("fence")?),
            expires_at: time(row, "expires_at")?,
            meta: json_option(row, "meta")?,
        }))
    }
}

async fn acquire(change: &mut Change, lease: NewLease) -> DbResult<AcquireOutcome> {
    if let Some(held) = find(&mut change.connection, &lease.key, change.now).await? {
        return Ok(AcquireOutcome::Held(held));
    }
    Ok(AcquireOutcome::Acquired(take(change, &lease).await?))
}

async fn seize(change: &mut Change, context: WriteContext, lease: NewLease) -> DbResult<Lease> {
    let taken = take(change, &lease).await?;
    context::audit(change, &context).await?;
    Ok(taken)
}

async fn take(change: &mut Change, lease: &NewLease) -> DbResult<Lease> {
    let fence = next_fences(change, 1).await?;
    let Stored(taken) = sqlx::query_as(
        "-- leases.take
        INSERT OR REPLACE INTO leases (key, holder, fence, expires_at, meta) VALUES (?, ?, ?, ?, ?) RETURNING *",
    )
    .bind(lease.key.as_str())
    .bind(lease.holder.as_str())
    .bind(fence)
    .bind(later(change.now, lease.ttl))
    .bind(lease.meta.as_ref().map(JsonText::as_str))
    .fetch_one(&mut change.connection)
    .await?;
    Ok(taken)
}

async fn renew(change: &mut Change, hold: LeaseHold, ttl: Span) -> DbResult<LeaseRenewal> {
    let renewed: Option<Stored<Lease>> = sqlx::query_as(
        "-- leases.renew
        UPDATE leases SET expires_at = ?5 WHERE key = ?1 AND holder = ?2 AND fence = ?3 AND expires_at > ?4 RETURNING *",
    )
    .bind(hold.key.as_str())
    .bind(hold.holder.as_str())
    .bind(hold.fence.0)
    .bind(change.now)
    .bind(later(change.now, ttl))
    .fetch_optional(&mut change.connection)
    .await?;
    match renewed {
        Some(Stored(lease)) => Ok(LeaseRenewal::Renewed(lease)),
        None => Ok(LeaseRenewal::Lost(find(&mut change.connection, &hold.key, change.now).await?)),
    }
}

async fn release(change: &mut Change, hold: LeaseHold) -> DbResult<bool> {
    let released = sqlx::query(
        "-- leases.release
        UPDATE leases SET expires_at = ?4 WHERE key = ?1 AND holder = ?2 AND fence = ?3 AND expires_at > ?4",
    )
    .bind(hold.key.as_str())
    .bind(hold.holder.as_str())
    .bind(hold.fence.0)
    .bind(change.now)
    .execute(&mut change.connection)
    .await?;
    Ok(released.rows_affected() == 1)
}

async fn find(executor: impl SqliteExecutor<'_>, key: &ClientKey, now: i64) -> DbResult<Option<Lease>> {
    let lease: Option<Stored<Lease>> = sqlx::query_as(
        "-- leases.holder
        SELECT * FROM leases WHERE key = ? AND expires_at > ?",
    )
    .bind(key.as_str())
    .bind(now)
    .fetch_optional(executor)
    .await?;
    Ok(lease.map(Stored::into_inner))
}

async fn list(database: &Database, page: &PageRequest) -> DbResult<Page<Lease>> {
    let rows: Vec<Stored<Lease>> = sqlx::query_as(
        "-- leases.list
        SELECT * FROM leases WHERE key > ? AND expires_at > ? ORDER BY key LIMIT ?",
    )
    .bind(cursor(page, String::new())?)
    .bind(connect::now())
    .bind(i64::from(page.limit) + 1)
    .fetch_all(&database.readers)
    .await?;
    Ok(Page::from_rows(rows, page.limit, |Stored(lease)| lease.key.to_string()).map(Stored::into_inner))
}

async fn sweep(change: &mut Change, limit: u32) -> DbResult<u64> {
    let swept = sqlx::query(
        "-- leases.sweep
        DELETE FROM leases WHERE rowid IN (SELECT rowid FROM leases WHERE expires_at < ? ORDER BY expires_at LIMIT ?)",
    )
    .bind(earlier(change.now, LEASE_REST))
    .bind(limit)
    .execute(&mut change.connection)
    .await?;
    Ok(swept.rows_affected())
}

#[async_trait]
impl LeaseStore for Database {
    #[tracing::instrument(name = "db.leases.acquire", level = "debug", skip_all)]
    async fn acquire(&self, lease: &NewLease) -> StoreResult<AcquireOutcome> {
        let lease = lease.clone();
        self.writer.write(Lane::Normal, |change| Box::pin(acquire(change, lease))).await
    }

    #[tracing::instrument(name = "db.leases.seize", level = "debug", skip_all)]
    async fn seize(&self, context: &WriteContext, lease: &NewLease) -> StoreResult<Lease> {
        let (context, lease) = (context.clone(), lease.clone());
        self.writer.write(Lane::Normal, |change| Box::pin(seize(change, context, lease))).await
    }

    #[tracing::instrument(name = "db.leases.renew", level = "debug", skip_all)]
    async fn renew(&self, hold: &LeaseHold, ttl: Span) -> StoreResult<LeaseRenewal> {
        let hold = hold.clone();
        self.writer.write(Lane::Urgent, move |change| Box::pin(renew(change, hold, ttl))).await
    }

    #[tracing::instrument(name = "db.leases.release", level = "debug", skip_all)]
    async fn release(&self, hold: &LeaseHold) -> StoreResult<bool> {
        let hold = hold.clone();
        self.writer.write(Lane::Normal, |change| Box::pin(release(change, hold))).await
    }

    #[tracing::instrument(name = "db.leases.holder", level = "debug", skip_all)]
    async fn holder(&self, key: &ClientKey) -> StoreResult<Option<Lease>> {
        Ok(find(&self.readers, key, connect::now()).await?)
    }

    #[tracing::instrument(name = "db.leases.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Lease>> {
        Ok(list(self, page).await?)
    }

    #[tracing::instrument(name = "db.leases.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.writer.write(Lane::Normal, move |change| Box::pin(sweep(change, limit))).await
    }
}
