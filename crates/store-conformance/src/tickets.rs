//! Single-use tickets.

use switchboard_model::auth_session::Credential;
use switchboard_model::ids::{ApiKeyId, SessionId};
use switchboard_model::secret_text::SecretHash;
use switchboard_model::span::Span;
use switchboard_model::ticket::{Grants, NewTicket, RoomPattern, Ticket};
use switchboard_store_api::BurnOutcome;

use crate::Backend;
use crate::accounts::{issue, new_ticket, ticket_of, user};
use crate::fixtures::{LONG, SHORT, database_time, wait_past};

pub(crate) async fn a_ticket_is_burned_once_with_all_it_carried(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let grants = Grants { join: vec![RoomPattern::new("chat:*")], publish: vec![RoomPattern::new("chat:1")] };
    let new = NewTicket {
        minted_by: Credential::Session(SessionId::new()),
        origin: Some("https://app.example".to_owned()),
        grants,
        ..new_ticket("a", LONG)
    };
    let before = database_time(&stores).await;
    let expires_at = issue(&stores, &new).await;
    assert!(expires_at >= before + LONG.to_delta());
    assert!(expires_at <= database_time(&stores).await + LONG.to_delta());
    let NewTicket { hash, user_id, minted_by, origin, grants, .. } = new;
    let ticket = Ticket { user_id, minted_by, origin, grants, expires_at };
    assert_eq!(stores.tickets.burn(hash).await.unwrap(), BurnOutcome::Burned(ticket));
    assert_eq!(stores.tickets.burn(hash).await.unwrap(), BurnOutcome::Unknown);
    assert_eq!(stores.tickets.burn(SecretHash::of("other")).await.unwrap(), BurnOutcome::Unknown);
}

pub(crate) async fn an_expired_ticket_is_refused_and_gone(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let ticket = new_ticket("a", SHORT);
    let expires_at = issue(&stores, &ticket).await;
    wait_past(&stores, expires_at).await;
    assert_eq!(stores.tickets.burn(ticket.hash).await.unwrap(), BurnOutcome::Expired);
    assert_eq!(stores.tickets.burn(ticket.hash).await.unwrap(), BurnOutcome::Unknown);
}

pub(crate) async fn sweep_deletes_expired_tickets_only(backend: &dyn Backend) {
    let stores = backend.stores().await;
    for text in ["a", "b", "c"] {
        issue(&stores, &new_ticket(text, Span::from_millis(1))).await;
    }
    let live = new_ticket("live", LONG);
    let last = issue(&stores, &new_ticket("d", Span::from_millis(1))).await;
    issue(&stores, &live).await;
    wait_past(&stores, last).await;
    for expected in [3, 1, 0] {
        assert_eq!(stores.tickets.sweep(3).await.unwrap(), expected);
    }
    assert!(matches!(stores.tickets.burn(live.hash).await.unwrap(), BurnOutcome::Burned(_)));
}

pub(crate) async fn a_ticket_knows_what_it_hangs_on(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let credentials =
        [Credential::Session(SessionId::new()), Credential::ApiKey(ApiKeyId::new()), Credential::User(user("auth0|7"))];
    for minted_by in credentials {
        let ticket = ticket_of("auth0|7", minted_by.clone(), "a");
        issue(&stores, &ticket).await;
        let BurnOutcome::Burned(burned) = stores.tickets.burn(ticket.hash).await.unwrap() else { panic!("not burned") };
        assert_eq!((burned.user_id, burned.minted_by), (ticket.user_id, minted_by));
    }
}
