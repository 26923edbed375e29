//! Every error is a problem document.

use switchboard_model::wire::code::ErrorCode;

use crate::harness::Replica;

const ID: &str = "0190a0b0-0000-7000-8000-000000000000";

#[tokio::test]
async fn every_form_of_error_is_a_problem_document() {
    let replica = Replica::boot().await;
    let task = format!("/api/v1/tasks/{ID}");
    let trigger = format!("{task}/trigger");
    let cases: &[(&str, &str, &str, u16, ErrorCode)] = &[
        ("GET", "/", "", 404, ErrorCode::NotFound),
        ("GET", "/api/v1/nothing", "", 404, ErrorCode::NotFound),
        ("PATCH", "/api/v1/tasks", "", 405, ErrorCode::BadRequest),
        ("DELETE", "/healthz/live", "", 405, ErrorCode::BadRequest),
        ("GET", &task, "", 404, ErrorCode::NotFound),
        (
            "PUT",
            &task,
            r#"{"version":1,"spec":{"name":"a","action":{"system":{"function":"f"}}}}"#,
            404,
            ErrorCode::NotFound,
        ),
        ("DELETE", &task, "", 404, ErrorCode::NotFound),
        ("POST", &trigger, "", 404, ErrorCode::NotFound),
        ("GET", "/api/v1/tasks/by-name/none", "", 404, ErrorCode::NotFound),
        ("GET", "/api/v1/tasks/no-uuid", "", 400, ErrorCode::BadRequest),
        ("GET", "/api/v1/tasks/%ff", "", 400, ErrorCode::BadRequest),
        ("GET", "/api/v1/runs/7", "", 400, ErrorCode::BadRequest),
        ("GET", "/api/v1/rooms/Lobby", "", 422, ErrorCode::RoomNameInvalid),
        ("GET", "/api/v1/rooms/lobby", "", 404, ErrorCode::NotFound),
        ("GET", "/api/v1/rooms/lobby/events", "", 404, ErrorCode::NotFound),
        ("GET", "/api/v1/tasks?limit=0", "", 422, ErrorCode::ValidationFailed),
        ("GET", "/api/v1/tasks?limit=501", "", 422, ErrorCode::ValidationFailed),
        ("GET", "/api/v1/tasks?limit=many", "", 400, ErrorCode::BadRequest),
        ("GET", "/api/v1/tasks?colour=red", "", 400, ErrorCode::BadRequest),
        ("GET", "/api/v1/tasks?cursor=nonsense", "", 422, ErrorCode::ValidationFailed),
        ("GET", "/api/v1/rooms?cursor=a%00", "", 400, ErrorCode::BadRequest),
        ("GET", "/api/v1/runs?state=sleeping", "", 400, ErrorCode::BadRequest),
        ("GET", "/api/v1/runs?cursor=nonsense", "", 422, ErrorCode::ValidationFailed),
        ("GET", "/api/v1/instances?cursor=nonsense", "", 422, ErrorCode::ValidationFailed),
        ("GET", "/api/v1/rooms/lobby/events?after=-1", "", 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/tasks", "{", 400, ErrorCode::BadRequest),
        ("POST", "/api/v1/tasks", "{}", 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/tasks", "[]", 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/tasks", "\"\\ud800\"", 400, ErrorCode::BadRequest),
        ("POST", "/api/v1/rooms", r#"{"name":"user:ann"}"#, 422, ErrorCode::RoomNameInvalid),
        ("POST", "/api/v1/rooms", r#"{"name":"lobby","kind":"user"}"#, 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/rooms", r#"{"name":"lobby","colour":"red"}"#, 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/rooms/lobby/events", r#"{"event":"tick","payload":1}"#, 404, ErrorCode::NotFound),
        ("POST", "/api/v1/rooms/lobby/events", r#"{"events":[]}"#, 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/ws/ticket", r#"{"user_id":"a b"}"#, 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/ws/ticket", "{}", 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/auth/login", "{}", 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/auth/login", r#"{"name":"Ann","password":"x"}"#, 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/auth/register", r#"{"name":"ann","password":"x"}"#, 404, ErrorCode::NotFound),
        ("POST", "/api/v1/auth/refresh", r#"{"refresh_token":"sbr_x"}"#, 401, ErrorCode::Unauthorized),
        ("POST", "/api/v1/auth/logout", "", 403, ErrorCode::Forbidden),
        ("DELETE", "/api/v1/auth/sessions/7", "", 400, ErrorCode::BadRequest),
        ("POST", "/api/v1/users", r#"{"name":"ann","role":"root"}"#, 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/users", r#"{"name":"ann","password":"short"}"#, 422, ErrorCode::ValidationFailed),
        ("GET", "/api/v1/users/nobody", "", 404, ErrorCode::NotFound),
        ("PUT", "/api/v1/users/nobody", r#"{"version":1,"role":"user","is_disabled":false}"#, 404, ErrorCode::NotFound),
        ("DELETE", "/api/v1/users/nobody", "", 404, ErrorCode::NotFound),
        ("PUT", "/api/v1/users/nobody/password", r#"{"new":"correct horse"}"#, 404, ErrorCode::NotFound),
        ("GET", "/api/v1/users/nobody/sessions", "", 404, ErrorCode::NotFound),
        ("DELETE", "/api/v1/users/nobody/sessions", "", 404, ErrorCode::NotFound),
        ("PUT", "/api/v1/settings/fleet", r#"{"version":7,"value":{}}"#, 409, ErrorCode::VersionMismatch),
        ("POST", "/api/v1/api-keys", r#"{"name":"","scopes":["admin"]}"#, 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/api-keys", r#"{"name":"k","scopes":[]}"#, 422, ErrorCode::ValidationFailed),
        ("POST", "/api/v1/api-keys", r#"{"name":"k","scopes":["root"]}"#, 422, ErrorCode::ValidationFailed),
        ("GET", "/ws", "", 400, ErrorCode::BadRequest),
    ];
    for (method, path, body, status, code) in cases {
        let problem = replica.ask(method, path, body).await.problem();
        assert_eq!((problem.status, problem.code), (*status, *code), "{method} {path} {body}: {}", problem.detail);
    }
}

#[tokio::test]
async fn bodies_of_another_type_or_size_are_refused() {
    let replica = Replica::boot().await;
    let text = replica.ask_with("POST", "/api/v1/rooms", "name=lobby", &[("content-type", "text/plain")]).await;
    assert_eq!(text.problem().status, 415);
    let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(1024 * 1024));
    let problem = replica.ask("POST", "/api/v1/rooms", &large).await.problem();
    assert_eq!((problem.status, problem.code), (413, ErrorCode::PayloadTooLarge));
}

#[tokio::test]
async fn a_method_that_is_not_served_is_told_which_are() {
    let replica = Replica::boot().await;
    let answer = replica.ask("DELETE", "/api/v1/settings/fleet", "").await;
    let allowed = answer.header("allow").unwrap();
    assert!(allowed.contains("GET") && allowed.contains("PUT"), "{allowed}");
}

#[tokio::test]
async fn the_database_being_gone_is_unavailable_and_never_internal() {
    let replica = Replica::boot().await;
    replica.stop.cancel();
    let writing = async || replica.ask("POST", "/api/v1/rooms", r#"{"name":"lobby"}"#).await;
    let answer = tokio::time::timeout(std::time::Duration::from_secs(20), async {
        loop {
            let answer = writing().await;
            if answer.status == 503 {
                break answer;
            }
            assert!([201, 409].contains(&answer.status), "{answer:?}");
        }
    });
    let answer = answer.await.unwrap();
    assert_eq!(answer.problem().code, ErrorCode::Unavailable);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(replica.send("GET", "/healthz/live", "", &[]).await.status, 200);
}
