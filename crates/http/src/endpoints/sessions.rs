//! The open sockets of all replicas: listed, and closed by operators.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use switchboard_model::connection::Connection;
use switchboard_model::identity::UserId;
use switchboard_model::ids::ConnectionId;
use switchboard_model::page::{MAX_PAGE, Page, PageRequest};

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{Path, Query, page};
use crate::{ApiResult, App};

/// Which sockets are listed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionQuery {
    /// Only those of this user.
    user_id: Option<UserId>,
    /// Where the previous page ended: its `next_cursor`.
    cursor: Option<String>,
    /// The most rows to return.
    #[schemars(range(min = 1, max = MAX_PAGE), extend("default" = PageRequest::default().limit))]
    limit: Option<u32>,
}

/// Lists the open sockets, oldest first.
pub(crate) async fn list(
    State(app): State<App>,
    Query(query): Query<SessionQuery>,
) -> ApiResult<Body<Page<Connection>>> {
    let page = page(query.cursor, query.limit)?;
    Ok(Body(app.stores.connections.list(query.user_id.as_ref(), &page).await?))
}

/// Closes a socket for good, whichever replica serves it.
pub(crate) async fn kick(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<ConnectionId>,
) -> ApiResult<StatusCode> {
    let context = caller.change("session.kick", id).context();
    if app.stores.connections.kick(&context, id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("open socket"))
    }
}
