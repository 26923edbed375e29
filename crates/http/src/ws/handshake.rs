//! The handshake: everything that can be refused is refused here, with an HTTP status.

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use switchboard_events::{SessionIdentity, error_chain};
use switchboard_model::wire::SUBPROTOCOL;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::limits::MESSAGE_BYTES;

use super::session;
use super::ticket::{TicketQuery, burn, presented_ticket};
use crate::error::ApiError;
use crate::extract::Query;
use crate::origin::allowed_origin;
use crate::{ApiResult, App, AppState};

/// How much is read from the network at once, in bytes; every socket holds this much.
const READ_BUFFER_BYTES: usize = 8 * 1024;

/// How much is gathered before it is written to the network, in bytes.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;

/// How much may wait for a network that takes nothing, in bytes. The largest frame, a page of history, must
/// fit in whole; an ordinary socket stays near the gathered amount.
const MAX_WRITE_BUFFER_BYTES: usize = 2 * 1024 * 1024;

/// Opens a socket for the holder of a ticket.
pub(crate) async fn upgrade(
    State(app): State<App>,
    headers: HeaderMap,
    query: ApiResult<Query<TicketQuery>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    refuse_while_draining(&app)?;
    let origin = allowed_origin(&headers, &app.options.allowed_origins)?;
    // Only a request that can become a socket may burn a ticket.
    let upgrade = upgrade.map_err(not_an_upgrade)?;
    let Query(query) = query?;
    let ticket = burn(&app, &presented_ticket(query, &headers)?, origin).await?;
    let identity = SessionIdentity { user_id: ticket.user_id, session_id: ticket.session_id, grants: ticket.grants };
    let guard = app.hub.connect(identity).await.map_err(|error| {
        tracing::warn!(error = %error_chain(&error), "a session could not be registered");
        ApiError::unavailable("the session could not be registered; mint another ticket")
    })?;
    // A drain that began meanwhile may not have seen this session.
    refuse_while_draining(&app)?;
    let token = app.tracker.token();
    let operations = app.operations.clone();
    Ok(upgrade
        .protocols([SUBPROTOCOL])
        .max_message_size(MESSAGE_BYTES)
        .max_frame_size(MESSAGE_BYTES)
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(MAX_WRITE_BUFFER_BYTES)
        // Guard and token move along, so that an upgrade that never happens forgets the session too.
        .on_upgrade(async move |socket| {
            session::run(socket, guard, operations).await;
            drop(token);
        }))
}

fn refuse_while_draining(app: &AppState) -> ApiResult<()> {
    if app.lifecycle.is_draining() {
        return Err(ApiError::unavailable("the replica is being stopped; connect again and reach another"));
    }
    Ok(())
}

fn not_an_upgrade(rejection: WebSocketUpgradeRejection) -> ApiError {
    let detail = rejection.body_text();
    ApiError::new(ErrorCode::BadRequest, detail).with_status(rejection.into_response().status())
}
