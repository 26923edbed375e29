//! The AsyncAPI document, held against the frames of a real socket.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use switchboard_http::asyncapi_document;
use switchboard_model::ids::{CallId, ClaimToken};
use switchboard_model::wire::op::ClientOp;
use tokio_tungstenite::tungstenite::Message;

use crate::harness::Replica;
use crate::sockets::{Server, Socket};

/// The document; clients ignore fields that they do not know, but the server sends none that are not described.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let mut document = asyncapi_document();
    tighten(&mut document["components"]);
    document
});

/// Allows no field of an object that is not described.
fn tighten(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(tighten);
            if fields.get("properties").is_some_and(Value::is_object) && fields.get("type") == Some(&json!("object")) {
                fields.entry("additionalProperties").or_insert(false.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(tighten),
        _ => {}
    }
}

fn errors(message: &str, frame: &Value) -> Vec<String> {
    let schema = DOCUMENT.pointer(&format!("/components/messages/{message}/payload"));
    let schema = schema.unwrap_or_else(|| panic!("{message} is not described: {frame}"));
    let root = json!({"allOf": [schema], "components": DOCUMENT["components"]});
    let validator = jsonschema::options().should_validate_formats(true).build(&root).unwrap();
    validator.iter_errors(frame).map(|error| error.to_string()).collect()
}

fn check(message: &str, frame: &Value) {
    let errors = errors(message, frame);
    assert!(errors.is_empty(), "{message}: {frame}: {errors:?}");
}

/// A socket whose frames are all checked, in both directions.
struct Recorder {
    socket: Socket,
    asked: Vec<String>,
    seen: BTreeSet<String>,
}

impl Recorder {
    async fn send(&mut self, mut op: Value) {
        let name = op["op"].as_str().unwrap().to_owned();
        op["id"] = self.asked.len().into();
        check(&name, &op);
        self.seen.insert(name.clone());
        self.asked.push(name);
        self.socket.send(Message::text(op.to_string())).await.unwrap();
    }

    /// Reads the next frame and returns what kind it is.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            let Message::Text(text) = self.socket.next().await?.unwrap() else { continue };
            let frame: Value = serde_json::from_str(&text).unwrap();
            let message = match (frame["re"].as_u64(), frame["op"].as_str()) {
                (Some(re), _) => format!("{}Answer", self.asked[usize::try_from(re).unwrap()]),
                (None, Some(op)) => format!("{op}Notice"),
                (None, None) => "event".to_owned(),
            };
            check(&message, &frame);
            self.seen.insert(message.clone());
            return Some((message, frame));
        }
    }

    async fn until(&mut self, wanted: &str) -> Value {
        loop {
            let (message, frame) = self.next().await.unwrap();
            if message == wanted {
                return frame;
            }
        }
    }

    async fn ask(&mut self, op: Value) -> Value {
        let answer = format!("{}Answer", op["op"].as_str().unwrap());
        self.send(op).await;
        self.until(&answer).await
    }
}

async fn record() -> (Server, Recorder) {
    let server = Server::boot().await;
    for name in ["lobby", "attic"] {
        let room = json!({"name": name, "kind": "public"}).to_string();
        assert_eq!(server.replica.ask("POST", "/api/v1/rooms", &room).await.status, 201);
    }
    let ticket = server.ticket(json!({"user_id": "ann", "grants": {"publish": ["lobby"]}})).await;
    let socket = server.upgrade(&format!("?ticket={ticket}"), &[]).await.unwrap().0;
    let mut recorder = Recorder { socket, asked: Vec::new(), seen: BTreeSet::new() };
    recorder.until("helloNotice").await;
    (server, recorder)
}

/// Publishes more than the socket and what lies before it can hold, and reads only then.
async fn fall_behind(server: &Server, recorder: &mut Recorder) {
    let event = json!({"event": "big", "payload": "x".repeat(50_000)}).to_string();
    for _ in 0..300 {
        server.replica.ask("POST", "/api/v1/rooms/lobby/events", &event).await;
    }
    while recorder.until("lagNotice").await["state"] != "live" {}
}

