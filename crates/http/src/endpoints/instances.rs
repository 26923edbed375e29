//! Live replicas.

use axum::Json as Body;
use axum::extract::State;
use switchboard_model::instance::InstancePage;
use switchboard_model::page::Page;
use switchboard_model::wire::code::ErrorCode;

use crate::error::ApiError;
use crate::extract::{PageQuery, Query};
use crate::{ApiResult, App};

/// Lists the replicas that are alive, oldest first, and the pools that have queued runs and no live worker.
pub(crate) async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> ApiResult<Body<InstancePage>> {
    let page = query.page()?;
    let mut instances = app.stores.instances.list().await?;
    if let Some(cursor) = page.after {
        let place = instances.iter().position(|instance| instance.id.as_str() == cursor).ok_or_else(|| {
            ApiError::field(ErrorCode::ValidationFailed, "cursor", "the replica at the cursor is gone; start again")
        })?;
        instances.drain(..=place);
    }
    let Page { items, next_cursor } = Page::from_rows(instances, page.limit, |instance| instance.id.to_string());
    let uncovered_pools = app.stores.instances.uncovered_pools().await?;
    Ok(Body(InstancePage { items, next_cursor, uncovered_pools }))
}
