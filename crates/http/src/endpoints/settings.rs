//! Settings of the whole fleet.

use axum::Json as Body;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;
use switchboard_model::setting::{FleetSettings, PoolSettings, Versioned};
use switchboard_model::wire::code::ErrorCode;
use switchboard_store_api::PutOutcome;

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::Json;
use crate::{ApiResult, App};

/// The new settings, and the version that was edited.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FleetPut {
    /// The version that was edited.
    version: i64,
    /// The new settings.
    value: FleetSettings,
}

/// Returns the settings that every replica obeys.
pub(crate) async fn fleet(State(app): State<App>) -> ApiResult<Body<Versioned<FleetSettings>>> {
    Ok(Body(app.stores.settings.fleet().await?))
}

/// Replaces the settings, unless somebody did in between.
pub(crate) async fn put_fleet(
    State(app): State<App>,
    caller: Caller,
    Json(put): Json<FleetPut>,
) -> ApiResult<Body<Versioned<FleetSettings>>> {
    check(&put.value)?;
    let before = app.stores.settings.fleet().await?;
    let context = caller.change("setting.put", "fleet").before(&before.value)?.after(&put.value)?.context();
    match app.stores.settings.put_fleet(&context, put.version, &put.value).await? {
        PutOutcome::Written(version) => Ok(Body(Versioned { version, value: put.value })),
        PutOutcome::VersionMismatch(version) => Err(ApiError::new(
            ErrorCode::VersionMismatch,
            format!("the settings were edited in between and have version {version} now; read them and edit again"),
        )),
    }
}

fn check(settings: &FleetSettings) -> ApiResult<()> {
    let refuse = |field: String, detail: String| Err(ApiError::field(ErrorCode::ValidationFailed, field, detail));
    if settings.pools.len() > FleetSettings::MOST_POOLS {
        return refuse("value.pools".to_owned(), format!("must name at most {} pools", FleetSettings::MOST_POOLS));
    }
    let is_too_much = |pool: &PoolSettings| pool.max_running.is_some_and(|max| max > PoolSettings::MOST_RUNNING);
    match settings.pools.iter().find(|(_, pool)| is_too_much(pool)) {
        None => Ok(()),
        Some((name, _)) => {
            let detail = format!("must be at most {}, or absent for no maximum", PoolSettings::MOST_RUNNING);
            refuse(format!("value.pools.{name}.max_running"), detail)
        }
    }
}
