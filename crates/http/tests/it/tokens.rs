//! Access tokens that are none, and keys that are rotated.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use switchboard_model::user::UserRole;
use switchboard_model::wire::auth::TokenResponse;

use crate::harness::{Replica, SIGNING_KEY, auth_options};

/// A second key of the ring.
const SECOND_KEY: &str = "second:hs256:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI";

/// The private key of [`SIGNING_KEY`].
fn first_key() -> EncodingKey {
    EncodingKey::from_ed_der(&[&hex("302e020100300506032b657004220420")[..], &[1; 32]].concat())
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn header(algorithm: Algorithm, kid: &str) -> Header {
    Header { typ: Some("at+jwt".into()), kid: Some(kid.into()), ..Header::new(algorithm) }
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// Signs whatever stands in the first two parts, as the server would.
fn sign_raw(header: &str, claims: &str) -> String {
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &first_key(), Algorithm::EdDSA).unwrap();
    format!("{message}.{signature}")
}

/// Returns the claims of a real token.
fn claims_of(token: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap()
}

/// The claims, changed.
fn with(claims: &Value, field: &str, value: Value) -> Value {
    let mut claims = claims.clone();
    claims[field] = value;
    claims
}

fn without(claims: &Value, field: &str) -> Value {
    let mut claims = claims.clone();
    claims.as_object_mut().unwrap().remove(field);
    claims
}

/// Tokens with claims that are not those of a token of ours that works now.
fn bad_claims(claims: &Value, now: i64, other_user: &str) -> Vec<(String, Value)> {
    let mut cases: Vec<_> = ["iss", "aud", "sub", "sid", "role", "iat", "exp", "jti"]
        .into_iter()
        .map(|field| (format!("no {field}"), without(claims, field)))
        .collect();
    let changes = [
        ("iss", json!("another")),
        ("iss", json!(["switchboard"])),
        ("aud", json!("another")),
        ("aud", json!(["switchboard"])),
        ("aud", json!("")),
        ("sub", json!("a b")),
        ("sub", json!("")),
        ("sub", json!(7)),
        ("sub", json!(other_user)),
        ("sid", json!("0190a0b0-0000-7000-8000-000000000000")),
        ("sid", json!("../sessions")),
        ("exp", json!(now - 10)),
        ("exp", json!(now + 24 * 3600)),
        ("exp", json!(i64::MAX)),
        ("exp", json!((now + 60).to_string())),
        ("exp", Value::Null),
        ("iat", json!(now + 60)),
    ];
    cases.extend(changes.into_iter().map(|(field, value)| (format!("{field} {value}"), with(claims, field, value))));
    cases
}

/// Tokens with a signature, or a header, that is not ours.
fn bad_signatures(claims: &Value) -> Vec<(String, String)> {
    let Jwk { algorithm: AlgorithmParameters::OctetKeyPair(public), .. } =
        Jwk::from_encoding_key(&first_key(), Algorithm::EdDSA).unwrap()
    else {
        panic!("not an Ed25519 key")
    };
    let good = encode(&header(Algorithm::EdDSA, "first"), claims, &first_key()).unwrap();
    let parts: Vec<_> = good.split('.').collect();
    let hmac = |secret: &[u8], kid: &str| {
        encode(&header(Algorithm::HS256, kid), claims, &EncodingKey::from_secret(secret).unwrap()).unwrap()
    };
    let stranger = EncodingKey::from_ed_der(&[&hex("302e020100300506032b657004220420")[..], &[9; 32]].concat());
    let public_bytes = URL_SAFE_NO_PAD.decode(&public.x).unwrap();
    let mut cases = vec![
        ("public key as secret".into(), hmac(&public_bytes, "first")),
        ("public key text as secret".into(), hmac(public.x.as_bytes(), "first")),
        ("empty-looking secret".into(), hmac(b"\0", "second")),
        ("key of another".into(), encode(&header(Algorithm::EdDSA, "first"), claims, &stranger).unwrap()),
        ("key of another kid".into(), encode(&header(Algorithm::EdDSA, "second"), claims, &first_key()).unwrap()),
        ("another algorithm of the family".into(), {
            let key = EncodingKey::from_secret(&[2; 32]).unwrap();
            encode(&header(Algorithm::HS512, "second"), claims, &key).unwrap()
        }),
        ("embedded key".into(), {
            let mut header = header(Algorithm::EdDSA, "first");
            header.jwk = Some(Jwk::from_encoding_key(&stranger, Algorithm::EdDSA).unwrap());
            encode(&header, claims, &stranger).unwrap()
        }),
        ("no signature".into(), format!("{}.{}.", parts[0], parts[1])),
        ("two parts".into(), format!("{}.{}", parts[0], parts[1])),
        ("four parts".into(), format!("{good}.{}", parts[2])),
        ("changed claims".into(), format!("{}.{}.{}", parts[0], part(&with(claims, "role", json!("admin"))), parts[2])),
        ("oversized".into(), {
            encode(&header(Algorithm::EdDSA, "first"), &with(claims, "pad", json!("x".repeat(4096))), &first_key())
                .unwrap()
        }),
        ("two subjects".into(), {
            let text = claims.to_string();
            let doubled = format!(r#"{{"sub":"somebody",{}"#, &text[1..]);
            sign_raw(r#"{"alg":"EdDSA","typ":"at+jwt","kid":"first"}"#, &doubled)
        }),
        ("garbage".into(), "a.b.c".into()),
        ("nothing between the dots".into(), "..".into()),
    ];
    let headers = [
        json!({"alg": "none", "typ": "at+jwt", "kid": "first"}),
        json!({"alg": "None", "typ": "at+jwt", "kid": "first"}),
        json!({"alg": "EdDSA", "typ": "JWT", "kid": "first"}),
        json!({"alg": "EdDSA", "typ": "refresh+jwt", "kid": "first"}),
        json!({"alg": "EdDSA", "kid": "first"}),
        json!({"alg": "EdDSA", "typ": "at+jwt"}),
        json!({"alg": "EdDSA", "typ": "at+jwt", "kid": "unknown"}),
        json!({"alg": "EdDSA", "typ": "at+jwt", "kid": "../../dev/null"}),
        json!({"alg": "EdDSA", "typ": "at+jwt", "kid": "first' OR '1'='1"}),
        json!({"alg": "EdDSA", "typ": "at+jwt", "kid": ["first"]}),
        json!({"alg": "EdDSA", "typ": "at+jwt", "kid": "first", "crit": ["exp"]}),
        json!({"alg": "EdDSA", "typ": "at+jwt", "kid": "first", "b64": false, "crit": ["b64"]}),
    ];
    for header in headers {
        cases.push((format!("header {header}"), sign_raw(&header.to_string(), &claims.to_string())));
        cases.push((format!("unsigned header {header}"), format!("{}.{}.", part(&header), parts[1])));
    }
    cases
}

#[tokio::test]
async fn every_token_that_is_none_is_refused_with_one_body() {
    let mut replica = Replica::boot().await;
    replica.sign_in_by(|auth| auth.keys = auth_options(&[SIGNING_KEY, SECOND_KEY]).keys);
    let bob = replica.user("bob", UserRole::Admin).await;
    replica.user("ann", UserRole::User).await;
    let claims = claims_of(&replica.login("ann").await.access_token);
    let now = replica.api.hub.now().unwrap().timestamp();
    let mint = |claims: &Value| encode(&header(Algorithm::EdDSA, "first"), claims, &first_key()).unwrap();

    let mut expected = replica.send("GET", "/api/v1/auth/me", "", &[]).await.problem();
    expected.request_id.clear();
    assert_eq!(expected.status, 401);
    for good in [&claims, &with(&claims, "exp", json!(now - 2)), &with(&claims, "iat", json!(now + 2))] {
        assert_eq!(replica.ask_as(&mint(good), "GET", "/api/v1/auth/me", "").await.status, 200, "{good}");
    }
    let mut cases = bad_signatures(&claims);
    cases.extend(bad_claims(&claims, now, bob.id.as_str()).into_iter().map(|(name, claims)| (name, mint(&claims))));
    for (name, token) in cases {
        let answer = replica.ask_as(&token, "GET", "/api/v1/auth/me", "").await;
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{name}");
        let mut problem = answer.problem();
        problem.request_id.clear();
        assert_eq!(problem, expected, "{name}");
    }
}

#[tokio::test]
async fn keys_are_rotated_without_signing_anybody_out() {
    let mut replica = Replica::boot().await;
    replica.user("ann", UserRole::User).await;
    let old = replica.login("ann").await;
    let refresh = async |replica: &Replica, tokens: &TokenResponse| {
        let body = json!({"refresh_token": tokens.refresh_token}).to_string();
        let answer = replica.send("POST", "/api/v1/auth/refresh", &body, &[]).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.read::<TokenResponse>()
    };
    let me = async |replica: &Replica, tokens: &TokenResponse| {
        replica.ask_as(&tokens.access_token, "GET", "/api/v1/auth/me", "").await.status
    };
    // The answer is lost, and the next replica signs with another key already.
    refresh(&replica, &old).await;
    replica.sign_in_by(|auth| auth.keys = auth_options(&[SECOND_KEY, SIGNING_KEY]).keys);
    let new = refresh(&replica, &old).await;
    assert_eq!((me(&replica, &old).await, me(&replica, &new).await), (200, 200));
    replica.sign_in_by(|auth| auth.keys = auth_options(&[SECOND_KEY]).keys);
    assert_eq!((me(&replica, &old).await, me(&replica, &new).await), (401, 200));
    let next = refresh(&replica, &new).await;
    assert_eq!((me(&replica, &next).await, next.session_id), (200, old.session_id));
}
