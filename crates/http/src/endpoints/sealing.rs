//! The keys that encrypt what is stored: what each is needed for, and bringing everything under the current one.

use axum::Json as Body;
use axum::extract::State;
use serde_json::json;
use switchboard_model::sealed::Canary;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::secret::{RewrapReport, RewrapRequest, SealingKeyReport, SealingReport};

use super::secrets::unsealed;
use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::Json;
use crate::sealing::{RewrapError, rewrap};
use crate::{ApiResult, App};

/// About how many values one request encrypts anew.
const STRETCH: u64 = 1_000;

/// Tells which key encrypts how many values.
pub(crate) async fn report(State(app): State<App>) -> ApiResult<Body<SealingReport>> {
    let sealer = &app.options.sealer;
    let own = sealer.key_id().map_err(|error| unsealed(&error))?;
    let canaries = app.stores.sealed.canaries().await?;
    let current = canaries.into_iter().find(|canary| canary.retired_at.is_none());
    let current = current.map_or_else(|| own.to_owned(), |canary| canary.key_id);
    let keys = app.stores.sealed.counts().await?.into_iter().map(|count| {
        let key_id = count.head.key_id().map(str::to_owned);
        let is_current = key_id.as_deref() == Some(&current) && sealer.is_written(&count.head);
        SealingKeyReport {
            is_configured: key_id.as_deref().is_some_and(|id| sealer.has_key(id)),
            key_id,
            table: count.table,
            values: count.values,
            stale: if is_current { 0 } else { count.values },
        }
    });
    Ok(Body(SealingReport { encrypts: own.to_owned(), keys: keys.collect(), current }))
}

/// Encrypts a stretch of values anew; once nothing is left, the other keys are retired.
pub(crate) async fn rewrap_values(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<RewrapRequest>,
) -> ApiResult<Body<RewrapReport>> {
    let sealer = &app.options.sealer;
    let own = sealer.key_id().map_err(|error| unsealed(&error))?;
    if let Some(wanted) = &request.key_id {
        if wanted != own {
            let detail = format!("this replica encrypts by the key {own}; let {wanted} be the first of secrets.keys");
            return Err(ApiError::new(ErrorCode::Conflict, detail));
        }
        promote(&app, &caller, own).await?;
    }
    let mut report = rewrap(&app.stores, sealer, STRETCH).await?;
    if report.left == 0 {
        report.retired = retire_others(&app, &caller, own).await?;
    }
    Ok(Body(report))
}

/// Makes the key by which this replica encrypts the current one, unless it is.
async fn promote(app: &App, caller: &Caller, own: &str) -> ApiResult<()> {
    let canaries = app.stores.sealed.canaries().await?;
    let current = canaries.iter().find(|canary| canary.retired_at.is_none());
    if current.is_some_and(|canary| canary.key_id == own) {
        return Ok(());
    }
    let before = json!({"key_id": current.map(|canary| &canary.key_id)});
    let change = caller.change("sealing_key.promote", own).before(&before)?;
    let context = change.after(&json!({"key_id": own}))?.context();
    if app.stores.sealed.promote(&context, own).await? {
        Ok(())
    } else {
        Err(ApiError::new(ErrorCode::Conflict, format!("the key {own} was retired; take a new one")))
    }
}

async fn retire_others(app: &App, caller: &Caller, own: &str) -> ApiResult<Vec<String>> {
    let mut retired = Vec::new();
    for Canary { key_id, retired_at, .. } in app.stores.sealed.canaries().await? {
        if key_id == own || retired_at.is_some() {
            continue;
        }
        let context = caller.change("sealing_key.retire", &key_id).after(&json!({"current": own}))?.context();
        if app.stores.sealed.retire(&context, &key_id).await? {
            retired.push(key_id);
        }
    }
    Ok(retired)
}

impl From<RewrapError> for ApiError {
    fn from(error: RewrapError) -> Self {
        match error {
            RewrapError::NotCurrent { .. } => Self::new(ErrorCode::Conflict, error.to_string()),
            RewrapError::Seal(error) => unsealed(&error),
            RewrapError::Store(error) => error.into(),
        }
    }
}
