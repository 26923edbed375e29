//! Who may use which route.

use std::collections::HashSet;

use serde_json::{Value, json};
use switchboard_http::{Access, ROUTES};
use switchboard_model::scope::Scope;
use switchboard_model::user::UserRole;
use switchboard_model::wire::code::ErrorCode;

use crate::harness::{PASSWORD, Replica};

/// What every route asks for. A route that is not listed here fails the suite.
const EXPECTED: &[(&str, &str, &str)] = &[
    ("GET", "/healthz/live", "anonymous"),
    ("GET", "/healthz/ready", "anonymous"),
    ("GET", "/metrics", "anonymous"),
    ("GET", "/openapi.json", "anonymous"),
    ("GET", "/sdk/switchboard.js", "anonymous"),
    ("GET", "/sdk/switchboard.d.ts", "anonymous"),
    ("GET", "/asyncapi.json", "anonymous"),
    ("GET", "/ws", "ticket"),
    ("POST", "/api/v1/ws/ticket", "signed in"),
    ("POST", "/api/v1/auth/register", "login"),
    ("POST", "/api/v1/auth/login", "login"),
    ("POST", "/api/v1/auth/refresh", "login"),
    ("POST", "/api/v1/auth/logout", "signed in"),
    ("GET", "/api/v1/auth/me", "signed in"),
    ("GET", "/api/v1/auth/sessions", "signed in"),
    ("DELETE", "/api/v1/auth/sessions/{id}", "signed in"),
    ("POST", "/api/v1/auth/password", "signed in"),
    ("POST", "/api/v1/users", "users:*"),
    ("GET", "/api/v1/users", "users:*"),
    ("GET", "/api/v1/users/{id}", "users:*"),
    ("PUT", "/api/v1/users/{id}", "users:*"),
    ("DELETE", "/api/v1/users/{id}", "users:*"),
    ("PUT", "/api/v1/users/{id}/password", "users:*"),
    ("GET", "/api/v1/users/{id}/sessions", "users:*"),
    ("DELETE", "/api/v1/users/{id}/sessions", "users:*"),
    ("POST", "/hooks/{*task}", "signature"),
    ("POST", "/api/v1/tasks", "tasks:write"),
    ("GET", "/api/v1/tasks", "tasks:read"),
    ("POST", "/api/v1/tasks/preview", "tasks:read"),
    ("POST", "/api/v1/tasks/bulk", "tasks:write"),
    ("GET", "/api/v1/tasks/by-name/{*name}", "tasks:read"),
    ("PUT", "/api/v1/tasks/by-name/{*name}", "tasks:write"),
    ("GET", "/api/v1/tasks/{id}", "tasks:read"),
    ("PUT", "/api/v1/tasks/{id}", "tasks:write"),
    ("DELETE", "/api/v1/tasks/{id}", "tasks:write"),
    ("POST", "/api/v1/tasks/{id}/trigger", "tasks:write"),
    ("POST", "/api/v1/tasks/{id}/pause", "tasks:write"),
    ("POST", "/api/v1/tasks/{id}/resume", "tasks:write"),
    ("GET", "/api/v1/tasks/{id}/skips", "tasks:read"),
    ("GET", "/api/v1/tasks/{id}/occurrences", "tasks:read"),
    ("POST", "/api/v1/tasks/{id}/webhook-secrets", "tasks:write"),
    ("GET", "/api/v1/tasks/{id}/webhook-secrets", "tasks:read"),
    ("DELETE", "/api/v1/tasks/{id}/webhook-secrets/{secret_id}", "tasks:write"),
    ("GET", "/api/v1/runs", "runs:read"),
    ("POST", "/api/v1/runs/bulk", "tasks:write"),
    ("POST", "/api/v1/runs/redrive", "runs:write"),
    ("GET", "/api/v1/runs/{id}", "runs:read"),
    ("POST", "/api/v1/runs/{id}/cancel", "runs:write"),
    ("POST", "/api/v1/runs/{id}/retry", "runs:write"),
    ("POST", "/api/v1/pools/{pool}/lease", "work:default"),
    ("POST", "/api/v1/runs/{id}/heartbeat", "work:"),
    ("POST", "/api/v1/runs/{id}/finish", "work:"),
    ("POST", "/api/v1/runs/{id}/fail", "work:"),
    ("POST", "/api/v1/runs/{id}/release", "work:"),
    ("POST", "/api/v1/runs/{id}/output", "work:"),
    ("GET", "/api/v1/runs/{id}/output", "runs:read"),
    ("POST", "/api/v1/streams", "streams:write"),
    ("GET", "/api/v1/streams", "streams:read"),
    ("GET", "/api/v1/streams/{id}", "streams:read, or the user of the stream"),
    ("POST", "/api/v1/streams/{id}/chunks", "streams:write"),
    ("GET", "/api/v1/streams/{id}/chunks", "streams:read, or the user of the stream"),
    ("POST", "/api/v1/streams/{id}/close", "streams:write"),
    ("POST", "/api/v1/streams/{id}/stop", "streams:write, or the user of the stream"),
    ("POST", "/api/v1/rooms", "rooms:write"),
    ("GET", "/api/v1/rooms", "rooms:read"),
    ("GET", "/api/v1/rooms/{name}", "rooms:read"),
    ("DELETE", "/api/v1/rooms/{name}", "rooms:write"),
    ("GET", "/api/v1/rooms/{name}/presence", "rooms:read"),
    ("POST", "/api/v1/rooms/{name}/events", "publish:lobby"),
    ("GET", "/api/v1/rooms/{name}/events", "rooms:read"),
    ("POST", "/api/v1/users/{id}/events", "publish:user:0190a0b0-0000-7000-8000-000000000000"),
    ("GET", "/api/v1/events", "signed in"),
    ("POST", "/api/v1/users/{id}/calls", "calls:write"),
    ("GET", "/api/v1/calls/{id}", "calls:write"),
    ("GET", "/api/v1/sessions", "admin"),
    ("DELETE", "/api/v1/sessions/{id}", "admin"),
    ("POST", "/api/v1/limits/{key}/take", "coordination:*"),
    ("GET", "/api/v1/leases", "coordination:*"),
    ("GET", "/api/v1/leases/{key}", "coordination:*"),
    ("POST", "/api/v1/leases/{key}/acquire", "coordination:*"),
    ("POST", "/api/v1/leases/{key}/renew", "coordination:*"),
    ("POST", "/api/v1/leases/{key}/release", "coordination:*"),
    ("POST", "/api/v1/leases/{key}/seize", "coordination:*"),
    ("GET", "/api/v1/once/{scope}/{key}", "coordination:*"),
    ("POST", "/api/v1/once/{scope}/{key}/claim", "coordination:*"),
    ("POST", "/api/v1/once/{scope}/{key}/complete", "coordination:*"),
    ("POST", "/api/v1/once/{scope}/{key}/abandon", "coordination:*"),
    ("POST", "/api/v1/once/{scope}/{key}/take-over", "coordination:*"),
    ("POST", "/api/v1/once/{scope}/{key}/consume", "coordination:*"),
    ("GET", "/api/v1/state/{ns}", "coordination:*"),
    ("GET", "/api/v1/state/{ns}/{key}", "coordination:*"),
    ("PUT", "/api/v1/state/{ns}/{key}", "coordination:*"),
    ("DELETE", "/api/v1/state/{ns}/{key}", "coordination:*"),
    ("GET", "/api/v1/secrets", "secrets:read"),
    ("GET", "/api/v1/secrets/{name}", "secrets:read"),
    ("PUT", "/api/v1/secrets/{name}", "secrets:write"),
    ("DELETE", "/api/v1/secrets/{name}", "secrets:write"),
    ("GET", "/api/v1/sealing", "secrets:read"),
    ("POST", "/api/v1/sealing/rewrap", "admin"),
    ("GET", "/api/v1/tokens", "secrets:read"),
    ("GET", "/api/v1/tokens/{name}", "secrets:read"),
    ("PUT", "/api/v1/tokens/{name}", "secrets:write"),
    ("DELETE", "/api/v1/tokens/{name}", "secrets:write"),
    ("POST", "/api/v1/tokens/{name}/access", "tokens:access:lobby"),
    ("GET", "/api/v1/instances", "admin"),
    ("GET", "/api/v1/settings/fleet", "admin"),
    ("PUT", "/api/v1/settings/fleet", "admin"),
    ("POST", "/api/v1/api-keys", "admin"),
    ("GET", "/api/v1/api-keys", "admin"),
    ("DELETE", "/api/v1/api-keys/{id}", "admin"),
    ("GET", "/api/v1/outbox/failed", "admin"),
    ("GET", "/api/v1/test-clock", "admin"),
    ("POST", "/api/v1/test-clock", "admin"),
    ("GET", "/api/v1/audit", "admin"),
    ("GET", "/api/v1/audit/export", "admin"),
];

