//! Leases for programs that use this one: named ownership that expires.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use switchboard_model::identity::ClientKey;
use switchboard_model::lease::{LEASE_META_BYTES, LEASE_TTLS, Lease, LeaseHold, NewLease};
use switchboard_model::page::Page;
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::coordination::{
    LeaseAcquireRequest, LeaseAcquired, LeaseReleaseRequest, LeaseRenewRequest,
};
use switchboard_store_api::{AcquireOutcome, LeaseRenewal};
use uuid::Uuid;

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{Json, PageQuery, Path, Query};
use crate::{ApiResult, App};

/// Lists the leases that hold, by key.
pub(crate) async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> ApiResult<Body<Page<Lease>>> {
    Ok(Body(app.stores.leases.list(&query.page()?).await?))
}

/// Returns who holds a lease.
pub(crate) async fn get(State(app): State<App>, Path(key): Path<ClientKey>) -> ApiResult<Body<Lease>> {
    app.stores.leases.holder(&key).await?.map(Body).ok_or_else(|| ApiError::not_found("lease"))
}

/// Acquires a lease that nobody holds.
///
/// That somebody else holds it is an answer like any other, with the status 200 and `acquired: false`; `remaining_ms` says
/// when it may be free. When the answer is lost, repeat the request with the same `holder`: a lease that is held by that
/// one is the caller's.
pub(crate) async fn acquire(
    State(app): State<App>,
    Path(key): Path<ClientKey>,
    Json(request): Json<LeaseAcquireRequest>,
) -> ApiResult<Body<LeaseAcquired>> {
    let (acquired, lease) = match app.stores.leases.acquire(&wanted(key, request)?).await? {
        AcquireOutcome::Acquired(lease) => (true, lease),
        AcquireOutcome::Held(lease) => (false, lease),
    };
    let remaining = (lease.expires_at - app.now()?).num_milliseconds().max(0).unsigned_abs();
    Ok(Body(LeaseAcquired { acquired, lease, remaining_ms: remaining }))
}

/// Takes a lease whoever holds it: the holder before finds out with its next renewal, and its fence is older.
pub(crate) async fn seize(
    State(app): State<App>,
    caller: Caller,
    Path(key): Path<ClientKey>,
    Json(request): Json<LeaseAcquireRequest>,
) -> ApiResult<Body<Lease>> {
    let wanted = wanted(key, request.clone())?;
    let mut change = caller.change("lease.seize", &wanted.key).after(&request)?;
    if let Some(before) = app.stores.leases.holder(&wanted.key).await? {
        change = change.before(&before)?;
    }
    Ok(Body(app.stores.leases.seize(&change.context(), &wanted).await?))
}

/// Prolongs a lease that still holds.
pub(crate) async fn renew(
    State(app): State<App>,
    Path(key): Path<ClientKey>,
    Json(request): Json<LeaseRenewRequest>,
) -> ApiResult<Body<Lease>> {
    let LeaseRenewRequest { holder, fence, ttl } = request;
    match app.stores.leases.renew(&LeaseHold { key, holder, fence }, checked(ttl)?).await? {
        LeaseRenewal::Renewed(lease) => Ok(Body(lease)),
        LeaseRenewal::Lost(_) => Err(lost()),
    }
}

/// Gives a lease back.
pub(crate) async fn release(
    State(app): State<App>,
    Path(key): Path<ClientKey>,
    Json(request): Json<LeaseReleaseRequest>,
) -> ApiResult<StatusCode> {
    let LeaseReleaseRequest { holder, fence } = request;
    if app.stores.leases.release(&LeaseHold { key, holder, fence }).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(lost())
    }
}

fn lost() -> ApiError {
    ApiError::new(ErrorCode::Fenced, "the lease is over, was given back or is somebody else's; stop")
}

fn wanted(key: ClientKey, request: LeaseAcquireRequest) -> ApiResult<NewLease> {
    let LeaseAcquireRequest { holder, ttl, meta } = request;
    if meta.as_ref().is_some_and(|meta| meta.as_str().len() > LEASE_META_BYTES) {
        return Err(ApiError::new(ErrorCode::PayloadTooLarge, "meta is above 4 KiB"));
    }
    let holder = match holder {
        Some(holder) => holder,
        None => Uuid::new_v4().to_string().parse().map_err(|_| ApiError::internal())?,
    };
    Ok(NewLease { key, holder, ttl: checked(ttl)?, meta })
}

fn checked(ttl: Span) -> ApiResult<Span> {
    let [shortest, longest] = LEASE_TTLS;
    if (shortest..=longest).contains(&ttl) {
        return Ok(ttl);
    }
    Err(ApiError::field(ErrorCode::ValidationFailed, "ttl", format!("must be between {shortest} and {longest}")))
}
