//! Tickets: minted by the application's server, each opens one socket.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use switchboard_model::scope::Scope;
use switchboard_model::secret_text::SecretText;
use switchboard_model::ticket::{NewTicket, RoomPattern, TICKET_PREFIX, TICKET_TTL};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{TicketRequest, TicketResponse};

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::Json;
use crate::{ApiResult, App};

/// The longest origin, in bytes: a scheme, the longest host name and a port.
const ORIGIN_BYTES: usize = 300;

/// Mints a ticket. It is no creation in the sense of idempotency keys: a secret cannot be shown twice.
pub(crate) async fn mint(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<TicketRequest>,
) -> ApiResult<(StatusCode, Body<TicketResponse>)> {
    if request.origin.as_deref().is_some_and(|origin| !is_origin(origin)) {
        let detail = format!("must be 1 to {ORIGIN_BYTES} visible ASCII characters, such as https://app.example");
        return Err(ApiError::field(ErrorCode::ValidationFailed, "origin", detail));
    }
    for pattern in &request.grants.publish {
        // Nobody hands out what they do not have.
        caller.require(&publish_scope(pattern))?;
    }
    let secret = SecretText::generate(TICKET_PREFIX).map_err(|error| {
        tracing::error!(%error, "there are no random bytes for a ticket");
        ApiError::internal()
    })?;
    let ticket = NewTicket {
        hash: secret.hash(),
        user_id: request.user_id,
        session_id: None,
        origin: request.origin,
        grants: request.grants,
        ttl: TICKET_TTL,
    };
    let expires_at = app.stores.tickets.issue(&caller.context(), &ticket).await?;
    Ok((StatusCode::CREATED, Body(TicketResponse { ticket: secret.expose().to_owned(), expires_at })))
}

/// Tells whether a browser could send the text as its origin; whether one from there may is seen when it does.
fn is_origin(text: &str) -> bool {
    (1..=ORIGIN_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Names the scope that covers all rooms of a pattern.
fn publish_scope(pattern: &RoomPattern) -> Scope {
    Scope::Publish(pattern.as_str().trim_end_matches('*').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_needs_a_scope_that_covers_it() {
        let held: Scope = "publish:chat:*".parse().unwrap();
        for (pattern, is_covered) in
            [("chat:*", true), ("chat:1", true), ("chat:1*", true), ("chat*", false), ("*", false), ("", false)]
        {
            assert_eq!(held.grants(&publish_scope(&RoomPattern::new(pattern))), is_covered, "{pattern}");
        }
    }
}
