//! Signing in, staying signed in, and signing out.

use serde_json::{Value, json};
use switchboard_model::audit::{AuditFilter, AuditOrder};
use switchboard_model::page::PageRequest;
use switchboard_model::user::UserRole;
use switchboard_model::wire::auth::TokenResponse;
use switchboard_model::wire::code::ErrorCode;

use crate::harness::{Answer, PASSWORD, Replica};

async fn login(replica: &Replica, name: &str, password: &str) -> Answer {
    let body = json!({"name": name, "password": password}).to_string();
    replica.send("POST", "/api/v1/auth/login", &body, &[("user-agent", "test/1")]).await
}

async fn refresh(replica: &Replica, token: &str) -> Answer {
    let body = json!({"refresh_token": token}).to_string();
    replica.send("POST", "/api/v1/auth/refresh", &body, &[]).await
}

async fn me(replica: &Replica, token: &str) -> u16 {
    replica.ask_as(token, "GET", "/api/v1/auth/me", "").await.status
}

#[tokio::test]
async fn a_user_signs_in_and_is_known() {
    let replica = Replica::boot().await;
    let ann = replica.user("ann", UserRole::Operator).await;
    let tokens: TokenResponse = login(&replica, "ann", PASSWORD).await.read();
    assert_eq!((tokens.user.clone(), tokens.token_type.as_str(), tokens.expires_in), (ann.clone(), "Bearer", 600));
    let me = replica.ask_as(&tokens.access_token, "GET", "/api/v1/auth/me", "").await.json();
    assert_eq!(
        me,
        json!({"user_id": ann.id, "role": "operator", "session_id": tokens.session_id,
               "scopes": ["tasks:write", "runs:write", "rooms:write", "publish:", "calls:write", "streams:write"]})
    );
    let sessions = replica.ask_as(&tokens.access_token, "GET", "/api/v1/auth/sessions", "").await.json();
    assert_eq!(sessions["items"][0]["client"], "test/1");
    let as_key = replica.ask("GET", "/api/v1/auth/me", "").await.json();
    assert_eq!(as_key["scopes"], json!(["admin"]));
    assert!(as_key["user_id"].is_null() && as_key["api_key_id"].is_string());
}

