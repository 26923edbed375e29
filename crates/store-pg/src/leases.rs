//! Leases: each decision is one statement on the row as it is under its lock, by the time as it is then. The fence is
//! drawn under the lock too, except for a row that is new: see [`LEASE_REST`].

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::identity::ClientKey;
use switchboard_model::ids::Fence;
use switchboard_model::json_text::JsonText;
use switchboard_model::lease::{LEASE_REST, Lease, LeaseHold, NewLease};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_store_api::{AcquireOutcome, LeaseRenewal, LeaseStore, StoreError, StoreResult, WriteContext};

use crate::connect::Database;
use crate::context::audit;
use crate::error::fault;
use crate::rows::{after_name, json, parsed};

pub(crate) struct Leases(pub(crate) Arc<Database>);

#[derive(sqlx::FromRow)]
struct LeaseRow {
    key: String,
    holder: String,
    fence: i64,
    expires_at: Timestamp,
    meta: Option<String>,
}

impl TryFrom<LeaseRow> for Lease {
    type Error = StoreError;

    fn try_from(row: LeaseRow) -> StoreResult<Self> {
        Ok(Self {
            key: parsed("lease", &row.key)?,
            holder: parsed("lease", &row.holder)?,
            fence: Fence(row.fence),
            expires_at: row.expires_at,
            meta: json("lease", row.meta)?,
        })
    }
}

#[async_trait]
impl LeaseStore for Leases {
    #[tracing::instrument(name = "db.leases.acquire", level = "debug", skip_all)]
    async fn acquire(&self, lease: &NewLease) -> StoreResult<AcquireOutcome> {
        loop {
            if let Some(acquired) = self.try_acquire(lease).await? {
                return Ok(AcquireOutcome::Acquired(acquired));
            }
            // Whoever held it may have given it back in between; then it is free.
            if let Some(held) = self.holder(&lease.key).await? {
                return Ok(AcquireOutcome::Held(held));
            }
        }
    }

    #[tracing::instrument(name = "db.leases.seize", level = "debug", skip_all)]
    async fn seize(&self, context: &WriteContext, lease: &NewLease) -> StoreResult<Lease> {
        let mut tx = self.0.begin().await?;
        let row: LeaseRow = sqlx::query_as(
            "-- leases.seize
             INSERT INTO switchboard.leases (key, holder, fence, expires_at, meta)
             VALUES ($1, $2, nextval('switchboard.fences'), clock_timestamp() + $3 * interval '1 millisecond', $4)
             ON CONFLICT (key) DO UPDATE
                 SET holder = excluded.holder, fence = nextval('switchboard.fences'), meta = excluded.meta,
                     expires_at = clock_timestamp() + $3 * interval '1 millisecond'
             RETURNING key, holder, fence, expires_at, meta",
        )
        .bind(lease.key.as_str())
        .bind(lease.holder.as_str())
        .bind(lease.ttl.as_millis_i64())
        .bind(lease.meta.as_ref().map(JsonText::as_str))
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
        audit(&mut tx, context).await?;
        tx.commit().await?;
        row.try_into()
    }

    #[tracing::instrument(name = "db.leases.renew", level = "debug", skip_all)]
    async fn renew(&self, hold: &LeaseHold, ttl: Span) -> StoreResult<LeaseRenewal> {
        let mut tx = self.0.begin().await?;
        sqlx::query(
            "-- leases.lock
             SELECT FROM switchboard.leases WHERE key = $1 FOR NO KEY UPDATE",
        )
        .bind(hold.key.as_str())
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
        // The clock is read after the wait for the lock: what is over by then stays lost.
        let row: Option<LeaseRow> = sqlx::query_as(
            "-- leases.renew
             UPDATE switchboard.leases SET expires_at = clock_timestamp() + $4 * interval '1 millisecond'
             WHERE key = $1 AND holder = $2 AND fence = $3 AND expires_at > clock_timestamp()
             RETURNING key, holder, fence, expires_at, meta",
        )
        .bind(hold.key.as_str())
        .bind(hold.holder.as_str())
        .bind(hold.fence.0)
        .bind(ttl.as_millis_i64())
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(row) = row else {
            tx.undo(()).await?;
            return self.holder(&hold.key).await.map(LeaseRenewal::Lost);
        };
        tx.commit().await?;
        row.try_into().map(LeaseRenewal::Renewed)
    }

