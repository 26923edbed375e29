//! Tickets: minted by the application's server for anybody, and by users for themselves; each opens one socket.

use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use switchboard_model::scope::Scope;
use switchboard_model::ticket::{NewTicket, RoomPattern, TICKET_PREFIX, TICKET_TTL};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::rest::{TicketRequest, TicketResponse};
use switchboard_store_api::{WriteContext, Written};

use crate::access::Caller;
use crate::answer::new_secret;
use crate::error::ApiError;
use crate::once::Once;
use crate::{ApiResult, App};

/// The longest origin, in bytes: a scheme, the longest host name and a port.
const ORIGIN_BYTES: usize = 300;

/// Mints a ticket.
pub(crate) async fn mint(
    State(app): State<App>,
    caller: Caller,
    request: Once<TicketRequest>,
) -> ApiResult<(StatusCode, Body<TicketResponse>)> {
    let wanted = request.value;
    check(&caller, &wanted)?;
    let user_id = wanted.user_id.or_else(|| caller.user_id().cloned()).ok_or_else(|| {
        ApiError::field(ErrorCode::ValidationFailed, "user_id", "must say whom the socket will belong to")
    })?;
    let secret = new_secret(TICKET_PREFIX)?;
    let ticket = NewTicket {
        hash: secret.hash(),
        user_id,
        minted_by: caller.credential(),
        origin: wanted.origin,
        grants: wanted.grants,
        ttl: TICKET_TTL,
    };
    let context = WriteContext { once: request.claim, ..caller.context() };
    match app.stores.tickets.issue(&context, &ticket).await? {
        Written::Now(expires_at) => {
            Ok((StatusCode::CREATED, Body(TicketResponse { ticket: secret.expose().to_owned(), expires_at })))
        }
        Written::Replayed(_) => Err(ApiError::new(
            ErrorCode::Duplicate,
            "this idempotency key made a ticket, and its secret is shown once; mint another under a new key",
        )),
        Written::Mismatch => Err(ApiError::idempotency_mismatch()),
    }
}

/// Users mint for themselves. Whoever mints for others, or lets somebody into rooms, administers rooms; and
/// nobody hands out what they do not have.
fn check(caller: &Caller, wanted: &TicketRequest) -> ApiResult<()> {
    if wanted.origin.as_deref().is_some_and(|origin| !is_origin(origin)) {
        let detail = format!("must be 1 to {ORIGIN_BYTES} visible ASCII characters, such as https://app.example");
        return Err(ApiError::field(ErrorCode::ValidationFailed, "origin", detail));
    }
    let is_own = caller.user_id().is_some_and(|own| wanted.user_id.as_ref().is_none_or(|wanted| wanted == own));
    if !is_own || !wanted.grants.join.is_empty() {
        caller.require(&Scope::RoomsWrite)?;
    }
    wanted.grants.publish.iter().try_for_each(|pattern| caller.require(&publish_scope(pattern)))
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
