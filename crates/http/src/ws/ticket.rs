//! Where the ticket of a handshake is found, and burning it. A ticket never reaches a log or an error.

use axum::http::HeaderMap;
use axum::http::header::SEC_WEBSOCKET_PROTOCOL;
use schemars::JsonSchema;
use serde::Deserialize;
use switchboard_model::secret_text::SecretText;
use switchboard_model::ticket::{TICKET_PREFIX, Ticket};
use switchboard_model::wire::TICKET_SUBPROTOCOL_PREFIX;
use switchboard_store_api::BurnOutcome;

use crate::error::ApiError;
use crate::{ApiResult, AppState};

/// The longest text that is taken for a ticket, in bytes.
const TICKET_BYTES: usize = 200;

/// The query of a handshake.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TicketQuery {
    /// Documented as a credential.
    #[schemars(skip)]
    ticket: Option<String>,
}

/// Finds the tickets of a handshake, in the query and among the offered subprotocols.
pub(super) fn offered_tickets(query: TicketQuery, headers: &HeaderMap) -> Vec<String> {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let offered = offered.flat_map(|value| value.split(',')).map(str::trim);
    let in_protocol = offered.filter_map(|entry| entry.strip_prefix(TICKET_SUBPROTOCOL_PREFIX)).map(str::to_owned);
    query.ticket.into_iter().chain(in_protocol).collect()
}

/// Insists on one ticket.
///
/// # Errors
/// `unauthorized` for none, for several, and for what cannot be a ticket.
pub(super) fn one_ticket(mut offered: Vec<String>) -> ApiResult<SecretText> {
    let ticket = offered.pop().filter(|text| text.starts_with(TICKET_PREFIX) && text.len() <= TICKET_BYTES);
    ticket.filter(|_| offered.is_empty()).map(SecretText::from_presented).ok_or_else(no_credential)
}

/// Burns a ticket and checks that it may be used from `origin`; it is gone either way.
///
/// # Errors
/// `unauthorized`, the same for an unknown, an expired and a mismatched ticket.
pub(super) async fn burn(app: &AppState, ticket: &SecretText, origin: Option<&str>) -> ApiResult<Ticket> {
    match app.stores.tickets.burn(ticket.hash()).await? {
        BurnOutcome::Burned(ticket) if is_bound_to(&ticket, origin) => Ok(ticket),
        BurnOutcome::Burned(_) | BurnOutcome::Expired | BurnOutcome::Unknown => Err(no_credential()),
    }
}

/// A ticket that names an origin works from there only; one without works from every allowed origin, and
/// for programs.
fn is_bound_to(ticket: &Ticket, origin: Option<&str>) -> bool {
    ticket.origin.is_none() || ticket.origin.as_deref() == origin
}

/// Says that nothing opens the socket, without telling why.
pub(super) fn no_credential() -> ApiError {
    ApiError::unauthorized(
        "one valid credential is needed: a ticket that was not used before, from POST /api/v1/ws/ticket, or for \
         programs an access token",
    )
}

#[cfg(test)]
mod tests {
    use switchboard_model::auth_session::Credential;

    use super::*;

    fn find(query: Option<&str>, protocols: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in protocols {
            headers.append(SEC_WEBSOCKET_PROTOCOL, value.parse().unwrap());
        }
        let offered = offered_tickets(TicketQuery { ticket: query.map(str::to_owned) }, &headers);
        one_ticket(offered).ok().map(|ticket| ticket.expose().to_owned())
    }

    #[test]
    fn one_ticket_is_found_in_the_query_or_the_subprotocols() {
        assert_eq!(find(Some("sbt_a"), &[]).as_deref(), Some("sbt_a"));
        assert_eq!(find(Some("sbt_a"), &["switchboard.v1"]).as_deref(), Some("sbt_a"));
        assert_eq!(find(None, &["switchboard.v1, ticket.sbt_b"]).as_deref(), Some("sbt_b"));
        assert_eq!(find(None, &["switchboard.v1", "ticket.sbt_b"]).as_deref(), Some("sbt_b"));
        assert_eq!(find(None, &["ticket.sbt_b,switchboard.v1"]).as_deref(), Some("sbt_b"));
    }

    #[test]
    fn none_several_and_nonsense_are_refused() {
        let long = format!("sbt_{}", "x".repeat(TICKET_BYTES));
        assert_eq!(find(None, &[]), None);
        assert_eq!(find(Some(""), &[]), None);
        assert_eq!(find(Some("sbk_key"), &[]), None);
        assert_eq!(find(Some(&long), &[]), None);
        assert_eq!(find(None, &["switchboard.v1"]), None);
        assert_eq!(find(None, &["ticket.", "switchboard.v1"]), None);
        assert_eq!(find(None, &["Ticket.sbt_b"]), None);
        assert_eq!(find(Some("sbt_a"), &["switchboard.v1, ticket.sbt_b"]), None);
        assert_eq!(find(None, &["ticket.sbt_a, ticket.sbt_b"]), None);
    }

    #[test]
    fn a_bound_ticket_works_from_its_origin_only() {
        let ticket = |origin: Option<&str>| Ticket {
            user_id: "ann".parse().unwrap(),
            minted_by: Credential::User("ann".parse().unwrap()),
            origin: origin.map(str::to_owned),
            grants: Default::default(),
            expires_at: Default::default(),
        };
        let bound = ticket(Some("https://app.example"));
        assert!(is_bound_to(&bound, Some("https://app.example")));
        assert!(!is_bound_to(&bound, Some("https://other.example")));
        assert!(!is_bound_to(&bound, None));
        assert!(is_bound_to(&ticket(None), None));
        assert!(is_bound_to(&ticket(None), Some("https://app.example")));
    }
}