#[tokio::test]
async fn all_refused_logins_answer_alike() {
    let replica = Replica::boot().await;
    replica.user("ann", UserRole::User).await;
    let bob = replica.user("bob", UserRole::User).await;
    let put = json!({"version": bob.version, "role": "user", "is_disabled": true}).to_string();
    assert_eq!(replica.ask("PUT", &format!("/api/v1/users/{}", bob.id), &put).await.status, 200);
    assert_eq!(replica.ask("POST", "/api/v1/users", r#"{"name":"cyd"}"#).await.status, 201);
    let long = "x".repeat(1000);
    let cases =
        [("ann", "wrong horse"), ("dan", PASSWORD), ("bob", PASSWORD), ("cyd", PASSWORD), ("cyd", ""), ("ann", &long)];
    let mut seen = Vec::new();
    for (name, password) in cases {
        let answer = login(&replica, name, password).await;
        let mut problem = answer.problem();
        problem.request_id.clear();
        assert_eq!((problem.status, answer.header("www-authenticate")), (401, Some("Bearer")));
        assert!(!answer.text().contains(name));
        seen.push(problem);
    }
    assert!(seen.windows(2).all(|two| two[0] == two[1]), "{seen:?}");
}

#[tokio::test]
async fn registration_is_on_only_where_it_was_turned_on() {
    let mut replica = Replica::boot().await;
    let body = json!({"name": "ann", "password": PASSWORD}).to_string();
    assert_eq!(replica.send("POST", "/api/v1/auth/register", &body, &[]).await.problem().status, 404);
    replica.sign_in_by(|auth| auth.registration = true);
    let made = replica.send("POST", "/api/v1/auth/register", &body, &[]).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let tokens: TokenResponse = made.read();
    assert_eq!((tokens.user.role, me(&replica, &tokens.access_token).await), (UserRole::User, 200));
    assert_eq!(replica.send("POST", "/api/v1/auth/register", &body, &[]).await.problem().code, ErrorCode::Duplicate);
    assert_eq!(login(&replica, "ann", PASSWORD).await.status, 200);
}

#[tokio::test]
async fn refresh_tokens_rotate_and_a_lost_answer_signs_nobody_out() {
    let replica = Replica::boot().await;
    replica.user("ann", UserRole::User).await;
    let first = replica.login("ann").await;
    let second: TokenResponse = refresh(&replica, &first.refresh_token).await.read();
    let again: TokenResponse = refresh(&replica, &first.refresh_token).await.read();
    assert_ne!(first.refresh_token, second.refresh_token);
    assert_eq!((&second.refresh_token, second.session_id), (&again.refresh_token, first.session_id));
    let third: TokenResponse = refresh(&replica, &second.refresh_token).await.read();
    assert_eq!(me(&replica, &third.access_token).await, 200);
    assert_eq!(me(&replica, &first.access_token).await, 200, "access tokens work until they expire");

    // The first is older than what its answer could have been lost for: somebody has a copy.
    let reused = refresh(&replica, &first.refresh_token).await;
    let mut bodies = Vec::new();
    let ended = refresh(&replica, &third.refresh_token).await;
    let unknown = refresh(&replica, "sbr_unknown").await;
    let nonsense = refresh(&replica, &"x".repeat(1000)).await;
    for answer in [reused, ended, unknown, nonsense] {
        let mut problem = answer.problem();
        problem.request_id.clear();
        assert_eq!(problem.status, 401);
        bodies.push(problem);
    }
    assert!(bodies.windows(2).all(|two| two[0] == two[1]));
    assert_eq!(me(&replica, &third.access_token).await, 401);
}

#[tokio::test]
async fn signing_out_acts_at_once_here_or_everywhere() {
    let replica = Replica::boot().await;
    replica.user("ann", UserRole::User).await;
    let (a, b, c) = (replica.login("ann").await, replica.login("ann").await, replica.login("ann").await);
    let logout =
        async |token: &str, body: &str| replica.ask_as(token, "POST", "/api/v1/auth/logout", body).await.status;
    assert_eq!(logout(&a.access_token, "").await, 204);
    assert_eq!(logout(&a.access_token, "").await, 401);
    assert_eq!(refresh(&replica, &a.refresh_token).await.status, 401);
    assert_eq!(me(&replica, &b.access_token).await, 200);
    let path = format!("/api/v1/auth/sessions/{}", c.session_id);
    assert_eq!(replica.ask_as(&b.access_token, "DELETE", &path, "").await.status, 204);
    assert_eq!(replica.ask_as(&b.access_token, "DELETE", &path, "").await.status, 404);
    assert_eq!(me(&replica, &c.access_token).await, 401);
    let d = replica.login("ann").await;
    assert_eq!(logout(&d.access_token, r#"{"everywhere":true}"#).await, 204);
    assert_eq!((me(&replica, &b.access_token).await, me(&replica, &d.access_token).await), (401, 401));
}

#[tokio::test]
async fn a_new_password_needs_the_old_one_and_ends_the_other_sessions() {
    let replica = Replica::boot().await;
    replica.user("ann", UserRole::User).await;
    let (here, there) = (replica.login("ann").await, replica.login("ann").await);
    let change = async |body: Value| {
        replica.ask_as(&here.access_token, "POST", "/api/v1/auth/password", &body.to_string()).await
    };
    for body in [json!({"new": "wrong horse"}), json!({"current": "x", "new": "wrong horse"})] {
        let problem = change(body).await.problem();
        assert_eq!((problem.status, problem.errors[0].field.as_str()), (422, "current"));
    }
    let short = change(json!({"current": PASSWORD, "new": "short"})).await.problem();
    assert_eq!((short.status, short.errors[0].field.as_str()), (422, "new"));
    assert_eq!(me(&replica, &there.access_token).await, 200);
    assert_eq!(change(json!({"current": PASSWORD, "new": "wrong horse"})).await.status, 204);
    assert_eq!((me(&replica, &here.access_token).await, me(&replica, &there.access_token).await), (200, 401));
    assert_eq!(login(&replica, "ann", PASSWORD).await.status, 401);
    assert_eq!(login(&replica, "ann", "wrong horse").await.status, 200);
}

#[tokio::test]
async fn roles_and_revocations_act_on_the_next_request() {
    let replica = Replica::boot().await;
    let ann = replica.user("ann", UserRole::User).await;
    let path = format!("/api/v1/users/{}", ann.id);
    let tokens = replica.login("ann").await;
    let put = async |version: i64, role: &str, is_disabled: bool| {
        let body = json!({"version": version, "role": role, "is_disabled": is_disabled}).to_string();
        replica.ask("PUT", &path, &body).await.status
    };
    let tasks = async |token: &str| replica.ask_as(token, "GET", "/api/v1/tasks", "").await.status;
    assert_eq!(tasks(&tokens.access_token).await, 403);
    assert_eq!(put(1, "operator", false).await, 200);
    assert_eq!(tasks(&tokens.access_token).await, 401, "another role is signed in anew");
    let tokens = replica.login("ann").await;
    assert_eq!(tasks(&tokens.access_token).await, 200);
    assert_eq!(put(2, "operator", true).await, 200);
    assert_eq!(tasks(&tokens.access_token).await, 401);
    assert_eq!(put(3, "operator", false).await, 200);
    assert_eq!(tasks(&tokens.access_token).await, 401, "the session is gone for good");
    assert_eq!(refresh(&replica, &tokens.refresh_token).await.status, 401);
    let tokens = replica.login("ann").await;
    assert_eq!(replica.ask("DELETE", &path, "").await.status, 204);
    assert_eq!(me(&replica, &tokens.access_token).await, 401);
}

#[tokio::test]
async fn a_hash_of_outdated_cost_is_replaced_at_the_next_login() {
    let mut replica = Replica::boot().await;
    replica.user("ann", UserRole::User).await;
    replica.sign_in_by(|auth| auth.hashing = switchboard_http::Hashing::new(16, 1, 1).unwrap());
    assert_eq!(login(&replica, "ann", "wrong horse").await.status, 401);
    let stored = async || {
        let login = replica.api.stores.users.find_login(&"ann".parse().unwrap()).await.unwrap().unwrap();
        login.password.unwrap().as_phc().to_owned()
    };
    assert!(stored().await.contains("m=8,"));
    replica.login("ann").await;
    assert!(stored().await.contains("m=16,"));
    replica.login("ann").await;
}

#[tokio::test]
async fn the_audit_log_tells_of_sign_in_without_secrets() {
    let replica = Replica::boot().await;
    let ann = replica.user("ann", UserRole::User).await;
    let tokens = replica.login("ann").await;
    let body = json!({"current": PASSWORD, "new": "wrong horse"}).to_string();
    replica.ask_as(&tokens.access_token, "POST", "/api/v1/auth/password", &body).await;
    let next: TokenResponse = refresh(&replica, &tokens.refresh_token).await.read();
    refresh(&replica, &next.refresh_token).await;
    refresh(&replica, &tokens.refresh_token).await;
    let page = PageRequest::default();
    let list = replica.api.stores.audit.list(&AuditFilter::default(), AuditOrder::OldestFirst, &page).await.unwrap();
    let told: Vec<_> = list.items.iter().map(|entry| (entry.action.as_str(), entry.actor.as_str())).collect();
    let ann = format!("user:{}", ann.id);
    assert_eq!(told[0].0, "user.create");
    assert_eq!(
        told[1..],
        [("auth.login", &*ann), ("auth.set_password", &*ann), ("auth.refresh_reused", "system:auth")]
    );
    let text = serde_json::to_string(&list.items).unwrap();
    for secret in [PASSWORD, "wrong horse", "argon2", "sbr_", &tokens.access_token] {
        assert!(!text.contains(secret), "{text}");
    }
}
