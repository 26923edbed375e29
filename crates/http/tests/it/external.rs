//! Tokens of another issuer, whose keys are in a file or at an address.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::get;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use switchboard_http::{ExternalIssuer, ExternalKeys, JwksError};
use switchboard_model::user::UserRole;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::harness::Replica;

const ISSUER: &str = "https://id.example/";

/// A key of the other issuer.
#[derive(Clone)]
struct Key {
    kid: &'static str,
    algorithm: Algorithm,
    encoding: EncodingKey,
}

impl Key {
    fn rsa() -> Self {
        let encoding = EncodingKey::from_rsa_der(include_bytes!("rsa.der"));
        Self { kid: "rsa", algorithm: Algorithm::RS256, encoding }
    }

    fn ec() -> Self {
        Self { kid: "ec", algorithm: Algorithm::ES256, encoding: EncodingKey::from_ec_der(include_bytes!("ec.der")) }
    }

    fn ed(kid: &'static str, byte: u8) -> Self {
        let prefix = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        let encoding = EncodingKey::from_ed_der(&[&prefix[..], &[byte; 32]].concat());
        Self { kid, algorithm: Algorithm::EdDSA, encoding }
    }

    /// Writes the public key.
    fn public(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.encoding, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.kid.to_owned());
        serde_json::to_value(jwk).unwrap()
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.kid.to_owned()), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.encoding).unwrap()
    }
}

fn set(keys: &[&Key]) -> String {
    json!({"keys": keys.iter().map(|key| key.public()).collect::<Vec<_>>()}).to_string()
}

fn claims(replica: &Replica, sub: &str) -> Value {
    let now = replica.api.hub.now().unwrap().timestamp();
    json!({"iss": ISSUER, "aud": ["other", "switchboard"], "sub": sub, "iat": now, "exp": now + 3600})
}

fn issuer(source: &str) -> ExternalIssuer {
    ExternalIssuer::new(ISSUER.to_owned(), "switchboard".to_owned(), source.parse().unwrap())
}

/// Trusts the issuer for as long as the replica lives.
async fn trust(replica: &mut Replica, issuer: ExternalIssuer) {
    let keys = ExternalKeys::start(issuer, &TaskTracker::new(), replica.stop.clone()).await.unwrap();
    replica.sign_in_by(|auth| auth.external = Some(keys));
}

async fn me(replica: &Replica, token: &str) -> (u16, Value) {
    let answer = replica.ask_as(token, "GET", "/api/v1/auth/me", "").await;
    (answer.status, answer.json())
}