    #[tracing::instrument(name = "db.leases.release", level = "debug", skip_all)]
    async fn release(&self, hold: &LeaseHold) -> StoreResult<bool> {
        let mut session = self.0.session().await?;
        let released = sqlx::query(
            "-- leases.release
             UPDATE switchboard.leases SET expires_at = clock_timestamp()
             WHERE key = $1 AND holder = $2 AND fence = $3 AND expires_at > clock_timestamp()",
        )
        .bind(hold.key.as_str())
        .bind(hold.holder.as_str())
        .bind(hold.fence.0)
        .execute(&mut *session)
        .await
        .map_err(fault)?;
        session.commit().await?;
        Ok(released.rows_affected() == 1)
    }

    #[tracing::instrument(name = "db.leases.holder", level = "debug", skip_all)]
    async fn holder(&self, key: &ClientKey) -> StoreResult<Option<Lease>> {
        let mut session = self.0.session().await?;
        let row: Option<LeaseRow> = sqlx::query_as(
            "-- leases.holder
             SELECT key, holder, fence, expires_at, meta FROM switchboard.leases
             WHERE key = $1 AND expires_at > clock_timestamp()",
        )
        .bind(key.as_str())
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        row.map(Lease::try_from).transpose()
    }

    #[tracing::instrument(name = "db.leases.list", level = "debug", skip_all)]
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Lease>> {
        let after: Option<ClientKey> = after_name(page)?;
        let mut session = self.0.session().await?;
        let rows: Vec<LeaseRow> = sqlx::query_as(
            "-- leases.list
             SELECT key, holder, fence, expires_at, meta FROM switchboard.leases
             WHERE key > $1 AND expires_at > statement_timestamp() ORDER BY key LIMIT $2",
        )
        .bind(after.as_ref().map_or("", ClientKey::as_str))
        .bind(i64::from(page.limit) + 1)
        .fetch_all(&mut *session)
        .await
        .map_err(fault)?;
        let leases = rows.into_iter().map(Lease::try_from).collect::<StoreResult<Vec<_>>>()?;
        Ok(Page::from_rows(leases, page.limit, |lease| lease.key.to_string()))
    }

    /// Locking looks again at a row that was acquired in between.
    #[tracing::instrument(name = "db.leases.sweep", level = "debug", skip_all)]
    async fn sweep(&self, limit: u32) -> StoreResult<u64> {
        self.0
            .delete_old(
                "-- leases.sweep
                 WITH ended AS MATERIALIZED (
                     SELECT key FROM switchboard.leases
                     WHERE expires_at < statement_timestamp() - $1 * interval '1 millisecond'
                     ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
                 )
                 DELETE FROM switchboard.leases AS lease USING ended WHERE lease.key = ended.key",
                LEASE_REST,
                limit,
            )
            .await
    }
}

impl Leases {
    async fn try_acquire(&self, lease: &NewLease) -> StoreResult<Option<Lease>> {
        let mut session = self.0.session().await?;
        let row: Option<LeaseRow> = sqlx::query_as(
            "-- leases.acquire
             INSERT INTO switchboard.leases AS held (key, holder, fence, expires_at, meta)
             VALUES ($1, $2, nextval('switchboard.fences'), clock_timestamp() + $3 * interval '1 millisecond', $4)
             ON CONFLICT (key) DO UPDATE
                 SET holder = excluded.holder, fence = nextval('switchboard.fences'), meta = excluded.meta,
                     expires_at = clock_timestamp() + $3 * interval '1 millisecond'
                 WHERE held.expires_at <= clock_timestamp()
             RETURNING key, holder, fence, expires_at, meta",
        )
        .bind(lease.key.as_str())
        .bind(lease.holder.as_str())
        .bind(lease.ttl.as_millis_i64())
        .bind(lease.meta.as_ref().map(JsonText::as_str))
        .fetch_optional(&mut *session)
        .await
        .map_err(fault)?;
        session.commit().await?;
        row.map(Lease::try_from).transpose()
    }
}