fn filled(path: &str) -> String {
    let id = "0190a0b0-0000-7000-8000-000000000000";
    let path = path.replace("{id}", id).replace("{secret_id}", id).replace("{key}", "k").replace("{pool}", "default");
    let path = path.replace("{scope}", "mail").replace("{ns}", "mail");
    path.replace("{name}", "lobby").replace("{*name}", "lobby")
}

#[test]
fn every_route_is_listed_with_what_it_asks_for() {
    let served: Vec<_> = ROUTES.iter().map(|route| (route.method.as_str(), route.path)).collect();
    let expected: Vec<_> = EXPECTED.iter().map(|(method, path, _)| (*method, *path)).collect();
    assert_eq!(served, expected);
    for (route, (_, _, wanted)) in ROUTES.iter().zip(EXPECTED) {
        let access = match &route.access {
            Access::Anonymous => "anonymous".to_owned(),
            Access::Login => "login".to_owned(),
            Access::SignedIn => "signed in".to_owned(),
            Access::Ticket => "ticket".to_owned(),
            Access::Signature => "signature".to_owned(),
            Access::Scope(scope) => scope.to_string(),
            Access::Stream(scope) => format!("{scope}, or the user of the stream"),
            Access::Publish | Access::Token | Access::Work => (*wanted).to_owned(),
        };
        assert_eq!(access, *wanted, "{}", route.path);
    }
}

