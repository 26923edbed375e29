//! API keys: found by hash until they expire or are revoked.

use switchboard_model::api_key::NewApiKey;
use switchboard_model::auth_session::Credential;
use switchboard_model::feed::SignalKind;
use switchboard_model::ids::ApiKeyId;
use switchboard_model::page::PageRequest;
use switchboard_model::scope::Scope;
use switchboard_model::secret_text::SecretHash;

use crate::Backend;
use crate::accounts::{burned, create_key, issue, new_api_key, ticket_of, user};
use crate::fixtures::{ALL, LONG, Reader, SHORT, now, system, until};

pub(crate) async fn a_key_is_found_by_its_hash(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let scopes = vec![Scope::TasksRead, Scope::Publish("chat:".to_owned())];
    let new = NewApiKey { scopes: scopes.clone(), ttl: Some(LONG), ..new_api_key("ci") };
    let key = now(stores.api_keys.create(&system(), &new).await.unwrap());
    assert_eq!((key.id, key.name.as_str(), &key.scopes), (new.id, "ci", &scopes));
    assert_eq!((key.expires_at, key.revoked_at), (Some(key.created_at + LONG.to_delta()), None));
    assert_eq!(stores.api_keys.find_valid(new.hash).await.unwrap(), Some(key));
    assert_eq!(stores.api_keys.find_valid(SecretHash::of("other")).await.unwrap(), None);
}

pub(crate) async fn the_same_key_can_be_installed_by_two_replicas(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let first = now(stores.api_keys.create(&system(), &new_api_key("root")).await.unwrap());
    let again = NewApiKey { id: ApiKeyId::new(), scopes: vec![Scope::Users], ..new_api_key("root") };
    assert_eq!(now(stores.api_keys.create(&system(), &again).await.unwrap()), first);
    assert_eq!(stores.api_keys.list(&ALL).await.unwrap().items, [first]);
}

pub(crate) async fn an_expired_key_is_not_valid(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let new = NewApiKey { ttl: Some(SHORT), ..new_api_key("brief") };
    let key = now(stores.api_keys.create(&system(), &new).await.unwrap());
    until(async || stores.api_keys.find_valid(new.hash).await.unwrap(), Option::is_none).await;
    assert_eq!(stores.api_keys.list(&ALL).await.unwrap().items, [key]);
}

pub(crate) async fn a_revoked_key_is_not_valid_and_is_revoked_once(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let new = new_api_key("leaked");
    let key = now(stores.api_keys.create(&system(), &new).await.unwrap());
    assert!(stores.api_keys.revoke(&system(), key.id).await.unwrap());
    assert_eq!(stores.api_keys.find_valid(new.hash).await.unwrap(), None);
    assert!(!stores.api_keys.revoke(&system(), key.id).await.unwrap());
    assert!(!stores.api_keys.revoke(&system(), ApiKeyId::new()).await.unwrap());
    let listed = stores.api_keys.list(&ALL).await.unwrap().items;
    assert!(listed[0].revoked_at.is_some_and(|at| at >= key.created_at));
}

pub(crate) async fn keys_are_listed_oldest_first(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let mut made = Vec::new();
    for name in ["c", "a", "b"] {
        made.push(now(stores.api_keys.create(&system(), &new_api_key(name)).await.unwrap()));
    }
    let first = stores.api_keys.list(&PageRequest { after: None, limit: 2 }).await.unwrap();
    let second = stores.api_keys.list(&PageRequest { after: first.next_cursor, limit: 2 }).await.unwrap();
    assert_eq!(second.next_cursor, None);
    assert_eq!([first.items, second.items].concat(), made);
}

pub(crate) async fn a_revoked_key_takes_its_tickets_along(backend: &dyn Backend) {
    let stores = backend.stores().await;
    let [leaked, other] = [create_key(&stores, "leaked").await.id, create_key(&stores, "other").await.id];
    let minted = [
        ("7", Credential::ApiKey(leaked)),
        ("8", Credential::ApiKey(leaked)),
        ("7", Credential::ApiKey(other)),
        ("7", Credential::User(user("7"))),
    ];
    let texts = ["leaked 7", "leaked 8", "other", "by token"];
    for ((name, credential), text) in minted.into_iter().zip(texts) {
        issue(&stores, &ticket_of(name, credential, text)).await;
    }
    let mut reader = Reader::start(&stores).await;
    assert!(stores.api_keys.revoke(&system(), leaked).await.unwrap());
    assert_eq!(reader.changes().await, [(SignalKind::ApiKeyRevoked, leaked.to_string())]);
    assert_eq!(burned(&stores, &texts).await, ["other", "by token"]);
}
