//! Once-keys for programs that use this one: claimed before something that must not happen twice.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use sha2::{Digest as _, Sha256};
use switchboard_model::identity::{ClientKey, Namespace};
use switchboard_model::once::{LONGEST_ONCE_TTL, NewOnce, OnceEntry, OnceKey};
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::coordination::{
    OnceAbandonRequest, OnceClaimRequest, OnceClaimed, OnceCompleteRequest, OnceOutcome, OnceTakeOverRequest,
};
use switchboard_store_api::{OnceClaimOutcome, OnceConsumed, OnceEnd, OnceTakeOver};

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{Json, PathPair};
use crate::{ApiResult, App};

/// Returns how a once-key stands.
pub(crate) async fn get(
    State(app): State<App>,
    PathPair(scope, key): PathPair<Namespace, ClientKey>,
) -> ApiResult<Body<OnceEntry>> {
    app.stores.once.find(&OnceKey { scope, key }).await?.map(Body).ok_or_else(not_found)
}

/// Claims a once-key.
///
/// `new` means that the caller does the work and completes the key; `done` brings the result of whoever did. While the
/// claimant has time, others get `in_progress` (409). After that the key is `unknown`: it is never given to anybody by
/// itself, since the work may have been done. The same key for another `request` is `idempotency_mismatch` (422).
pub(crate) async fn claim(
    State(app): State<App>,
    PathPair(scope, key): PathPair<Namespace, ClientKey>,
    Json(request): Json<OnceClaimRequest>,
) -> ApiResult<Body<OnceClaimed>> {
    let OnceClaimRequest { request, lease, ttl, result } = request;
    if ttl == Span::default() || ttl > LONGEST_ONCE_TTL {
        let detail = format!("must be more than 0s and at most {LONGEST_ONCE_TTL}");
        return Err(ApiError::field(ErrorCode::ValidationFailed, "ttl", detail));
    }
    let claim = NewOnce {
        key: OnceKey { scope, key },
        request_hash: Sha256::digest(request.as_str()).into(),
        lease: checked_lease(lease, ttl)?,
        ttl,
        result,
    };
    let (outcome, entry) = match app.stores.once.claim(&claim).await? {
        OnceClaimOutcome::New(entry) => (OnceOutcome::New, entry),
        OnceClaimOutcome::Found(entry) => (OnceClaimed::outcome_of(entry.state).ok_or_else(in_progress)?, entry),
        OnceClaimOutcome::Mismatch => {
            let detail = "the key was claimed for another request; take a new key";
            return Err(ApiError::new(ErrorCode::IdempotencyMismatch, detail));
        }
    };
    Ok(Body(claimed(outcome, entry)))
}

/// Completes a once-key with what later claims are answered with.
pub(crate) async fn complete(
    State(app): State<App>,
    PathPair(scope, key): PathPair<Namespace, ClientKey>,
    Json(request): Json<OnceCompleteRequest>,
) -> ApiResult<StatusCode> {
    ended(app.stores.once.complete(&OnceKey { scope, key }, request.fence, &request.result).await?)
}

/// Gives up a once-key that is not completed, because its work was not done: it can be claimed again.
pub(crate) async fn abandon(
    State(app): State<App>,
    caller: Caller,
    PathPair(scope, key): PathPair<Namespace, ClientKey>,
    Json(request): Json<OnceAbandonRequest>,
) -> ApiResult<StatusCode> {
    let context = caller.change("once.abandon", format_args!("{scope}/{key}")).context();
    ended(app.stores.once.abandon(&context, &OnceKey { scope, key }, request.fence).await?)
}

/// Takes over a once-key whose claimant is lost, for whoever has found out what became of its work.
pub(crate) async fn take_over(
    State(app): State<App>,
    caller: Caller,
    PathPair(scope, key): PathPair<Namespace, ClientKey>,
    Json(request): Json<OnceTakeOverRequest>,
) -> ApiResult<Body<OnceClaimed>> {
    let OnceTakeOverRequest { fence, lease } = request;
    let lease = checked_lease(lease, LONGEST_ONCE_TTL)?;
    let context = caller.change("once.take_over", format_args!("{scope}/{key}")).after(&fence)?.context();
    match app.stores.once.take_over(&context, &OnceKey { scope, key }, fence, lease).await? {
        OnceTakeOver::Taken(entry) => Ok(Body(claimed(OnceOutcome::New, entry))),
        OnceTakeOver::Refused(entry) if entry.fence != fence => Err(fenced()),
        OnceTakeOver::Refused(entry) => Err(match OnceClaimed::outcome_of(entry.state) {
            None => in_progress(),
            Some(_) => ApiError::new(ErrorCode::Conflict, "the key is completed; claim it to get its result"),
        }),
        OnceTakeOver::NotFound => Err(not_found()),
    }
}

/// Deletes a completed once-key and returns what was in it, to one caller only.
pub(crate) async fn consume(
    State(app): State<App>,
    PathPair(scope, key): PathPair<Namespace, ClientKey>,
) -> ApiResult<Body<OnceEntry>> {
    match app.stores.once.consume(&OnceKey { scope, key }).await? {
        OnceConsumed::Consumed(entry) => Ok(Body(entry)),
        OnceConsumed::NotDone(_) => Err(ApiError::new(ErrorCode::InProgress, "the key is not completed")),
        OnceConsumed::NotFound => Err(not_found()),
    }
}

fn claimed(outcome: OnceOutcome, entry: OnceEntry) -> OnceClaimed {
    let OnceEntry { state: _, fence, result, lease_until, expires_at } = entry;
    OnceClaimed { outcome, fence, result, lease_until, expires_at }
}

fn ended(end: OnceEnd) -> ApiResult<StatusCode> {
    match end {
        OnceEnd::Ended => Ok(StatusCode::NO_CONTENT),
        OnceEnd::Fenced => Err(fenced()),
        OnceEnd::NotFound => Err(not_found()),
    }
}

fn fenced() -> ApiError {
    ApiError::new(ErrorCode::Fenced, "the key is completed, or the claim is somebody else's now")
}

fn in_progress() -> ApiError {
    ApiError::new(ErrorCode::InProgress, "somebody has claimed the key and works; ask again later")
}

fn not_found() -> ApiError {
    ApiError::not_found("once-key")
}

fn checked_lease(lease: Span, most: Span) -> ApiResult<Span> {
    if lease == Span::default() || lease > most {
        let detail = format!("must be more than 0s and at most {most}");
        return Err(ApiError::field(ErrorCode::ValidationFailed, "lease", detail));
    }
    Ok(lease)
}
