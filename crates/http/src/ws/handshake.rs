//! The handshake: everything that can be refused is refused here, with an HTTP status.

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use switchboard_events::{ConnectError, Hold, Session, SessionIdentity, error_chain};
use switchboard_model::Timestamp;
use switchboard_model::auth_session::Credential;
use switchboard_model::ticket::Grants;
use switchboard_model::wire::SUBPROTOCOL;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::limits::MESSAGE_BYTES;

use super::budget::MessageBudget;
use super::session;
use super::ticket::{TicketQuery, burn, no_credential, offered_tickets, one_ticket};
use crate::access::{authenticate, presented_bearer};
use crate::error::ApiError;
use crate::extract::Query;
use crate::middleware::RequestId;
use crate::origin::allowed_origin;
use crate::{ApiResult, App, AppState};

/// How much is read from the network at once, in bytes; every socket holds this much.
const READ_BUFFER_BYTES: usize = 4 * 1024;

/// How much is gathered before it is written to the network, in bytes.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;

/// How much may wait for a network that takes nothing, in bytes. The largest frame, a page of history, must
/// fit in whole; an ordinary socket stays near the gathered amount.
const MAX_WRITE_BUFFER_BYTES: usize = 2 * 1024 * 1024;

/// Opens a socket for the holder of a ticket, and for a program with an access token.
pub(crate) async fn upgrade(
    State(app): State<App>,
    request_id: RequestId,
    budget: MessageBudget,
    headers: HeaderMap,
    query: ApiResult<Query<TicketQuery>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> ApiResult<Response> {
    refuse_while_draining(&app)?;
    let origin = allowed_origin(&headers, &app.options.allowed_origins)?;
    // Only a request that can become a socket may burn a ticket.
    let upgrade = upgrade.map_err(not_an_upgrade)?;
    let Query(query) = query?;
    let (identity, hold) = identify(&app, &headers, query, (origin, request_id)).await?;
    let guard = app.hub.connect(identity, hold).await.map_err(not_connected)?;
    // Neither a revocation nor a drain that came meanwhile need have seen this session: from here on they do.
    refuse_revoked(&app, &guard).await?;
    refuse_while_draining(&app)?;
    let token = app.tracker.token();
    Ok(upgrade
        .protocols([SUBPROTOCOL])
        .max_message_size(MESSAGE_BYTES)
        .max_frame_size(MESSAGE_BYTES)
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(MAX_WRITE_BUFFER_BYTES)
        // Guard and token move along, so that an upgrade that never happens forgets the session too.
        .on_upgrade(async move |socket| {
            session::run(socket, guard, app, budget).await;
            drop(token);
        }))
}

/// Finds out for whom the socket is, by one ticket or one access token. Pages have tickets: whatever a browser
/// adds to a handshake by itself, such as a remembered header, must not be enough.
async fn identify(
    app: &AppState,
    headers: &HeaderMap,
    query: TicketQuery,
    (origin, request_id): (Option<&str>, RequestId),
) -> ApiResult<(SessionIdentity, Hold)> {
    let tickets = offered_tickets(query, headers);
    if presented_bearer(headers).is_none() {
        let ticket = burn(app, &one_ticket(tickets)?, origin).await?;
        let hold = Hold { expires_at: end_of(app, &ticket.minted_by)?, credential: ticket.minted_by };
        return Ok((SessionIdentity { user_id: ticket.user_id, grants: ticket.grants }, hold));
    }
    if origin.is_some() || !tickets.is_empty() {
        return Err(no_credential());
    }
    let caller = authenticate(app, headers, request_id).await?;
    let user_id = caller.require_user()?.clone();
    Ok((SessionIdentity { user_id, grants: Grants::default() }, caller.hold()))
}

/// Decides when a socket ends that a ticket opened. Sign-in sessions and API keys end in the database, and sockets with
/// them. The tokens of another issuer end by themselves: the ticket stands for one for as long as one of ours works.
fn end_of(app: &AppState, minted_by: &Credential) -> ApiResult<Option<Timestamp>> {
    match minted_by {
        Credential::Session(_) | Credential::ApiKey(_) => Ok(None),
        Credential::User(_) => Ok(Some(app.now()? + app.options.auth.access_ttl.to_delta())),
    }
}

fn not_connected(error: ConnectError) -> ApiError {
    if matches!(error, ConnectError::TooMany) {
        let detail = "the user has as many sockets as allowed, on all replicas together; close one first";
        return ApiError::new(ErrorCode::TooManyConnections, detail);
    }
    tracing::warn!(error = %error_chain(&error), "a session could not be registered");
    ApiError::unavailable("the session could not be registered; mint another ticket")
}

async fn refuse_revoked(app: &AppState, session: &Session) -> ApiResult<()> {
    let revoked = app.stores.auth_sessions.revoked(&session.credentials()).await?;
    if revoked.is_empty() { Ok(()) } else { Err(no_credential()) }
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
