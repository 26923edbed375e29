//! Leases: named ownership that expires.

use async_trait::async_trait;
use switchboard_model::identity::ClientKey;
use switchboard_model::lease::{Lease, LeaseHold, NewLease};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;

use crate::StoreResult;
use crate::context::WriteContext;

/// What asking for a lease gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// It is the caller's, with a fence that is newer than all before.
    Acquired(Lease),
    /// This hold stands; it is the caller's own if an earlier request of the same holder made it.
    Held(Lease),
}

/// What renewing a lease gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRenewal {
    /// It holds on.
    Renewed(Lease),
    /// It was over, was given back or taken away; this hold stands now, if any.
    Lost(Option<Lease>),
}

/// Leases, always on real database time that is read after any wait for the row. A lease that is over is nobody's, and
/// cannot be renewed.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Takes a lease that nobody holds.
    ///
    /// # Errors
    /// Fails when the database does; whether the lease was taken is told by asking again as the same holder.
    async fn acquire(&self, lease: &NewLease) -> StoreResult<AcquireOutcome>;

    /// Takes a lease whoever holds it: the newest wins.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn seize(&self, context: &WriteContext, lease: &NewLease) -> StoreResult<Lease>;

    /// Makes a lease that still holds end `ttl` from now.
    ///
    /// # Errors
    /// Fails when the database does; repeating it does no harm.
    async fn renew(&self, hold: &LeaseHold, ttl: Span) -> StoreResult<LeaseRenewal>;

    /// Gives a lease back; returns whether it still held.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn release(&self, hold: &LeaseHold) -> StoreResult<bool>;

    /// Finds out who holds a lease.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn holder(&self, key: &ClientKey) -> StoreResult<Option<Lease>>;

    /// Lists the leases that hold, by key.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<Lease>>;

    /// Deletes up to `limit` leases that have been over for [`switchboard_model::lease::LEASE_REST`]; returns how many
    /// there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, limit: u32) -> StoreResult<u64>;
}
