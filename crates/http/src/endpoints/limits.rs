//! Rate limits for programs that use this one: a key, a rate, and an answer that all replicas agree on.

use axum::Json as Body;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::AppendHeaders;
use switchboard_model::identity::ClientKey;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{LimitTakeRequest, LimitTakeResponse};
use switchboard_store_api::LimitTake;

use crate::error::ApiError;
use crate::extract::{Json, Path};
use crate::limits::{LimitScope, headers};
use crate::{ApiResult, App};

/// Takes units from a limit.
///
/// A denial is an answer like any other, with the status 200 and `allowed: false`: 429 would say that the caller
/// itself asks too often. Nothing is used up by it, and `retry_after_ms` says when the same request can succeed. The
/// headers `RateLimit` and `RateLimit-Policy` tell the same. The rate comes with each request, so that it can be
/// changed at any time; a request that is repeated takes again.
pub(crate) async fn take(
    State(app): State<App>,
    Path(key): Path<ClientKey>,
    Json(request): Json<LimitTakeRequest>,
) -> ApiResult<(AppendHeaders<[(HeaderName, HeaderValue); 2]>, Body<LimitTakeResponse>)> {
    let LimitTakeRequest { rate, cost, outage } = request;
    if !(1..=rate.burst()).contains(&cost) {
        let detail = format!("must be between 1 and the burst, which is {}: more is never there at once", rate.burst());
        return Err(ApiError::field(ErrorCode::ValidationFailed, "cost", detail));
    }
    let scoped = format!("{}:{key}", LimitScope::Take.as_str());
    let takes = [LimitTake { key: scoped, rate, cost }];
    let decisions = app.limiter.take(LimitScope::Take, outage, &takes).await?;
    let decision = decisions.first().ok_or_else(ApiError::internal)?;
    let answer = LimitTakeResponse {
        allowed: decision.allowed,
        remaining: decision.remaining,
        retry_after_ms: decision.retry_after.as_millis(),
        reset_after_ms: decision.reset_after.as_millis(),
    };
    Ok((AppendHeaders(headers(key.as_str(), &rate, decision)), Body(answer)))
}
