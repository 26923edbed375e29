//! The outbox of applications: what could not take effect.

use axum::Json as Body;
use axum::extract::State;
use switchboard_model::outbox::FailedEntry;
use switchboard_model::page::Page;

use crate::extract::{PageQuery, Query};
use crate::{ApiResult, App};

/// Lists what applications have left in their transactions and could not take effect, newest first.
pub(crate) async fn failed(
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> ApiResult<Body<Page<FailedEntry>>> {
    Ok(Body(app.stores.outbox.failed(&query.page()?).await?))
}