/// Asks for a route without a credential, and with one that is wrong.
async fn refuses_strangers(replica: &Replica, method: &str, path: &str) {
    let mut missing = replica.send(method, path, "{}", &[]).await.problem();
    let wrong = replica.ask_as("sbk_wrong", method, path, "{}").await;
    assert_eq!(wrong.header("www-authenticate"), Some("Bearer"));
    let wrong = wrong.problem();
    missing.request_id.clone_from(&wrong.request_id);
    assert_eq!((missing.status, missing.code), (401, ErrorCode::Unauthorized), "{method} {path}");
    assert_eq!(missing, wrong, "a wrong key is told from a missing one");
}

#[tokio::test]
async fn every_route_refuses_callers_without_a_credential_and_without_the_scope() {
    let replica = Replica::boot().await;
    let all = [
        Scope::TasksWrite,
        Scope::RunsWrite,
        Scope::RoomsWrite,
        Scope::StreamsWrite,
        Scope::Users,
        Scope::SecretsWrite,
        Scope::SecretsUse(String::new()),
        Scope::TokensAccess(String::new()),
        Scope::Publish(String::new()),
    ];
    let user = replica.token("ann", UserRole::User).await;
    for (method, path, wanted) in EXPECTED.iter().filter(|(_, path, _)| path.starts_with("/api/")) {
        let path = filled(path);
        if *wanted == "login" {
            continue;
        }
        refuses_strangers(&replica, method, &path).await;
        let Ok(wanted) = wanted.parse::<Scope>() else { continue };
        let others: Vec<Scope> = all.iter().filter(|scope| !scope.grants(&wanted)).cloned().collect();
        let others: Vec<Scope> = match wanted {
            // Targeted events are open to those who administer users, too.
            Scope::Publish(_) => others.into_iter().filter(|scope| *scope != Scope::Users).collect(),
            _ => others,
        };
        for bearer in [&replica.key(&others).await, &user] {
            let lacking = replica.ask_as(bearer, method, &path, "{}").await.problem();
            assert_eq!((lacking.status, lacking.code), (403, ErrorCode::Forbidden), "{method} {path}");
            assert!(lacking.detail.contains(&wanted.to_string()), "{}", lacking.detail);
        }
        let granted = replica.ask_as(&replica.key(&[wanted]).await, method, &path, "{}").await;
        assert!(![401, 403, 500].contains(&granted.status), "{method} {path}: {}", granted.text());
    }
}

