//! Secrets and tokens over HTTP: what is set is never shown, and access tokens are handed out by their own scope.

use serde_json::{Value, json};
use switchboard_http::{RewrapError, Sealer, TokenAnswer, TokenAskError, check_keys, rewrap};
use switchboard_model::page::Page;
use switchboard_model::scope::Scope;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::secret::{Secret, Token, TokenAccess};

use crate::harness::Replica;

const VALUE: &str = "s3cr3t-value-of-the-crm";

async fn put(replica: &Replica, name: &str, body: Value) -> crate::harness::Answer {
    replica.ask("PUT", &format!("/api/v1/secrets/{name}"), &body.to_string()).await
}

#[tokio::test]
async fn a_secret_is_set_listed_and_deleted_and_its_value_never_comes_back() {
    let replica = Replica::boot().await;
    let first: Secret = put(&replica, "crm.key", json!({"value": VALUE})).await.read();
    assert_eq!((first.version, first.name.as_str(), first.key_id.as_str()), (1, "crm.key", "test"));
    let second: Secret = put(&replica, "crm.key", json!({"value": VALUE, "version": 1})).await.read();
    assert_eq!((second.version, second.id), (2, first.id));
    put(&replica, "erp.key", json!({"value": VALUE, "version": 0})).await.read::<Secret>();
    for version in [0, 1, 3] {
        let stale = put(&replica, "crm.key", json!({"value": VALUE, "version": version})).await.problem();
        assert_eq!(stale.code, ErrorCode::VersionMismatch);
    }
    let page = replica.ask("GET", "/api/v1/secrets?limit=1", "").await;
    assert!(!page.text().contains(VALUE) && !page.text().contains("sealed"), "{}", page.text());
    let page: Page<Secret> = page.read();
    assert_eq!(page.items, std::slice::from_ref(&second));
    let rest: Page<Secret> =
        replica.ask("GET", &format!("/api/v1/secrets?cursor={}", page.next_cursor.unwrap()), "").await.read();
    assert_eq!(rest.items.iter().map(|secret| secret.name.as_str()).collect::<Vec<_>>(), ["erp.key"]);
    assert_eq!(replica.ask("GET", "/api/v1/secrets/crm.key", "").await.read::<Secret>(), second);
    assert_eq!(replica.ask("DELETE", "/api/v1/secrets/crm.key", "").await.status, 204);
    for method in ["GET", "DELETE"] {
        assert_eq!(replica.ask(method, "/api/v1/secrets/crm.key", "").await.problem().code, ErrorCode::NotFound);
    }
    let audit = replica.ask("GET", "/api/v1/audit", "").await;
    assert!(!audit.text().contains(VALUE), "{}", audit.text());
}

#[tokio::test]
async fn a_value_that_could_not_be_kept_out_of_results_is_refused() {
    let replica = Replica::boot().await;
    for value in ["", "abc", &"x".repeat(8_193)] {
        let refused = put(&replica, "k", json!({"value": value})).await.problem();
        assert_eq!((refused.code, refused.errors[0].field.as_str()), (ErrorCode::ValidationFailed, "value"));
    }
    assert_eq!(put(&replica, "k", json!({"value": "abcd\u{0}"})).await.status, 422);
    assert_eq!(put(&replica, "-k", json!({"value": "abcd"})).await.problem().code, ErrorCode::BadRequest);
    assert_eq!(put(&replica, "k", json!({"value": "x".repeat(8_192)})).await.status, 200);
}

#[tokio::test]
async fn a_task_carries_the_secrets_that_its_maker_may_use() {
    let replica = Replica::boot().await;
    let task = json!({
        "name": "call",
        "action": {"http": {"url": "https://a.example", "headers": {"x-key": {"secret": "crm.key"}}}},
    });
    let ask = async |scopes: &[Scope], method: &str, path: &str| {
        replica.ask_as(&replica.key(scopes).await, method, path, &task.to_string()).await
    };
    let by_name = "/api/v1/tasks/by-name/call";
    let refused = ask(&[Scope::TasksWrite, Scope::SecretsWrite], "POST", "/api/v1/tasks").await.problem();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    assert!(refused.detail.contains("secrets:use:crm.key"), "{}", refused.detail);
    assert_eq!(ask(&[Scope::TasksWrite], "PUT", by_name).await.status, 403);
    let uses = Scope::SecretsUse("crm.".to_owned());
    let made = ask(&[Scope::TasksWrite, uses], "POST", "/api/v1/tasks").await;
    assert_eq!(made.status, 201, "{}", made.text());
    assert_eq!(made.json()["spec"]["action"]["http"]["headers"], json!({"x-key": {"secret": "crm.key"}}));
    assert_eq!(ask(&[Scope::TasksWrite], "PUT", by_name).await.status, 403, "whoever edits it chooses who gets it");
}

