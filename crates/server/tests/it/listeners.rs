//! Rooms over server-sent events: resumed over replicas without a loss, for users and for programs.

use std::time::Duration;

use serde_json::{Value, json};
use switchboard_client::Client;
use switchboard_model::page::PageRequest;
use switchboard_model::scope::Scope;
use switchboard_model::secret_text::SecretText;
use switchboard_model::wire::rest::ApiKeyRequest;
use switchboard_testkit::Cluster;
use tokio::time::timeout;

use crate::fixtures::{create_room, event, on_every_database, room};

on_every_database! {
    rooms_are_resumed_over_replicas_without_a_loss,
    a_position_that_is_gone_is_told,
}

/// One connection that receives events.
struct Listener {
    answer: reqwest::Response,
    rest: Vec<u8>,
}

/// One event as it came.
#[derive(Debug)]
struct Heard {
    id: Option<String>,
    name: String,
    data: Value,
}

impl Listener {
    async fn open(client: &Client, key: &SecretText, rooms: &str, last_id: Option<&str>) -> Self {
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
        let url = format!("{}/api/v1/events?rooms={rooms}", client.base_url());
        let mut request = http.get(url).header("accept", "text/event-stream").bearer_auth(key.expose());
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        Self { answer, rest: Vec::new() }
    }

    /// Waits for the next event.
    async fn next(&mut self) -> Heard {
        loop {
            if let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
                let text: Vec<u8> = self.rest.drain(..end + 2).collect();
                let text = String::from_utf8(text).unwrap();
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let Some(name) = field("event: ") else { continue };
                let data = serde_json::from_str(&field("data: ").unwrap()).unwrap();
                return Heard { id: field("id: "), name, data };
            }
            let chunk = timeout(Duration::from_secs(30), self.answer.chunk()).await.unwrap().unwrap();
            self.rest.extend(chunk.unwrap());
        }
    }
}

async fn rooms_are_resumed_over_replicas_without_a_loss(cluster: Cluster) {
    for name in ["a", "b"] {
        create_room(cluster.any(), name).await;
    }
    let scopes = vec![Scope::RoomsRead];
    let key = cluster.any().create_api_key(&ApiKeyRequest { name: "ears".into(), scopes, ttl: None }).await.unwrap();
    let key = SecretText::from_presented(key.secret);
    let mut listener = Listener::open(cluster.client(0), &key, "a,b,user:ann", None).await;
    let ready = listener.next().await;
    assert_eq!((ready.name.as_str(), ready.data["rooms"]["a"]["offset"].as_i64()), ("ready", Some(0)));
    let mut last_id = ready.id.unwrap();
    let mut heard = vec![("a", 0), ("b", 0), ("user:ann", 0)];
    let mut published = 0;
    for round in 1..=20 {
        for (name, _) in &heard {
            for _ in 0..3 {
                published += 1;
                let event = event("note", json!({"text": "a\r\nb", "number": published}));
                cluster.any().publish(&room(name), &event).await.unwrap();
            }
        }
        // Some are heard now, and the others after the next connection.
        for _ in 0..(5 + round % 8) {
            let event = listener.next().await;
            if event.name == "event" {
                let position = event.data["offset"].as_i64().unwrap();
                let known = heard.iter_mut().find(|(name, _)| event.data["room"] == *name).unwrap();
                known.1 += 1;
                assert_eq!(position, known.1, "no event is missing or doubled");
                assert_eq!(event.data["payload"]["text"], "a\r\nb");
                last_id = event.id.unwrap();
            }
            if heard.iter().map(|(_, count)| count).sum::<i64>() == published {
                break;
            }
        }
        listener = Listener::open(cluster.client(round % cluster.size()), &key, "a,b,user:ann", Some(&last_id)).await;
        assert_eq!(listener.next().await.name, "ready");
    }
    while heard.iter().map(|(_, count)| count).sum::<i64>() < published {
        let event = listener.next().await;
        let known = heard.iter_mut().find(|(name, _)| event.data["room"] == *name).unwrap();
        known.1 += 1;
        assert_eq!(event.data["offset"].as_i64(), Some(known.1));
    }
    // What is not kept comes without an id.
    let mut fleeting = event("typing", json!({}));
    fleeting.ephemeral = true;
    cluster.any().publish(&room("a"), &fleeting).await.unwrap();
    let typing = listener.next().await;
    assert_eq!((typing.id, typing.data["event"].as_str()), (None, Some("typing")));
    // A key that is revoked hears nothing more, on any replica.
    let keys = cluster.any().list_api_keys(PageRequest::default()).await.unwrap();
    let ears = keys.items.iter().find(|key| key.name == "ears").unwrap().id;
    cluster.any().revoke_api_key(ears).await.unwrap();
    let rest = timeout(Duration::from_secs(5), listener.answer.text()).await.unwrap().unwrap();
    assert!(!rest.contains("event: event"), "{rest}");
}

async fn a_position_that_is_gone_is_told(cluster: Cluster) {
    create_room(cluster.any(), "a").await;
    let mut listener = Listener::open(cluster.client(0), cluster.key(), "a", None).await;
    let last_id = listener.next().await.id.unwrap();
    cluster.any().delete_room(&room("a")).await.unwrap();
    assert_eq!(listener.next().await.name, "desync");
    create_room(cluster.any(), "a").await;
    cluster.any().publish(&room("a"), &event("note", json!({}))).await.unwrap();
    let mut listener = Listener::open(cluster.any(), cluster.key(), "a", Some(&last_id)).await;
    let ready = listener.next().await;
    assert_eq!(ready.data["rooms"]["a"]["recovered"], false);
    let desync = listener.next().await;
    assert_eq!((desync.name.as_str(), desync.data["room"].as_str()), ("desync", Some("a")));
}