#[tokio::test]
async fn routes_for_everybody_with_a_credential_give_each_only_their_own() {
    let replica = Replica::boot().await;
    replica.user("ann", UserRole::User).await;
    replica.user("bob", UserRole::Admin).await;
    let bob = replica.login("bob").await;
    let key = replica.key(&[Scope::TasksWrite]).await;
    let session_of_bob = format!("/api/v1/auth/sessions/{}", bob.session_id);
    let password = json!({"current": PASSWORD, "new": "wrong horse"}).to_string();
    // What Ann gets, and what a key without the scopes gets.
    let cases = [
        ("POST", "/api/v1/ws/ticket", "{}", 201, 403),
        ("POST", "/api/v1/ws/ticket", r#"{"user_id":"ann"}"#, 403, 403),
        ("POST", "/api/v1/auth/logout", "{}", 204, 403),
        ("GET", "/api/v1/auth/me", "", 200, 200),
        ("GET", "/api/v1/auth/sessions", "", 200, 403),
        ("DELETE", &session_of_bob, "", 404, 403),
        // Without rooms there is nothing to listen to.
        ("GET", "/api/v1/events", "", 400, 403),
        // The last one, since nobody signs in with the old password afterwards.
        ("POST", "/api/v1/auth/password", &password, 204, 403),
    ];
    let covered: HashSet<_> = cases
        .iter()
        .map(|(method, path, ..)| (*method, path.replace(&session_of_bob, "/api/v1/auth/sessions/{id}")))
        .collect();
    let all: HashSet<_> =
        EXPECTED.iter().filter(|case| case.2 == "signed in").map(|case| (case.0, case.1.to_owned())).collect();
    assert_eq!(covered, all);
    for (method, path, body, as_user, as_key) in cases {
        let ann = replica.login("ann").await.access_token;
        let answer = replica.ask_as(&ann, method, path, body).await;
        assert_eq!(answer.status, as_user, "{method} {path}: {}", answer.text());
        assert!(!answer.text().contains(bob.user.id.as_str()));
        let answer = replica.ask_as(&key, method, path, body).await;
        assert_eq!(answer.status, as_key, "{method} {path}: {}", answer.text());
    }
    assert_eq!(replica.ask_as(&bob.access_token, "GET", "/api/v1/auth/me", "").await.status, 200);
}

#[tokio::test]
async fn a_revoked_key_stops_working_at_once() {
    let replica = Replica::boot().await;
    let made = replica.ask("POST", "/api/v1/api-keys", r#"{"name":"k","scopes":["tasks:read"]}"#).await.json();
    let bearer = format!("Bearer {}", made["secret"].as_str().unwrap());
    let list = async || replica.send("GET", "/api/v1/tasks", "", &[("authorization", &bearer)]).await.status;
    assert_eq!(list().await, 200);
    let path = format!("/api/v1/api-keys/{}", made["key"]["id"].as_str().unwrap());
    assert_eq!(replica.ask("DELETE", &path, "").await.status, 204);
    assert_eq!(list().await, 401);
    assert_eq!(replica.ask("DELETE", &path, "").await.problem().status, 404);
}

#[tokio::test]
async fn only_keys_and_operators_learn_who_answers() {
    let replica = Replica::boot().await;
    let instance = replica.api.options.instance.to_string();
    let operator = replica.token("olga", UserRole::Operator).await;
    let user = replica.token("ann", UserRole::User).await;
    for (bearer, shown) in [(&replica.admin, Some(&*instance)), (&operator, Some(&*instance)), (&user, None)] {
        let answer = replica.ask_as(bearer, "GET", "/api/v1/auth/me", "").await;
        assert_eq!(answer.header("x-switchboard-instance"), shown);
    }
    for path in ["/healthz/live", "/healthz/ready", "/api/v1/tasks", "/nowhere"] {
        let answer = replica.send("GET", path, "", &[]).await;
        assert!(!answer.text().contains(&instance) && answer.header("x-switchboard-instance").is_none(), "{path}");
    }
}

#[tokio::test]
async fn a_ticket_grants_no_more_than_its_maker_may() {
    let replica = Replica::boot().await;
    let key = replica.key(&[Scope::RoomsWrite, Scope::Publish("chat:".into())]).await;
    let mint = async |publish: &str| {
        let body = format!(r#"{{"user_id":"ann","grants":{{"publish":["{publish}"]}}}}"#);
        replica.ask_as(&key, "POST", "/api/v1/ws/ticket", &body).await.status
    };
    assert_eq!(mint("chat:1").await, 201);
    assert_eq!(mint("chat:*").await, 201);
    assert_eq!(mint("*").await, 403);
    assert_eq!(mint("lobby").await, 403);
}

#[tokio::test]
async fn users_mint_tickets_for_themselves_and_operators_for_others() {
    let replica = Replica::boot().await;
    let (ann, olga) = (replica.user("ann", UserRole::User).await, replica.user("olga", UserRole::Operator).await);
    let (user, operator) = (replica.login("ann").await.access_token, replica.login("olga").await.access_token);
    let mint = async |bearer: &str, body: Value| {
        replica.ask_as(bearer, "POST", "/api/v1/ws/ticket", &body.to_string()).await.status
    };
    assert_eq!(mint(&user, json!({"user_id": ann.id})).await, 201);
    assert_eq!(mint(&user, json!({"user_id": olga.id})).await, 403);
    assert_eq!(mint(&user, json!({"grants": {"join": ["club:1"]}})).await, 403);
    assert_eq!(mint(&user, json!({"grants": {"publish": ["lobby"]}})).await, 403);
    let all = json!({"user_id": ann.id, "grants": {"join": ["*"], "publish": ["*"]}});
    assert_eq!(mint(&operator, all).await, 201);
    assert_eq!(mint(&operator, json!({})).await, 201);
}

#[tokio::test]
async fn a_ticket_is_made_once_and_never_shown_again() {
    let replica = Replica::boot().await;
    let mint =
        async |body: &str| replica.ask_with("POST", "/api/v1/ws/ticket", body, &[("idempotency-key", "k")]).await;
    let made = mint(r#"{"user_id":"ann"}"#).await;
    assert_eq!(made.status, 201);
    let again = mint(r#"{"user_id":"ann"}"#).await;
    assert_eq!(again.problem().code, ErrorCode::Duplicate);
    assert!(!again.text().contains("sbt_"));
    assert_eq!(mint(r#"{"user_id":"bob"}"#).await.problem().code, ErrorCode::IdempotencyMismatch);
}

#[tokio::test]
async fn a_task_publishes_no_more_than_its_maker_may() {
    let replica = Replica::boot().await;
    let key = replica.key(&[Scope::TasksWrite, Scope::Publish("chat:".into())]).await;
    let spec = |room: &str| json!({"name": "tick", "action": {"event": {"to": {"room": room}, "event": "tick"}}});
    let create = async |room: &str| replica.ask_as(&key, "POST", "/api/v1/tasks", &spec(room).to_string()).await;
    assert_eq!(create("lobby").await.problem().code, ErrorCode::Forbidden);
    let made = create("chat:1").await;
    assert_eq!(made.status, 201, "{}", made.text());
    let path = format!("/api/v1/tasks/{}", made.json()["id"].as_str().unwrap());
    let put = json!({"version": 1, "spec": spec("lobby")}).to_string();
    assert_eq!(replica.ask_as(&key, "PUT", &path, &put).await.problem().code, ErrorCode::Forbidden);
}