fn write(folder: &TempDir, text: &str) -> String {
    let path = folder.path().join("jwks.json");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn each_algorithm_is_accepted_from_its_own_key_only() {
    let (mut replica, folder) = (Replica::boot().await, TempDir::new().unwrap());
    let keys = [Key::rsa(), Key::ec(), Key::ed("ed", 7)];
    let mut all: Value = serde_json::from_str(&set(&keys.each_ref())).unwrap();
    let shared = json!({"kty": "oct", "kid": "oct", "k": "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI"});
    all["keys"].as_array_mut().unwrap().push(shared);
    trust(&mut replica, issuer(&write(&folder, &all.to_string()))).await;
    let claims = claims(&replica, "auth0|7");
    for key in &keys {
        let (status, body) = me(&replica, &key.sign(&claims)).await;
        assert_eq!((status, &body), (200, &json!({"user_id": "auth0|7", "role": "user", "scopes": []})), "{}", key.kid);
        for other in keys.iter().filter(|other| other.kid != key.kid) {
            let forged = Key { kid: other.kid, ..key.clone() };
            assert_eq!(me(&replica, &forged.sign(&claims)).await.0, 401);
        }
    }
    let secret = EncodingKey::from_secret(&[2; 32]).unwrap();
    for kid in ["oct", "rsa", "ec", "ed"] {
        let forged = Key { kid, algorithm: Algorithm::HS256, encoding: secret.clone() };
        assert_eq!(me(&replica, &forged.sign(&claims)).await.0, 401, "{kid}");
    }
}

#[tokio::test]
async fn only_tokens_that_are_meant_for_us_and_in_force_are_accepted() {
    let (mut replica, folder) = (Replica::boot().await, TempDir::new().unwrap());
    let key = Key::ed("ed", 7);
    trust(&mut replica, issuer(&write(&folder, &set(&[&key])))).await;
    let good = claims(&replica, "auth0|7");
    let now = good["iat"].as_i64().unwrap();
    assert_eq!(me(&replica, &key.sign(&good)).await.0, 200);
    let changes = [
        ("iss", json!("https://id.example")),
        ("iss", json!("switchboard")),
        ("aud", json!("other")),
        ("aud", json!([])),
        ("sub", json!("a b")),
        ("exp", json!(now - 10)),
        ("nbf", json!(now + 60)),
        ("iat", json!(now + 60)),
        ("iss", Value::Null),
        ("aud", Value::Null),
        ("sub", Value::Null),
        ("exp", Value::Null),
    ];
    for (field, value) in changes {
        let mut claims = good.clone();
        claims[field] = value.clone();
        assert_eq!(me(&replica, &key.sign(&claims)).await.0, 401, "{field} {value}");
    }
    for (typ, status) in [("JWT", 200), ("at+jwt", 200), ("logout+jwt", 401), ("dpop+jwt", 401)] {
        let header = Header { kid: Some("ed".into()), typ: Some(typ.into()), ..Header::new(Algorithm::EdDSA) };
        assert_eq!(me(&replica, &encode(&header, &good, &key.encoding).unwrap()).await.0, status, "{typ}");
    }
}

#[tokio::test]
async fn what_an_external_user_may_do_is_decided_here() {
    let (mut replica, folder) = (Replica::boot().await, TempDir::new().unwrap());
    let key = Key::ed("ed", 7);
    trust(&mut replica, issuer(&write(&folder, &set(&[&key])))).await;
    let token = key.sign(&claims(&replica, "auth0|7"));
    let status = async |method: &str, path: &str| replica.ask_as(&token, method, path, "").await.status;
    assert_eq!(status("GET", "/api/v1/tasks").await, 403);
    assert_eq!(status("POST", "/api/v1/ws/ticket").await, 201);
    assert_eq!(status("GET", "/api/v1/auth/sessions").await, 200);
    assert_eq!(status("POST", "/api/v1/auth/logout").await, 403);
    let body = json!({"id": "auth0|7", "name": "ann", "role": "operator"}).to_string();
    assert_eq!(replica.ask("POST", "/api/v1/users", &body).await.status, 201);
    assert_eq!(me(&replica, &token).await.1["role"], json!(UserRole::Operator));
    assert_eq!(status("GET", "/api/v1/tasks").await, 200);
    let put = json!({"version": 1, "role": "operator", "is_disabled": true}).to_string();
    assert_eq!(replica.ask("PUT", "/api/v1/users/auth0%7C7", &put).await.status, 200);
    assert_eq!(status("GET", "/api/v1/tasks").await, 401);
}

/// An issuer that answers with what it is told to, and counts.
struct Site {
    address: String,
    answer: Arc<Mutex<(StatusCode, String)>>,
    asked: Arc<AtomicUsize>,
}

impl Site {
    async fn boot(stop: CancellationToken, text: String) -> Self {
        let (answer, asked) = (Arc::new(Mutex::new((StatusCode::OK, text))), Arc::new(AtomicUsize::new(0)));
        let (told, counter) = (Arc::clone(&answer), Arc::clone(&asked));
        let serve = async move || {
            counter.fetch_add(1, Ordering::SeqCst);
            told.lock().clone()
        };
        let moved = async || (StatusCode::FOUND, [(header::LOCATION, "/jwks.json")]).into_response();
        let router = Router::new().route("/jwks.json", get(serve)).route("/moved.json", get(moved));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        TaskTracker::new()
            .spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await });
        Self { address, answer, asked }
    }

    fn tell(&self, status: StatusCode, text: String) {
        *self.answer.lock() = (status, text);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn issuer(&self, retry: Duration) -> ExternalIssuer {
        ExternalIssuer { retry, refresh: Duration::from_secs(3600), ..issuer(&format!("{}/jwks.json", self.address)) }
    }
}

