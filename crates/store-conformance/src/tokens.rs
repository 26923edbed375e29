//! Tokens of providers: one holder of the right to ask, answers written by version, failures by whoever still holds it.

use switchboard_model::ids::{Fence, TokenId};
use switchboard_model::sealed::Sealed;
use switchboard_model::span::Span;
use switchboard_model::token::{
    Granted, NewToken, RefreshFailure, RefreshHold, StoredToken, TokenGrant, TokenProvider,
};
use switchboard_store_api::{Stores, TokenPutOutcome};

use crate::Backend;
use crate::fixtures::{HOUR, LONG, SHORT, contend, eventually, pages, replicas, system, wait_past};

fn provider() -> TokenProvider {
    serde_json::from_str(r#"{"token_url":"https://id.example/token","client_id":"me","client_secret":"crm.key"}"#)
        .unwrap()
}

fn grant(text: &str, access: Granted) -> TokenGrant {
    TokenGrant { sealed: Sealed(text.as_bytes().to_vec()), access }
}

/// A token without an access token.
pub(crate) fn new(name: &str) -> NewToken {
    let granted = grant("first", Granted::Nothing);
    NewToken { id: TokenId::new(), name: name.parse().unwrap(), provider: provider(), granted }
}

pub(crate) async fn set(stores: &Stores, token: &NewToken) -> StoredToken {
    match stores.tokens.put(&system(), token).await.unwrap() {
        TokenPutOutcome::Set(token) => token,
        other => panic!("token not set: {other:?}"),
    }
}

async fn read(stores: &Stores, name: &str) -> StoredToken {
    stores.tokens.find(&name.parse().unwrap()).await.unwrap().unwrap().token
}

async fn hold(stores: &Stores, token: &StoredToken, lease: Span) -> Option<RefreshHold> {
    let fence = stores.tokens.hold_refresh(token.id, token.version, lease).await.unwrap()?;
    Some(RefreshHold { id: token.id, version: token.version, fence })
}

fn failed(pause: Span) -> RefreshFailure {
    RefreshFailure { error: "no answer".to_owned(), pause }
}

pub(crate) async fn a_token_reads_back_as_it_was_set(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = new("crm");
    let first = set(&stores, &wanted).await;
    assert_eq!((first.id, first.version, &first.provider), (wanted.id, 1, &wanted.provider));
    assert_eq!((&first.sealed, first.granted_at, first.expires_at), (&wanted.granted.sealed, None, None));
    assert_eq!(read(&stores, "crm").await, first);
    let lasting = NewToken { granted: grant("second", Granted::ForEver), ..wanted.clone() };
    let second = set(&stores, &lasting).await;
    assert_eq!((second.version, second.expires_at, second.granted_at.is_some()), (2, None, true));
    let limited = NewToken { granted: grant("third", Granted::For(HOUR)), ..wanted.clone() };
    let third = set(&stores, &limited).await;
    assert_eq!(third.expires_at.unwrap() - third.granted_at.unwrap(), HOUR.to_delta());
    assert_eq!(stores.tokens.put(&system(), &new("crm")).await.unwrap(), TokenPutOutcome::Moved);
    set(&stores, &new("erp")).await;
    let listed = pages(1, async |page| stores.tokens.list(&page).await).await;
    assert_eq!(listed.iter().map(|token| token.name.as_str()).collect::<Vec<_>>(), ["crm", "erp"]);
    assert!(stores.tokens.delete(&system(), &wanted.name).await.unwrap());
    assert!(!stores.tokens.delete(&system(), &wanted.name).await.unwrap());
    assert_eq!(stores.tokens.find(&wanted.name).await.unwrap(), None);
}

pub(crate) async fn one_of_many_may_ask_the_provider(backend: &dyn Backend) {
    let stores = replicas(backend, 2).await;
    let token = set(&stores[0], &new("crm")).await;
    let outcomes = contend(&stores, 20, |stores, _| {
        let token = token.clone();
        async move { hold(&stores, &token, LONG).await }
    })
    .await;
    let held: Vec<RefreshHold> = outcomes.into_iter().flatten().collect();
    let [held] = held[..] else { panic!("one holder: {held:?}") };
    assert!(read(&stores[1], "crm").await.refresh_until.is_some());
    assert!(stores[1].tokens.finish_refresh(held, &grant("renewed", Granted::For(HOUR))).await.unwrap());
    let renewed = read(&stores[0], "crm").await;
    assert_eq!((renewed.version, renewed.sealed, renewed.refresh_until), (2, Sealed(b"renewed".to_vec()), None));
    assert_eq!(renewed.expires_at.unwrap() - renewed.granted_at.unwrap(), HOUR.to_delta());
    assert_eq!(hold(&stores[0], &token, LONG).await, None, "of the version that was, there is nothing to renew");
}

pub(crate) async fn whoever_dies_on_the_way_is_followed_after_the_lease(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let token = set(&stores, &new("crm")).await;
    let first = hold(&stores, &token, SHORT).await.unwrap();
    let second = eventually(async || hold(&stores, &token, LONG).await.ok_or("held")).await;
    assert!(second.fence > first.fence);
    assert!(!stores.tokens.fail_refresh(first, &failed(HOUR)).await.unwrap(), "a late failure changes nothing");
    assert_eq!(read(&stores, "crm").await.failures, 0);
    assert!(stores.tokens.finish_refresh(first, &grant("late", Granted::ForEver)).await.unwrap());
    assert!(!stores.tokens.finish_refresh(second, &grant("later", Granted::ForEver)).await.unwrap());
    assert_eq!(read(&stores, "crm").await.sealed, Sealed(b"late".to_vec()), "what came first is not lost");
}

pub(crate) async fn a_failure_makes_all_wait_and_a_success_forgets_it(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let token = set(&stores, &new("crm")).await;
    let held = hold(&stores, &token, LONG).await.unwrap();
    let foreign = RefreshHold { fence: Fence(held.fence.0 + 1_000), ..held };
    assert!(!stores.tokens.fail_refresh(foreign, &failed(HOUR)).await.unwrap());
    assert!(stores.tokens.fail_refresh(held, &failed(SHORT)).await.unwrap());
    assert!(!stores.tokens.fail_refresh(held, &failed(HOUR)).await.unwrap(), "once for each hold");
    let after = read(&stores, "crm").await;
    assert_eq!((after.failures, after.version, after.refresh_until), (1, 1, None));
    assert_eq!(after.last_error.as_deref(), Some("no answer"));
    wait_past(&stores, after.retry_at.unwrap()).await;
    let held = hold(&stores, &after, LONG).await.unwrap();
    assert!(stores.tokens.fail_refresh(held, &failed(HOUR)).await.unwrap());
    assert_eq!(hold(&stores, &after, LONG).await, None, "the provider is left alone");
    let set_anew = set(&stores, &NewToken { id: token.id, ..new("crm") }).await;
    assert_eq!((set_anew.failures, set_anew.retry_at, set_anew.last_error.clone()), (0, None, None));
    let held = hold(&stores, &set_anew, LONG).await.unwrap();
    assert!(stores.tokens.finish_refresh(held, &grant("x", Granted::ForEver)).await.unwrap());
}

pub(crate) async fn a_token_that_was_set_meanwhile_is_not_overwritten(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let wanted = new("crm");
    let token = set(&stores, &wanted).await;
    let held = hold(&stores, &token, LONG).await.unwrap();
    let newer = set(&stores, &NewToken { granted: grant("set", Granted::Nothing), ..wanted }).await;
    assert_eq!(newer.refresh_until, None);
    assert!(!stores.tokens.finish_refresh(held, &grant("old", Granted::ForEver)).await.unwrap());
    assert!(!stores.tokens.fail_refresh(held, &failed(HOUR)).await.unwrap());
    assert_eq!(read(&stores, "crm").await, newer);
    let held = hold(&stores, &newer, LONG).await.unwrap();
    assert!(stores.tokens.delete(&system(), &newer.name).await.unwrap());
    assert!(!stores.tokens.finish_refresh(held, &grant("gone", Granted::ForEver)).await.unwrap());
}
