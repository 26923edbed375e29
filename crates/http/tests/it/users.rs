//! Users, as administrators see them.

use serde_json::{Value, json};
use switchboard_model::scope::Scope;
use switchboard_model::user::{User, UserRole};
use switchboard_model::wire::code::ErrorCode;

use crate::harness::{PASSWORD, Replica};

#[tokio::test]
async fn users_are_made_listed_edited_and_deleted() {
    let replica = Replica::boot().await;
    let body = json!({"id": "auth0|7", "name": "ann", "role": "operator"}).to_string();
    let made = replica.ask("POST", "/api/v1/users", &body).await;
    assert_eq!((made.status, made.header("location")), (201, Some("/api/v1/users/auth0|7")));
    let ann: User = made.read();
    assert!(!ann.has_password && ann.role == UserRole::Operator);
    let taken = replica.ask("POST", "/api/v1/users", r#"{"name":"ann"}"#).await.problem();
    assert_eq!((taken.code, taken.errors[0].field.as_str()), (ErrorCode::Duplicate, "name"));
    let taken = replica.ask("POST", "/api/v1/users", r#"{"id":"auth0|7","name":"bob"}"#).await.problem();
    assert_eq!((taken.code, taken.errors[0].field.as_str()), (ErrorCode::Duplicate, "id"));

    let path = "/api/v1/users/auth0%7C7";
    assert_eq!(replica.ask("GET", path, "").await.read::<User>(), ann);
    assert_eq!(replica.ask("GET", "/api/v1/users", "").await.json()["items"], json!([ann]));
    let put = json!({"version": 1, "role": "user", "is_disabled": false}).to_string();
    let edited: User = replica.ask("PUT", path, &put).await.read();
    assert_eq!((edited.role, edited.version), (UserRole::User, 2));
    assert_eq!(replica.ask("PUT", path, &put).await.problem().code, ErrorCode::VersionMismatch);
    let set = json!({"new": PASSWORD}).to_string();
    assert_eq!(replica.ask("PUT", &format!("{path}/password"), &set).await.status, 204);
    let tokens = replica.login("ann").await;
    let sessions = replica.ask("GET", &format!("{path}/sessions"), "").await.json();
    assert_eq!(sessions["items"][0]["id"], json!(tokens.session_id));
    assert_eq!(replica.ask("DELETE", &format!("{path}/sessions"), "").await.status, 204);
    assert_eq!(replica.ask_as(&tokens.access_token, "GET", "/api/v1/auth/me", "").await.status, 401);
    assert_eq!(replica.ask("DELETE", path, "").await.status, 204);
    assert_eq!(replica.ask("GET", path, "").await.status, 404);
}

#[tokio::test]
async fn a_user_is_made_once_for_each_idempotency_key() {
    let replica = Replica::boot().await;
    let post = async |key: &str, body: Value| {
        replica.ask_with("POST", "/api/v1/users", &body.to_string(), &[("idempotency-key", key)]).await
    };
    for (key, body) in [
        ("a", json!({"name": "ann", "password": PASSWORD})),
        ("b", json!({"name": "bob", "id": "auth0|8"})),
        ("c", json!({"name": "cyd", "id": "0190A0B0000070008000000000000000"})),
    ] {
        let (made, again) = (post(key, body.clone()).await, post(key, body.clone()).await);
        assert_eq!((made.status, again.status), (201, 201), "{}", again.text());
        assert_eq!(made.read::<User>(), again.read::<User>());
        let other = json!({"name": body["name"], "password": "another horse"});
        assert_eq!(post(key, other).await.problem().code, ErrorCode::IdempotencyMismatch);
    }
}

#[tokio::test]
async fn nobody_gives_or_takes_what_they_do_not_have() {
    let replica = Replica::boot().await;
    let helper = replica.key(&[Scope::Users]).await;
    let admin = replica.user("adam", UserRole::Admin).await;
    let operator = replica.user("olga", UserRole::Operator).await;
    let user = replica.user("ann", UserRole::User).await;
    let ask = async |method: &str, path: String, body: Value| {
        replica.ask_as(&helper, method, &format!("/api/v1/users{path}"), &body.to_string()).await.status
    };
    for (role, status) in [("admin", 403), ("operator", 403), ("user", 201)] {
        assert_eq!(ask("POST", String::new(), json!({"name": "new", "role": role})).await, status, "{role}");
        let edit = json!({"version": user.version, "role": role, "is_disabled": false});
        let status = if status == 201 { 200 } else { status };
        assert_eq!(ask("PUT", format!("/{}", user.id), edit).await, status, "{role}");
    }
    for other in [&admin, &operator] {
        let id = &other.id;
        let edit = json!({"version": other.version, "role": "user", "is_disabled": true});
        assert_eq!(ask("PUT", format!("/{id}"), edit).await, 403);
        assert_eq!(ask("PUT", format!("/{id}/password"), json!({"new": "another horse"})).await, 403);
        assert_eq!(ask("DELETE", format!("/{id}/sessions"), json!({})).await, 403);
        assert_eq!(ask("DELETE", format!("/{id}"), json!({})).await, 403);
    }
    assert_eq!(ask("PUT", format!("/{}/password", user.id), json!({"new": "another horse"})).await, 204);
    assert_eq!(ask("DELETE", format!("/{}", user.id), json!({})).await, 204);
    replica.login("adam").await;
}

#[tokio::test]
async fn nobody_locks_themselves_out() {
    let replica = Replica::boot().await;
    let adam = replica.user("adam", UserRole::Admin).await;
    let token = replica.login("adam").await.access_token;
    let path = format!("/api/v1/users/{}", adam.id);
    let ask = async |method: &str, path: &str, body: Value| {
        replica.ask_as(&token, method, path, &body.to_string()).await.status
    };
    assert_eq!(ask("PUT", &path, json!({"version": 1, "role": "user", "is_disabled": false})).await, 403);
    assert_eq!(ask("PUT", &path, json!({"version": 1, "role": "admin", "is_disabled": true})).await, 403);
    assert_eq!(ask("PUT", &path, json!({"version": 1, "role": "admin", "is_disabled": false})).await, 200);
    assert_eq!(ask("PUT", &format!("{path}/password"), json!({"new": "another horse"})).await, 403);
    assert_eq!(ask("DELETE", &path, json!({})).await, 403);
    assert_eq!(ask("POST", "/api/v1/api-keys", json!({"name": "k", "scopes": ["admin"]})).await, 201);
}