#[tokio::test]
async fn an_unknown_key_is_looked_for_and_old_ones_outlive_an_outage() {
    let mut replica = Replica::boot().await;
    let (old, new) = (Key::ed("old", 7), Key::ed("new", 8));
    let site = Site::boot(replica.stop.clone(), set(&[&old])).await;
    trust(&mut replica, site.issuer(Duration::ZERO)).await;
    let claims = claims(&replica, "auth0|7");
    assert_eq!(me(&replica, &old.sign(&claims)).await.0, 200);
    assert_eq!(me(&replica, &new.sign(&claims)).await.0, 401);
    site.tell(StatusCode::OK, set(&[&new, &old]));
    assert_eq!(me(&replica, &new.sign(&claims)).await.0, 200);
    assert_eq!(site.asked(), 3);
    for (status, text) in [
        (StatusCode::INTERNAL_SERVER_ERROR, set(&[&new])),
        (StatusCode::OK, "{\"keys\":[]}".to_owned()),
        (StatusCode::OK, format!("{{\"keys\":[{}7]}}", "7,".repeat(200_000))),
    ] {
        let asked = site.asked();
        site.tell(status, text);
        // A request may wait for a read that was under way before; the second read from here on met the outage.
        while site.asked() < asked + 2 {
            assert_eq!(me(&replica, &Key::ed("third", 9).sign(&claims)).await.0, 401);
        }
        assert_eq!((me(&replica, &old.sign(&claims)).await.0, me(&replica, &new.sign(&claims)).await.0), (200, 200));
    }
    let asked = site.asked();
    site.tell(StatusCode::OK, set(&[&new]));
    while site.asked() < asked + 2 {
        assert_eq!(me(&replica, &Key::ed("third", 9).sign(&claims)).await.0, 401);
    }
    assert_eq!(me(&replica, &old.sign(&claims)).await.0, 401, "the issuer has taken the key away");
}

#[tokio::test]
async fn invented_keys_do_not_make_the_issuer_busy() {
    let mut replica = Replica::boot().await;
    let key = Key::ed("ed", 7);
    let site = Site::boot(replica.stop.clone(), set(&[&key])).await;
    trust(&mut replica, site.issuer(Duration::from_secs(3600))).await;
    let claims = claims(&replica, "auth0|7");
    for kid in ["a", "b", "c", "d"] {
        assert_eq!(me(&replica, &Key::ed(kid, 7).sign(&claims)).await.0, 401);
    }
    assert_eq!(me(&replica, &key.sign(&claims)).await.0, 200);
    assert_eq!(site.asked(), 1);
}

#[tokio::test]
async fn an_address_may_answer_later_and_a_file_may_not() {
    let mut replica = Replica::boot().await;
    let key = Key::ed("ed", 7);
    let site = Site::boot(replica.stop.clone(), set(&[&key])).await;
    site.tell(StatusCode::BAD_GATEWAY, String::new());
    trust(&mut replica, site.issuer(Duration::ZERO)).await;
    let token = key.sign(&claims(&replica, "auth0|7"));
    assert_eq!(me(&replica, &token).await.0, 503);
    assert_eq!(me(&replica, "a.b.c").await.0, 401);
    site.tell(StatusCode::OK, set(&[&key]));
    assert_eq!(me(&replica, &token).await.0, 200);

    let moved = issuer(&format!("{}/moved.json", site.address));
    trust(&mut replica, ExternalIssuer { retry: Duration::from_secs(3600), ..moved }).await;
    assert_eq!(me(&replica, &token).await.0, 503, "a redirect was followed");
    let missing =
        ExternalKeys::start(issuer("/nowhere/jwks.json"), &TaskTracker::new(), CancellationToken::new()).await;
    assert!(matches!(missing, Err(JwksError::File(_))));
}