/// Takes a call that a program makes, and answers it.
async fn answer_a_call(server: &Server, recorder: &mut Recorder) {
    let call = json!({"event": "tool.reverse", "payload": {"text": "hello"}}).to_string();
    let asking = server.replica.ask("POST", "/api/v1/users/ann/calls", &call);
    let answering = async {
        let offer = recorder.until("callNotice").await;
        let claim = recorder.ask(json!({"op": "claim", "call_id": offer["call_id"]})).await;
        let token = &claim["ok"]["token"];
        let reply = json!({"op": "reply", "call_id": offer["call_id"], "token": token, "ok": true, "payload": "olleh"});
        assert!(recorder.ask(reply).await["error"].is_null());
    };
    let (answer, ()) = tokio::join!(asking, answering);
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!("olleh")), "{}", answer.text());
}

#[tokio::test]
async fn every_frame_of_a_socket_is_described() {
    let (server, mut recorder) = record().await;
    let joined = recorder.ask(json!({"op": "join", "room": "lobby", "presence": true})).await;
    recorder.ask(json!({"op": "publish", "room": "lobby", "event": "note", "payload": {"n": 1}, "msg_id": "m"})).await;
    let published = json!({"op": "publish", "room": "lobby", "event": "note", "payload": null, "ephemeral": true});
    assert!(recorder.ask(published).await["error"].is_null());
    recorder.ask(json!({"op": "history", "room": "lobby", "after": 0, "limit": 5})).await;
    assert_eq!(recorder.ask(json!({"op": "presence", "room": "lobby"})).await["ok"]["count"], 1);
    let since = json!({"epoch": joined["ok"]["epoch"], "offset": 0});
    recorder.ask(json!({"op": "join", "room": "attic", "since": since})).await;
    assert_eq!(server.replica.ask("DELETE", "/api/v1/rooms/attic", "").await.status, 204);
    recorder.until("desyncNotice").await;
    recorder.ask(json!({"op": "ping"})).await;
    fall_behind(&server, &mut recorder).await;
    recorder.ask(json!({"op": "leave", "room": "lobby"})).await;
    answer_a_call(&server, &mut recorder).await;
    // What is refused has a form, too.
    recorder.ask(json!({"op": "claim", "call_id": CallId::new()})).await;
    let reply = json!({"op": "reply", "call_id": CallId::new(), "token": ClaimToken::new(), "ok": true, "payload": 1});
    recorder.ask(reply).await;
    tokio::join!(server.replica.api.hub.drain(std::time::Duration::ZERO), recorder.until("goawayNotice"));
    let (_server, mut other) = record().await;
    assert_eq!(other.ask(json!({"op": "auth", "token": "a.b.c"})).await["error"]["code"], "unauthorized");
    recorder.seen.append(&mut other.seen);
    let (_server, mut silent) = record().await;
    // Whoever says nothing is asked for a sign of life after a while.
    silent.until("pingNotice").await;
    recorder.seen.append(&mut silent.seen);

    let described: BTreeSet<_> = DOCUMENT["components"]["messages"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(recorder.seen, described);
}

#[test]
fn the_document_refuses_what_the_server_refuses() {
    check("join", &json!({"id": 1, "op": "join", "room": "lobby"}));
    for wrong in [
        json!({"id": 1, "op": "join"}),
        json!({"id": 1, "op": "join", "room": "lobby", "colour": 1}),
        json!({"id": -1, "op": "join", "room": "lobby"}),
        json!({"op": "join", "room": "lobby"}),
        json!({"id": 1, "op": "leave", "room": "lobby"}),
        json!({"id": 1, "op": "join", "room": "No Room"}),
        json!({"id": 1, "op": "join", "room": "lobby", "since": "yesterday"}),
    ] {
        assert!(!errors("join", &wrong).is_empty(), "{wrong}");
    }
    let operations = DOCUMENT["operations"].as_object().unwrap();
    assert!(ClientOp::NAMES.iter().all(|name| operations[*name]["reply"].is_object()));
}

#[tokio::test]
async fn the_document_is_served_to_everybody() {
    let replica = Replica::boot().await;
    let answer = replica.send("GET", "/asyncapi.json", "", &[]).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.json(), asyncapi_document());
}
