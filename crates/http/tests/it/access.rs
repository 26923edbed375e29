//! Who may use which route.

use switchboard_http::{Access, ROUTES};
use switchboard_model::scope::Scope;
use switchboard_model::wire::code::ErrorCode;

use crate::harness::Replica;

/// What every route asks for. A route that is not listed here fails the suite.
const EXPECTED: &[(&str, &str, &str)] = &[
    ("GET", "/healthz/live", "anonymous"),
    ("GET", "/healthz/ready", "anonymous"),
    ("GET", "/metrics", "anonymous"),
    ("GET", "/ws", "ticket"),
    ("POST", "/api/v1/ws/ticket", "rooms:write"),
    ("POST", "/api/v1/tasks", "tasks:write"),
    ("GET", "/api/v1/tasks", "tasks:read"),
    ("POST", "/api/v1/tasks/preview", "tasks:read"),
    ("GET", "/api/v1/tasks/by-name/{name}", "tasks:read"),
    ("GET", "/api/v1/tasks/{id}", "tasks:read"),
    ("PUT", "/api/v1/tasks/{id}", "tasks:write"),
    ("DELETE", "/api/v1/tasks/{id}", "tasks:write"),
    ("POST", "/api/v1/tasks/{id}/trigger", "tasks:write"),
    ("POST", "/api/v1/tasks/{id}/pause", "tasks:write"),
    ("POST", "/api/v1/tasks/{id}/resume", "tasks:write"),
    ("GET", "/api/v1/tasks/{id}/skips", "tasks:read"),
    ("GET", "/api/v1/runs", "runs:read"),
    ("GET", "/api/v1/runs/{id}", "runs:read"),
    ("POST", "/api/v1/runs/{id}/cancel", "runs:write"),
    ("POST", "/api/v1/runs/{id}/retry", "runs:write"),
    ("POST", "/api/v1/rooms", "rooms:write"),
    ("GET", "/api/v1/rooms", "rooms:read"),
    ("GET", "/api/v1/rooms/{name}", "rooms:read"),
    ("DELETE", "/api/v1/rooms/{name}", "rooms:write"),
    ("POST", "/api/v1/rooms/{name}/events", "publish:lobby"),
    ("GET", "/api/v1/rooms/{name}/events", "rooms:read"),
    ("POST", "/api/v1/users/{id}/events", "publish:user:0190a0b0-0000-7000-8000-000000000000"),
    ("POST", "/api/v1/limits/{key}/take", "coordination:*"),
    ("GET", "/api/v1/instances", "admin"),
    ("GET", "/api/v1/settings/fleet", "admin"),
    ("PUT", "/api/v1/settings/fleet", "admin"),
    ("POST", "/api/v1/api-keys", "admin"),
    ("GET", "/api/v1/api-keys", "admin"),
    ("DELETE", "/api/v1/api-keys/{id}", "admin"),
];

fn filled(path: &str) -> String {
    path.replace("{id}", "0190a0b0-0000-7000-8000-000000000000").replace("{name}", "lobby").replace("{key}", "k")
}

#[test]
fn every_route_is_listed_with_what_it_asks_for() {
    let served: Vec<_> = ROUTES.iter().map(|route| (route.method.as_str(), route.path)).collect();
    let expected: Vec<_> = EXPECTED.iter().map(|(method, path, _)| (*method, *path)).collect();
    assert_eq!(served, expected);
    for (route, (_, _, wanted)) in ROUTES.iter().zip(EXPECTED) {
        let access = match &route.access {
            Access::Anonymous => "anonymous".to_owned(),
            Access::Ticket => "ticket".to_owned(),
            Access::Scope(scope) => scope.to_string(),
            Access::Publish => (*wanted).to_owned(),
        };
        assert_eq!(access, *wanted, "{}", route.path);
    }
}

#[tokio::test]
async fn every_route_refuses_callers_without_a_key_and_without_the_scope() {
    let replica = Replica::boot().await;
    let all = [Scope::TasksWrite, Scope::RunsWrite, Scope::RoomsWrite, Scope::Users, Scope::Publish(String::new())];
    for (method, path, wanted) in EXPECTED.iter().filter(|(_, path, _)| path.starts_with("/api/")) {
        let path = filled(path);
        let ask = async |authorization: Option<String>| {
            let headers: Vec<_> = authorization.iter().map(|value| ("authorization", value.as_str())).collect();
            replica.send(method, &path, "{}", &headers).await
        };
        let mut missing = ask(None).await.problem();
        let wrong = ask(Some("Bearer sbk_wrong".into())).await;
        assert_eq!(wrong.header("www-authenticate"), Some("Bearer"));
        let wrong = wrong.problem();
        missing.request_id.clone_from(&wrong.request_id);
        assert_eq!((missing.status, missing.code), (401, ErrorCode::Unauthorized), "{method} {path}");
        assert_eq!(missing, wrong, "a wrong key is told from a missing one");

        let wanted: Scope = wanted.parse().unwrap();
        let others: Vec<Scope> = all.iter().filter(|scope| !scope.grants(&wanted)).cloned().collect();
        let others: Vec<Scope> = match wanted {
            // Targeted events are open to those who administer users, too.
            Scope::Publish(_) => others.into_iter().filter(|scope| *scope != Scope::Users).collect(),
            _ => others,
        };
        let lacking = ask(Some(format!("Bearer {}", replica.key(&others).await))).await.problem();
        assert_eq!((lacking.status, lacking.code), (403, ErrorCode::Forbidden), "{method} {path}");
        assert!(lacking.detail.contains(&wanted.to_string()), "{}", lacking.detail);

        let granted = ask(Some(format!("Bearer {}", replica.key(&[wanted]).await))).await;
        assert!(![401, 403, 500].contains(&granted.status), "{method} {path}: {}", granted.text());
    }
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
async fn only_callers_with_a_key_learn_who_answers() {
    let replica = Replica::boot().await;
    let instance = replica.api.options.instance.to_string();
    assert_eq!(replica.ask("GET", "/api/v1/tasks", "").await.header("x-switchboard-instance"), Some(&*instance));
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
        let bearer = format!("Bearer {key}");
        replica.send("POST", "/api/v1/ws/ticket", &body, &[("authorization", &bearer)]).await.status
    };
    assert_eq!(mint("chat:1").await, 201);
    assert_eq!(mint("chat:*").await, 201);
    assert_eq!(mint("*").await, 403);
    assert_eq!(mint("lobby").await, 403);
}
