//! Leases over REST: named ownership that expires.

use reqwest::Method;
use switchboard_model::identity::ClientKey;
use switchboard_model::lease::{Lease, LeaseHold};
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_model::wire::coordination::{
    LeaseAcquireRequest, LeaseAcquired, LeaseReleaseRequest, LeaseRenewRequest,
};

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

impl Client {
    /// Acquires a lease that nobody holds, or says who holds it, which is no error. When the answer is lost, repeat the
    /// request with the same holder: a lease that is held by that one is the caller's.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn acquire_lease(
        &self,
        key: &ClientKey,
        request: &LeaseAcquireRequest,
    ) -> Result<LeaseAcquired, ClientError> {
        fetch(self.api(Method::POST, &["leases", key.as_str(), "acquire"]).json(request)).await
    }

    /// Takes a lease, whoever holds it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn seize_lease(&self, key: &ClientKey, request: &LeaseAcquireRequest) -> Result<Lease, ClientError> {
        fetch(self.api(Method::POST, &["leases", key.as_str(), "seize"]).json(request)).await
    }

    /// Makes a lease hold for `ttl` from now.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `fenced` when the lease is lost.
    pub async fn renew_lease(&self, hold: &LeaseHold, ttl: Span) -> Result<Lease, ClientError> {
        let request = LeaseRenewRequest { holder: hold.holder.clone(), fence: hold.fence, ttl };
        fetch(self.api(Method::POST, &["leases", hold.key.as_str(), "renew"]).json(&request)).await
    }

    /// Gives a lease back.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `fenced` when the lease was lost before, or given back by an earlier request.
    pub async fn release_lease(&self, hold: &LeaseHold) -> Result<(), ClientError> {
        let request = LeaseReleaseRequest { holder: hold.holder.clone(), fence: hold.fence };
        send(self.api(Method::POST, &["leases", hold.key.as_str(), "release"]).json(&request)).await.map(drop)
    }

    /// Returns who holds a lease.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `not_found` when nobody does.
    pub async fn get_lease(&self, key: &ClientKey) -> Result<Lease, ClientError> {
        fetch(self.api(Method::GET, &["leases", key.as_str()])).await
    }

    /// Returns a page of the leases that hold, by key.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_leases(&self, page: PageRequest) -> Result<Page<Lease>, ClientError> {
        fetch(self.api_page(&["leases"], &page)).await
    }
}
