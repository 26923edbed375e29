//! Shared state for programs that use this one: small values, changed by compare-and-set and watched.

use std::time::Duration;

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use switchboard_model::identity::{ClientKey, Namespace};
use switchboard_model::page::{MAX_PAGE, Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_model::state::{STATE_VALUE_BYTES, StateEntry, StateExpected, StateHead, StateKey, StatePut};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::coordination::{StatePutRequest, StateWritten};
use switchboard_store_api::{StateDeleteOutcome, StatePutOutcome};
use tokio::time::{self, Instant};

use crate::access::Caller;
use crate::answer::Tagged;
use crate::error::ApiError;
use crate::extract::{Json, Path, PathPair, Query, page};
use crate::wait::wait_ends;
use crate::{ApiResult, App, AppState};

/// How often a request that waits looks by itself: that much a lost hint costs, and the end of a value's time.
const LOOK: Duration = Duration::from_secs(1);

/// Which keys are asked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateListQuery {
    /// How the keys start.
    #[serde(default)]
    #[schemars(extend("pattern" = r"^[\x21-\x7e]{0,200}$"))]
    prefix: String,
    /// Where the previous page ended: its `next_cursor`.
    cursor: Option<String>,
    /// The most rows to return.
    #[schemars(range(min = 1, max = MAX_PAGE), extend("default" = PageRequest::default().limit))]
    limit: Option<u32>,
}

/// Which change is waited for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateGetQuery {
    /// The version that the caller has, 0 for none. What is newer, or gone, is answered at once.
    #[serde(default)]
    #[schemars(range(min = 0))]
    after_version: i64,
    /// How long to wait for a change.
    #[serde(default)]
    wait: Span,
}

/// Which version is deleted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateDeleteQuery {
    /// The version; whatever is there when absent.
    #[schemars(range(min = 1))]
    version: Option<i64>,
}

/// Lists the keys of a namespace.
pub(crate) async fn list(
    State(app): State<App>,
    Path(ns): Path<Namespace>,
    Query(query): Query<StateListQuery>,
) -> ApiResult<Body<Page<StateHead>>> {
    let StateListQuery { prefix, cursor, limit } = query;
    let page = page(cursor, limit)?;
    if !prefix.is_empty() && prefix.parse::<ClientKey>().is_err() {
        let detail = format!("must be absent or match {}", ClientKey::PATTERN);
        return Err(ApiError::field(ErrorCode::ValidationFailed, "prefix", detail));
    }
    Ok(Body(app.stores.state.list(&ns, &prefix, &page).await?))
}

/// Returns a value, and waits for a change of it if asked to.
///
/// With `wait` the answer comes as soon as the value has another version than `after_version`, and at the latest when the
/// time is over; then it has the version that the caller knows. A value that is gone is a 404, at once unless
/// `after_version` is 0.
pub(crate) async fn get(
    State(app): State<App>,
    PathPair(ns, key): PathPair<Namespace, ClientKey>,
    Query(query): Query<StateGetQuery>,
) -> ApiResult<Tagged<Body<StateEntry>>> {
    let until = wait_ends(&app, query.wait)?;
    let found = changed(&app, &StateKey { ns, key }, query.after_version, until).await?;
    let entry = found.ok_or_else(|| ApiError::not_found("value"))?;
    Ok(Tagged { version: entry.version, answer: Body(entry) })
}

/// Stores a value.
pub(crate) async fn put(
    State(app): State<App>,
    caller: Caller,
    PathPair(ns, key): PathPair<Namespace, ClientKey>,
    Json(request): Json<StatePutRequest>,
) -> ApiResult<Tagged<Body<StateWritten>>> {
    let StatePutRequest { value, version, ttl } = request;
    if value.as_str().len() > STATE_VALUE_BYTES {
        return Err(ApiError::new(ErrorCode::PayloadTooLarge, "the value is above 1 MiB"));
    }
    if version.is_some_and(|version| version < 0) {
        return Err(ApiError::field(ErrorCode::ValidationFailed, "version", "must be at least 0"));
    }
    if ttl == Some(Span::default()) {
        return Err(ApiError::field(ErrorCode::ValidationFailed, "ttl", "must be more than 0s"));
    }
    let put = StatePut { key: StateKey { ns, key }, value, ttl, expected: StateExpected::of_version(version) };
    match app.stores.state.put(&caller.context(), &put, app.options.limits.state).await? {
        StatePutOutcome::Written(written) => Ok(Tagged { version: written.version, answer: Body(written) }),
        StatePutOutcome::VersionMismatch(found) => Err(mismatch(found)),
        StatePutOutcome::Full(held) => {
            let (keys, bytes) = (held.keys, held.bytes);
            let detail = format!("the namespace is full: it holds {keys} keys and {bytes} bytes; delete some first");
            Err(ApiError::new(ErrorCode::Conflict, detail))
        }
    }
}

/// Deletes a value.
pub(crate) async fn delete(
    State(app): State<App>,
    caller: Caller,
    PathPair(ns, key): PathPair<Namespace, ClientKey>,
    Query(query): Query<StateDeleteQuery>,
) -> ApiResult<StatusCode> {
    match app.stores.state.delete(&caller.context(), &StateKey { ns, key }, query.version).await? {
        StateDeleteOutcome::Deleted(_) => Ok(StatusCode::NO_CONTENT),
        StateDeleteOutcome::VersionMismatch(found) => Err(mismatch(Some(found))),
        StateDeleteOutcome::NotFound => Err(ApiError::not_found("value")),
    }
}

fn mismatch(found: Option<i64>) -> ApiError {
    let detail = match found {
        Some(version) => format!("the value has version {version}; read it and decide again"),
        None => "there is no such value; write it with version 0".to_owned(),
    };
    ApiError::new(ErrorCode::VersionMismatch, detail)
}

/// Looks at a value until it is not the known one any more, the time is over or the replica is being stopped.
async fn changed(app: &AppState, key: &StateKey, known: i64, until: Instant) -> ApiResult<Option<StateEntry>> {
    let mut watch = app.state_waits.watch(key.clone());
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let found = app.stores.state.get(key).await?;
        let is_news = found.as_ref().map_or(known > 0, |entry| entry.version > known);
        if is_news || left.is_zero() || app.lifecycle.is_draining() {
            return Ok(found);
        }
        // Woken or not, the next look tells.
        let _ = time::timeout(left.min(LOOK), watch.changed()).await;
    }
}