fn token() -> Value {
    json!({
        "provider": {"token_url": "https://id.example/token", "client_id": "me", "client_secret": "crm.key"},
        "refresh_token": "first-refresh-token",
    })
}

async fn set_token(replica: &Replica) -> Token {
    put(replica, "crm.key", json!({"value": VALUE})).await.read::<Secret>();
    replica.ask("PUT", "/api/v1/tokens/crm", &token().to_string()).await.read()
}

async fn access(replica: &Replica, body: Value) -> crate::harness::Answer {
    let key = replica.key(&[Scope::TokensAccess("crm".to_owned())]).await;
    replica.ask_as(&key, "POST", "/api/v1/tokens/crm/access", &body.to_string()).await
}

#[tokio::test]
async fn an_access_token_is_asked_for_once_and_handed_out_until_it_is_refused() {
    let replica = Replica::boot().await;
    let set = set_token(&replica).await;
    assert_eq!((set.version, set.granted_at), (1, None));
    for _ in 0..3 {
        let first: TokenAccess = access(&replica, json!({})).await.read();
        assert_eq!((first.access_token.as_str(), first.token_type.as_str(), first.version), ("access-1", "Bearer", 2));
    }
    let second: TokenAccess = access(&replica, json!({"refused_version": 2})).await.read();
    assert_eq!((second.access_token.as_str(), second.version), ("access-2", 3));
    let asked = replica.provider.asked.lock().clone();
    let used: Vec<_> = asked.iter().map(|ask| ask.refresh_token.as_ref().unwrap().expose()).collect();
    assert_eq!(used, ["first-refresh-token", "refresh-1"], "the next one replaces the one that was used");
    assert!(asked.iter().all(|ask| ask.client_secret.as_ref().unwrap().expose() == VALUE));
    for path in ["/api/v1/tokens", "/api/v1/tokens/crm", "/api/v1/audit"] {
        let text = replica.ask("GET", path, "").await.text().to_owned();
        assert!(!text.contains("access-") && !text.contains("refresh-1") && !text.contains(VALUE), "{text}");
    }
    let lacking = replica.key(&[Scope::SecretsWrite, Scope::SecretsUse(String::new())]).await;
    assert_eq!(replica.ask_as(&lacking, "POST", "/api/v1/tokens/crm/access", "{}").await.status, 403);
}

#[tokio::test]
async fn a_provider_that_gives_nothing_is_left_alone_for_a_while() {
    let replica = Replica::boot().await;
    set_token(&replica).await;
    let refused = TokenAskError::Refused("the provider answered with status 400 (invalid_grant)".to_owned());
    *replica.provider.answer.lock() = Some(Err(refused));
    for _ in 0..3 {
        let answer = access(&replica, json!({})).await;
        let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((200..=301).contains(&wait), "{wait}");
        let problem = answer.problem();
        assert_eq!((problem.status, problem.code), (503, ErrorCode::Unavailable));
        assert!(problem.detail.contains("invalid_grant"), "{}", problem.detail);
    }
    assert_eq!(replica.provider.asked.lock().len(), 1);
    let dead = TokenAnswer {
        access_token: SecretText::from_presented("dead".to_owned()),
        token_type: "Bearer".to_owned(),
        refresh_token: None,
        expires_in: Some(Span::default()),
    };
    let shown: Token = replica.ask("GET", "/api/v1/tokens/crm", "").await.read();
    assert!(shown.failures == 1 && shown.retry_at.is_some() && shown.last_error.unwrap().contains("invalid_grant"));
    *replica.provider.answer.lock() = Some(Ok(dead));
    set_token(&replica).await;
    assert!(access(&replica, json!({})).await.problem().detail.contains("expired already"));
    *replica.provider.answer.lock() = None;
    set_token(&replica).await;
    assert_eq!(access(&replica, json!({})).await.read::<TokenAccess>().access_token, "access-3");
}

