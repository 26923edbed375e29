//! WebSockets over a real listener.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use switchboard_model::span::Span;
use switchboard_model::user::UserRole;
use switchboard_model::wire::close::CloseCode;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use tokio_util::task::TaskTracker;

use crate::harness::{ORIGIN, Replica, SOCKETS};

pub(crate) type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A replica that listens.
pub(crate) struct Server {
    pub(crate) replica: Replica,
    address: SocketAddr,
}

impl Server {
    pub(crate) async fn boot() -> Self {
        Self::listen(Replica::boot().await).await
    }

    async fn listen(replica: Replica) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (router, stop) = (replica.router.clone(), replica.stop.clone());
        TaskTracker::new()
            .spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await });
        Self { replica, address }
    }

    pub(crate) async fn ticket(&self, body: Value) -> String {
        let answer = self.replica.ask("POST", "/api/v1/ws/ticket", &body.to_string()).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()["ticket"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn open(&self) -> Socket {
        let ticket = self.ticket(json!({"user_id": "ann", "grants": {"publish": ["lobby"]}})).await;
        let mut socket = self.upgrade(&format!("?ticket={ticket}"), &[]).await.unwrap().0;
        assert_eq!(next_json(&mut socket).await["op"], "hello");
        socket
    }

    /// Upgrades; the error is the HTTP status, the `Retry-After` header and the body.
    pub(crate) async fn upgrade(
        &self,
        query: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<(Socket, Option<String>), (u16, Option<String>, Value)> {
        let mut request = format!("ws://{}/ws{query}", self.address).into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let text = |headers: &axum::http::HeaderMap, name: &str| {
            headers.get(name).map(|value| value.to_str().unwrap().to_owned())
        };
        match connect_async(request).await {
            Ok((socket, response)) => Ok((socket, text(response.headers(), "sec-websocket-protocol"))),
            Err(Error::Http(response)) => {
                let body = serde_json::from_slice(response.body().as_deref().unwrap_or_default()).unwrap();
                Err((response.status().as_u16(), text(response.headers(), "retry-after"), body))
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn status(&self, query: &str, headers: &[(&'static str, &str)]) -> u16 {
        self.upgrade(query, headers).await.map_or_else(|(status, _, _)| status, |_| 101)
    }

    async fn until_sessions(&self, count: usize) {
        let counted = async {
            while self.replica.api.hub.session_count() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), counted).await.unwrap();
    }
}

async fn next_json(socket: &mut Socket) -> Value {
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Close(frame) => panic!("closed with {frame:?}"),
            _ => {}
        }
    }
}

async fn ask(socket: &mut Socket, op: Value) -> Value {
    socket.send(Message::text(op.to_string())).await.unwrap();
    loop {
        let frame = next_json(socket).await;
        if frame["re"] == op["id"] {
            return frame;
        }
    }
}

/// Reads on until the close frame and returns its code.
pub(crate) async fn close_code(socket: &mut Socket) -> u16 {
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Close(Some(frame)) = message {
            return frame.code.into();
        }
    }
    panic!("the connection ended without a close frame")
}

#[tokio::test]
async fn an_event_travels_from_rest_to_a_socket() {
    let server = Server::boot().await;
    server.replica.ask("POST", "/api/v1/rooms", r#"{"name":"lobby","kind":"public"}"#).await;
    let mut socket = server.open().await;
    let joined = ask(&mut socket, json!({"id": 1, "op": "join", "room": "lobby"})).await;
    assert_eq!(joined["ok"]["offset"], json!(0), "{joined}");
    server.replica.ask("POST", "/api/v1/rooms/lobby/events", r#"{"event":"tick","payload":7}"#).await;
    let event = next_json(&mut socket).await;
    assert_eq!((&event["event"], &event["payload"], &event["offset"]), (&json!("tick"), &json!(7), &json!(1)));
    server.replica.ask("POST", "/api/v1/users/ann/events", r#"{"event":"note","payload":8}"#).await;
    assert_eq!(next_json(&mut socket).await["room"], json!("user:ann"));
}

#[tokio::test]
async fn one_of_many_parallel_upgrades_burns_the_ticket() {
    let server = Server::boot().await;
    let ticket = server.ticket(json!({"user_id": "ann"})).await;
    let query = format!("?ticket={ticket}");
    let statuses = futures_util::future::join_all((0..20).map(|_| server.status(&query, &[]))).await;
    assert_eq!(statuses.iter().filter(|status| **status == 101).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 19, "{statuses:?}");
}

#[tokio::test]
async fn a_wrong_origin_is_refused_before_the_ticket_is_touched() {
    let server = Server::boot().await;
    let ticket = server.ticket(json!({"user_id": "ann", "origin": ORIGIN})).await;
    let query = format!("?ticket={ticket}");
    assert_eq!(server.status(&query, &[("origin", "https://evil.example")]).await, 403);
    assert_eq!(server.status(&query, &[("origin", ORIGIN)]).await, 101);
}

#[tokio::test]
async fn a_bound_ticket_is_burned_by_whoever_uses_it_elsewhere() {
    let server = Server::boot().await;
    let ticket = server.ticket(json!({"user_id": "ann", "origin": ORIGIN})).await;
    let query = format!("?ticket={ticket}");
    let (status, _, missing) = server.upgrade(&query, &[]).await.unwrap_err();
    assert_eq!(status, 401);
    let (status, _, burned) = server.upgrade(&query, &[("origin", ORIGIN)]).await.unwrap_err();
    assert_eq!(status, 401);
    let (_, _, unknown) = server.upgrade("?ticket=sbt_unknown", &[]).await.unwrap_err();
    let (_, _, none) = server.upgrade("", &[]).await.unwrap_err();
    for other in [burned, unknown, none] {
        assert_eq!((&other["code"], &other["detail"]), (&missing["code"], &missing["detail"]));
        assert!(!other.to_string().contains("sbt_"));
    }
}

#[tokio::test]
async fn a_ticket_may_come_as_a_subprotocol() {
    let server = Server::boot().await;
    let ticket = server.ticket(json!({"user_id": "ann"})).await;
    let offered = format!("switchboard.v1, ticket.{ticket}");
    let (_socket, chosen) = server.upgrade("", &[("sec-websocket-protocol", &offered)]).await.unwrap();
    assert_eq!(chosen.as_deref(), Some("switchboard.v1"));
}

#[tokio::test]
async fn programs_connect_with_an_access_token_and_pages_do_not() {
    let server = Server::boot().await;
    let ann = server.replica.token("ann", UserRole::User).await;
    let ticket = server.ticket(json!({"user_id": "ann"})).await;
    let bearer = format!("Bearer {ann}");
    let (mut socket, _) = server.upgrade("", &[("authorization", &bearer)]).await.unwrap();
    assert_eq!(next_json(&mut socket).await["op"], "hello");
    assert_eq!(server.status("", &[("authorization", &bearer), ("origin", ORIGIN)]).await, 401);
    assert_eq!(server.status(&format!("?ticket={ticket}"), &[("authorization", &bearer)]).await, 401);
    assert_eq!(server.status("", &[("authorization", "Bearer a.b.c")]).await, 401);
    let key = format!("Bearer {}", server.replica.admin);
    assert_eq!(server.status("", &[("authorization", &key)]).await, 403);
    // What a browser adds by itself for a proxy is no credential of ours, and the ticket is still good.
    let basic = [("authorization", "Basic YTpi"), ("origin", ORIGIN)];
    assert_eq!(server.status(&format!("?ticket={ticket}"), &basic).await, 101);
}

#[tokio::test]
async fn a_socket_ends_with_the_session_it_hangs_on() {
    let server = Server::boot().await;
    server.replica.user("ann", UserRole::User).await;
    let (here, there) = (server.replica.login("ann").await, server.replica.login("ann").await);
    let mut sockets = Vec::new();
    for tokens in [&here, &there] {
        let bearer = format!("Bearer {}", tokens.access_token);
        sockets.push(server.upgrade("", &[("authorization", &bearer)]).await.unwrap().0);
        let ticket = server.replica.ask_as(&tokens.access_token, "POST", "/api/v1/ws/ticket", "{}").await.json();
        let query = format!("?ticket={}", ticket["ticket"].as_str().unwrap());
        sockets.push(server.upgrade(&query, &[]).await.unwrap().0);
    }
    let unused = server.replica.ask_as(&here.access_token, "POST", "/api/v1/ws/ticket", "{}").await.json();
    assert_eq!(server.replica.ask_as(&here.access_token, "POST", "/api/v1/auth/logout", "").await.status, 204);
    for socket in &mut sockets[..2] {
        assert_eq!(close_code(socket).await, CloseCode::SessionRevoked.number());
    }
    let query = format!("?ticket={}", unused["ticket"].as_str().unwrap());
    assert_eq!(server.status(&query, &[]).await, 401);
    // The other session goes on.
    assert!(ask(&mut sockets[2], json!({"id": 1, "op": "ping"})).await["error"].is_null());
    let path = format!("/api/v1/users/{}", here.user.id);
    assert_eq!(server.replica.ask("DELETE", &path, "").await.status, 204);
    for socket in &mut sockets[2..] {
        assert_eq!(close_code(socket).await, CloseCode::SessionRevoked.number());
    }
}

#[tokio::test]
async fn nobody_connects_for_a_disabled_user() {
    let server = Server::boot().await;
    let ann = server.replica.user("ann", UserRole::User).await;
    let put = json!({"version": ann.version, "role": "user", "is_disabled": true}).to_string();
    assert_eq!(server.replica.ask("PUT", &format!("/api/v1/users/{}", ann.id), &put).await.status, 200);
    let ticket = server.ticket(json!({"user_id": ann.id})).await;
    assert_eq!(server.status(&format!("?ticket={ticket}"), &[]).await, 401);
    server.until_sessions(0).await;
}

#[tokio::test]
async fn a_request_that_is_no_upgrade_burns_nothing() {
    let server = Server::boot().await;
    let ticket = server.ticket(json!({"user_id": "ann"})).await;
    let query = format!("?ticket={ticket}");
    let plain = server.replica.send("GET", &format!("/ws{query}"), "", &[]).await;
    assert_eq!(plain.problem().status, 400);
    assert_eq!(server.status(&query, &[]).await, 101);
}

#[tokio::test]
async fn a_draining_replica_refuses_upgrades_and_closes_what_is_open() {
    let server = Server::boot().await;
    let mut socket = server.open().await;
    let ticket = server.ticket(json!({"user_id": "ann"})).await;
    server.replica.api.lifecycle.start_draining();
    let (status, retry_after, body) = server.upgrade(&format!("?ticket={ticket}"), &[]).await.unwrap_err();
    assert_eq!((status, retry_after.as_deref(), &body["code"]), (503, Some("1"), &json!("unavailable")));
    server.replica.api.hub.close_all(CloseCode::Drain);
    assert_eq!(close_code(&mut socket).await, CloseCode::Drain.number());
    // Shutdown waits for the sockets, and for nothing else.
    server.replica.api.tracker.close();
    server.replica.api.tracker.wait().await;
}

#[tokio::test]
async fn what_is_no_text_or_too_much_of_it_closes_the_socket() {
    let server = Server::boot().await;
    let cases = [
        (Message::binary(vec![1, 2, 3]), CloseCode::Unsupported),
        (Message::text("x".repeat(65 * 1024)), CloseCode::TooBig),
    ];
    for (message, code) in cases {
        let mut socket = server.open().await;
        socket.send(message).await.unwrap();
        assert_eq!(close_code(&mut socket).await, code.number());
        drop(socket);
    }
    server.until_sessions(0).await;
}

#[tokio::test]
async fn a_lost_client_is_forgotten() {
    let server = Server::boot().await;
    let mut polite = server.open().await;
    let rude = server.open().await;
    server.until_sessions(2).await;
    polite.close(None).await.unwrap();
    server.until_sessions(1).await;
    drop(rude);
    server.until_sessions(0).await;
}

#[tokio::test]
async fn a_flood_is_slowed_down_and_answered_in_order() {
    let server = Server::boot().await;
    let mut socket = server.open().await;
    for id in 0..250 {
        socket.feed(Message::text(json!({"id": id, "op": "ping"}).to_string())).await.unwrap();
    }
    socket.flush().await.unwrap();
    for id in 0..250 {
        assert_eq!(next_json(&mut socket).await["re"], json!(id));
    }
}

#[tokio::test]
async fn a_user_with_too_many_sockets_is_refused_before_the_upgrade() {
    let server = Server::boot().await;
    let mut open = Vec::new();
    for _ in 0..SOCKETS {
        open.push(server.open().await);
    }
    let ticket = server.ticket(json!({"user_id": "ann"})).await;
    let (status, _, body) = server.upgrade(&format!("?ticket={ticket}"), &[]).await.unwrap_err();
    assert_eq!((status, &body["code"]), (429, &json!("too_many_connections")));
    open.pop().unwrap().close(None).await.unwrap();
    server.until_sessions(open.len()).await;
    server.replica.api.hub.settled().await;
    server.open().await;
}

#[tokio::test]
async fn a_socket_hangs_on_the_token_that_it_showed_last() {
    let server = Server::boot().await;
    server.replica.user("ann", UserRole::User).await;
    let (first, second) = (server.replica.login("ann").await, server.replica.login("ann").await);
    let bearer = format!("Bearer {}", first.access_token);
    let mut socket = server.upgrade("", &[("authorization", &bearer)]).await.unwrap().0;
    let auth = |token: &str| json!({"id": 1, "op": "auth", "token": token});
    let answer = ask(&mut socket, auth(&second.access_token)).await;
    assert!(answer["ok"]["expires_at_ms"].is_i64(), "{answer}");
    let logout = async |token: &str| server.replica.ask_as(token, "POST", "/api/v1/auth/logout", "").await.status;
    assert_eq!(logout(&first.access_token).await, 204);
    assert!(ask(&mut socket, json!({"id": 2, "op": "ping"})).await["error"].is_null());
    assert_eq!(logout(&second.access_token).await, 204);
    assert_eq!(close_code(&mut socket).await, CloseCode::SessionRevoked.number());
}

#[tokio::test]
async fn another_token_does_not_free_a_socket_from_what_gave_it_its_grants() {
    let server = Server::boot().await;
    let ann = server.replica.user("ann", UserRole::User).await;
    let made = server.replica.ask("POST", "/api/v1/api-keys", r#"{"name":"k","scopes":["admin"]}"#).await.json();
    let own = server.replica.login("ann").await.access_token;
    let mut sockets = Vec::new();
    for grants in [json!({"publish": ["lobby"]}), json!({})] {
        let body = json!({"user_id": ann.id, "grants": grants}).to_string();
        let minted = server.replica.ask_as(made["secret"].as_str().unwrap(), "POST", "/api/v1/ws/ticket", &body).await;
        let minted = minted.json();
        let ticket = minted["ticket"].as_str().unwrap_or_else(|| panic!("{minted}"));
        let mut socket = server.upgrade(&format!("?ticket={ticket}"), &[]).await.unwrap().0;
        assert!(ask(&mut socket, json!({"id": 1, "op": "auth", "token": own})).await["error"].is_null());
        sockets.push(socket);
    }
    let path = format!("/api/v1/api-keys/{}", made["key"]["id"].as_str().unwrap());
    assert_eq!(server.replica.ask("DELETE", &path, "").await.status, 204);
    assert_eq!(close_code(&mut sockets[0]).await, CloseCode::SessionRevoked.number());
    assert!(ask(&mut sockets[1], json!({"id": 2, "op": "ping"})).await["error"].is_null(), "it has nothing of the key");
}

#[tokio::test]
async fn a_token_of_somebody_else_ends_the_socket() {
    let server = Server::boot().await;
    let bob = server.replica.token("bob", UserRole::User).await;
    for token in [bob.as_str(), "a.b.c", server.replica.admin.as_str()] {
        let mut socket = server.open().await;
        let answer = ask(&mut socket, json!({"id": 1, "op": "auth", "token": token})).await;
        assert_eq!(answer["error"]["code"], "unauthorized");
        assert_eq!(close_code(&mut socket).await, CloseCode::AuthFailed.number());
    }
}

#[tokio::test]
async fn a_ticket_opens_a_socket_that_outlives_the_token_it_was_minted_with() {
    let replica = Replica::boot_with(|options| options.auth.access_ttl = Span::from_secs(1)).await;
    let server = Server::listen(replica).await;
    let ann = server.replica.token("ann", UserRole::User).await;
    let minted = server.replica.ask_as(&ann, "POST", "/api/v1/ws/ticket", "{}").await.json();
    let bearer = format!("Bearer {ann}");
    let mut by_token = server.upgrade("", &[("authorization", &bearer)]).await.unwrap().0;
    let query = format!("?ticket={}", minted["ticket"].as_str().unwrap());
    let mut by_ticket = server.upgrade(&query, &[]).await.unwrap().0;
    assert_eq!(close_code(&mut by_token).await, CloseCode::TokenExpired.number());
    assert!(ask(&mut by_ticket, json!({"id": 1, "op": "ping"})).await["error"].is_null());
}

#[tokio::test]
async fn sockets_are_listed_and_kicked() {
    let server = Server::boot().await;
    let (mut kicked, mut other) = (server.open().await, server.open().await);
    let page = server.replica.ask("GET", "/api/v1/sessions?user_id=ann&limit=1", "").await.json();
    let id = page["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(page["items"][0]["user_id"], "ann");
    assert!(page["next_cursor"].is_string(), "{page}");
    let nobody = server.replica.ask("GET", "/api/v1/sessions?user_id=bob", "").await.json();
    assert_eq!(nobody["items"], json!([]));
    let path = format!("/api/v1/sessions/{id}");
    assert_eq!(server.replica.ask("DELETE", &path, "").await.status, 204);
    assert_eq!(close_code(&mut kicked).await, CloseCode::Kicked.number());
    assert!(ask(&mut other, json!({"id": 1, "op": "ping"})).await["error"].is_null());
    server.until_sessions(1).await;
    server.replica.api.hub.settled().await;
    assert_eq!(server.replica.ask("DELETE", &path, "").await.problem().status, 404);
    let audit = server.replica.ask("GET", "/api/v1/audit?action=session.kick", "").await.json();
    assert_eq!(audit["items"][0]["subject"], json!(id));
}

#[tokio::test]
async fn who_is_in_a_room_can_be_read_over_rest() {
    let server = Server::boot().await;
    server.replica.ask("POST", "/api/v1/rooms", r#"{"name":"lobby","kind":"public"}"#).await;
    let mut socket = server.open().await;
    ask(&mut socket, json!({"id": 1, "op": "join", "room": "lobby", "presence": true})).await;
    let found = server.replica.ask("GET", "/api/v1/rooms/lobby/presence", "").await.json();
    assert_eq!((&found["count"], &found["members"][0]["user_id"]), (&json!(1), &json!("ann")));
    assert_eq!(server.replica.ask("GET", "/api/v1/rooms/attic/presence", "").await.problem().status, 404);
    assert_eq!(server.replica.ask("GET", "/api/v1/rooms/user:ann/presence", "").await.json()["count"], 0);
}