#[tokio::test]
async fn a_token_needs_a_provider_that_can_be_asked_and_a_secret_that_its_setter_may_use() {
    let replica = Replica::boot().await;
    let changed = |path: &str, value: Value| {
        let mut body = token();
        *body.pointer_mut(path).unwrap() = value;
        body.to_string()
    };
    for (body, field) in [
        (changed("/provider/token_url", json!("ftp://a.example")), "provider.token_url"),
        (changed("/provider/client_id", json!("a\nb")), "provider.client_id"),
        (changed("/provider/client_id", Value::Null), "provider.client_id"),
        (changed("/refresh_token", json!("abc")), "refresh_token"),
        (json!({"provider": {"token_url": "https://a.example"}}).to_string(), "refresh_token"),
    ] {
        let refused = replica.ask("PUT", "/api/v1/tokens/crm", &body).await.problem();
        assert_eq!((refused.code, refused.errors[0].field.as_str()), (ErrorCode::ValidationFailed, field), "{body}");
    }
    let key = replica.key(&[Scope::SecretsWrite]).await;
    let refused = replica.ask_as(&key, "PUT", "/api/v1/tokens/crm", &token().to_string()).await.problem();
    assert!(refused.detail.contains("secrets:use:crm.key"), "{}", refused.detail);
    assert_eq!(access(&replica, json!({})).await.problem().code, ErrorCode::NotFound);
}

#[tokio::test]
async fn a_replica_needs_the_keys_of_all_that_is_stored() {
    let replica = Replica::boot().await;
    let stores = &replica.api.stores;
    let (old, new) = (Sealer::generate_text("old").unwrap(), Sealer::generate_text("new").unwrap());
    let with = |texts: &[&SecretText]| {
        Sealer::from_texts(&texts.iter().map(|text| (*text).clone()).collect::<Vec<_>>()).unwrap()
    };
    let refusal = async |sealer: &Sealer| check_keys(stores, sealer).await.unwrap_err().to_string();
    assert!(refusal(&with(&[&old])).await.contains("the key test is missing"));
    let impostor = Sealer::generate_text("test").unwrap();
    assert!(refusal(&with(&[&impostor])).await.contains("the key test is not the one"));
    assert!(refusal(&with(&[&new, &impostor])).await.contains("the key test is not the one"));
    // Neither attempt has left a canary.
    check_keys(stores, &replica.api.options.sealer).await.unwrap();
    assert_eq!(stores.sealed.canaries().await.unwrap().len(), 1);
}

#[tokio::test]
async fn values_are_brought_under_another_key_a_stretch_at_a_time_by_whoever_goes_on() {
    let mut replica = Replica::boot().await;
    set_token(&replica).await;
    for n in 0..249 {
        put(&replica, &format!("s{n}"), json!({"value": VALUE})).await.read::<Secret>();
    }
    let earlier = Sealer::from_texts(std::slice::from_ref(&replica.sealing_key)).unwrap();
    let new = Sealer::generate_text("new").unwrap();
    let sealer = Sealer::from_texts(&[new, replica.sealing_key.clone()]).unwrap();
    check_keys(&replica.api.stores, &sealer).await.unwrap();
    let stores = replica.api.stores.clone();
    assert!(matches!(rewrap(&stores, &earlier, 1).await, Err(RewrapError::NotCurrent { .. })));
    let first = rewrap(&stores, &sealer, 100).await.unwrap();
    assert_eq!((first.rewrapped, first.left, first.unreadable), (100, 151, 0));

    // Whoever goes on knows nothing of what was done but what the values say.
    replica.seal_by(sealer);
    let report = replica.ask("GET", "/api/v1/sealing", "").await.json();
    assert_eq!((&report["encrypts"], &report["current"]), (&json!("new"), &json!("new")));
    let stale: u64 = report["keys"].as_array().unwrap().iter().map(|key| key["stale"].as_u64().unwrap()).sum();
    assert_eq!(stale, 151);
    let rest = replica.ask("POST", "/api/v1/sealing/rewrap", "{}").await.json();
    assert_eq!(rest, json!({"rewrapped": 151, "unreadable": 0, "left": 0, "retired": ["test"]}));
    let again = replica.ask("POST", "/api/v1/sealing/rewrap", r#"{"key_id":"new"}"#).await.json();
    assert_eq!(again, json!({"rewrapped": 0, "unreadable": 0, "left": 0, "retired": []}));
    let other = replica.ask("POST", "/api/v1/sealing/rewrap", r#"{"key_id":"test"}"#).await.problem();
    assert_eq!(other.code, ErrorCode::Conflict);
    assert!(check_keys(&stores, &earlier).await.unwrap_err().to_string().contains("is missing"));
    let page: Page<Secret> = replica.ask("GET", "/api/v1/secrets?limit=500", "").await.read();
    assert!(page.items.len() == 250 && page.items.iter().all(|secret| secret.key_id == "new" && secret.version == 1));
}
