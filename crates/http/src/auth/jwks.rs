//! The public keys of another issuer (RFC 7517): read from a file or an address. Knows no token.

use std::collections::HashMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;

use super::keys::VerifyingKey;

/// The largest key set, in bytes.
const SET_BYTES: usize = 256 * 1024;

/// How long connecting, and the whole transfer, may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest RSA modulus, in bytes: 2,048 bits.
const RSA_BYTES: usize = 256;

/// The coordinates of P-256 and the key of Ed25519, in bytes.
const CURVE_BYTES: usize = 32;

/// The keys by their ids.
pub(crate) type KeySet = HashMap<String, VerifyingKey>;

/// Where a key set is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    /// In a file.
    File(PathBuf),
    /// At an address: `https`, or `http` on this machine.
    Url(Url),
}

/// Why a key set is not there.
#[derive(Debug, thiserror::Error)]
pub enum JwksError {
    /// The address is none, or would be asked in the clear.
    #[error("the address of a key set must start with https://; http:// is for this machine only")]
    Address,
    /// The file cannot be read.
    #[error("the file cannot be read")]
    File(#[source] std::io::Error),
    /// The address does not answer as it should.
    #[error("the key set cannot be fetched")]
    Fetch(#[source] reqwest::Error),
    /// The address answers with another status than 200.
    #[error("the key set was answered with status {0}")]
    Status(u16),
    /// There is more than any key set has.
    #[error("the key set is above 256 KiB")]
    TooLarge,
    /// It is no key set.
    #[error("not a key set: {0}")]
    Form(#[source] serde_json::Error),
    /// No key of it can be used.
    #[error("the key set has no key that can be used: RS256 with at least 2048 bits, ES256 or EdDSA, with an id")]
    NoKey,
}

impl FromStr for JwksSource {
    type Err = JwksError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.contains("://") {
            return Ok(Self::File(text.into()));
        }
        let url = Url::parse(text).map_err(|_| JwksError::Address)?;
        // Whoever can change the answer on its way decides who is let in.
        let is_safe = match url.scheme() {
            "https" => true,
            "http" => matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]")),
            _ => false,
        };
        if is_safe { Ok(Self::Url(url)) } else { Err(JwksError::Address) }
    }
}

impl JwksSource {
    /// Reads the keys as they are now.
    pub(crate) async fn load(&self) -> Result<KeySet, JwksError> {
        match self {
            Self::File(path) => {
                let length = tokio::fs::metadata(path).await.map_err(JwksError::File)?.len();
                if length > SET_BYTES as u64 {
                    return Err(JwksError::TooLarge);
                }
                parse(&tokio::fs::read(path).await.map_err(JwksError::File)?)
            }
            Self::Url(url) => parse(&fetch(url).await?),
        }
    }
}

async fn fetch(url: &Url) -> Result<Vec<u8>, JwksError> {
    // Whoever installed a provider first has decided already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(FETCH_TIMEOUT);
    if url.scheme() == "http" {
        // Without TLS nothing has to be read from the machine, which may have no certificates at all.
        client = client.tls_certs_only([]);
    }
    let client = client.build().map_err(JwksError::Fetch)?;
    let mut response = client.get(url.clone()).send().await.map_err(JwksError::Fetch)?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(JwksError::Status(response.status().as_u16()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(JwksError::Fetch)? {
        if body.len() + chunk.len() > SET_BYTES {
            return Err(JwksError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn parse(bytes: &[u8]) -> Result<KeySet, JwksError> {
    #[derive(Deserialize)]
    struct Set {
        /// Each is read by itself, so that one of a new kind does not spoil the others.
        keys: Vec<Value>,
    }
    let set: Set = serde_json::from_slice(bytes).map_err(JwksError::Form)?;
    let mut keys = KeySet::new();
    for (place, value) in (1..).zip(set.keys) {
        match serde_json::from_value::<Jwk>(value).ok().and_then(usable) {
            Some((kid, key)) if !keys.contains_key(&kid) => {
                keys.insert(kid, key);
            }
            _ => tracing::warn!(place, "a key of the key set is not used: its kind, its purpose or its id"),
        }
    }
    if keys.is_empty() { Err(JwksError::NoKey) } else { Ok(keys) }
}

/// Pins a key to its one algorithm; `None` for keys of other kinds and purposes. Shared secrets are among those:
/// whoever can verify by one can mint as well.
fn usable(jwk: Jwk) -> Option<(String, VerifyingKey)> {
    let has_length = |text: &str, length| URL_SAFE_NO_PAD.decode(text).is_ok_and(|bytes| bytes.len() == length);
    let (algorithm, named) = match &jwk.algorithm {
        AlgorithmParameters::RSA(key) => {
            let modulus = URL_SAFE_NO_PAD.decode(&key.n).ok()?;
            let length = modulus.iter().skip_while(|byte| **byte == 0).count();
            (length >= RSA_BYTES).then_some((Algorithm::RS256, KeyAlgorithm::RS256))?
        }
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            let is_point = has_length(&key.x, CURVE_BYTES) && has_length(&key.y, CURVE_BYTES);
            is_point.then_some((Algorithm::ES256, KeyAlgorithm::ES256))?
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            has_length(&key.x, CURVE_BYTES).then_some((Algorithm::EdDSA, KeyAlgorithm::EdDSA))?
        }
        _ => return None,
    };
    let common = &jwk.common;
    let is_meant = common.key_algorithm.is_none_or(|given| given == named)
        && common.public_key_use.as_ref().is_none_or(|purpose| *purpose == PublicKeyUse::Signature)
        && common.key_operations.as_ref().is_none_or(|list| list.contains(&KeyOperations::Verify));
    let key = DecodingKey::from_jwk(&jwk).ok().filter(|_| is_meant)?;
    // What the library cannot verify by, such as a point that is not on the curve, shows here.
    jsonwebtoken::crypto::verify("", b"", &key, algorithm).ok()?;
    Some((jwk.common.key_id?, VerifyingKey { algorithm, key }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn key_sets_are_asked_for_safely() {
        for good in ["https://id.example/jwks.json", "http://127.0.0.1:8080/x", "http://localhost/x", "http://[::1]/x"]
        {
            assert!(matches!(good.parse(), Ok(JwksSource::Url(_))), "{good}");
        }
        for bad in ["http://id.example/jwks.json", "ftp://id.example/x", "https://", "http://127.0.0.1.evil.example/"] {
            assert!(matches!(bad.parse::<JwksSource>(), Err(JwksError::Address)), "{bad}");
        }
        assert!(matches!("/etc/keys.json".parse(), Ok(JwksSource::File(_))));
    }

    /// The keys of RFC 7517, appendix A.1, and of RFC 8037, appendix A.2.
    fn set(change: impl Fn(&mut Value)) -> Vec<u8> {
        let mut keys = json!([
            {"kid": "ec", "kty": "EC", "crv": "P-256", "use": "sig",
             "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"},
            {"kid": "rsa", "kty": "RSA", "alg": "RS256", "e": "AQAB",
             "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"},
            {"kid": "ed", "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
            {"kid": "oct", "kty": "oct", "k": "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75"},
            {"kid": "new", "kty": "AKP", "alg": "ML-DSA-44", "pub": "AAAA"},
            7,
        ]);
        change(&mut keys);
        json!({ "keys": keys }).to_string().into_bytes()
    }

    #[test]
    fn each_key_is_pinned_and_foreign_kinds_are_left_out() {
        let keys = parse(&set(|_| {})).unwrap();
        let mut found: Vec<_> = keys.iter().map(|(kid, key)| (kid.as_str(), key.algorithm)).collect();
        found.sort_by_key(|(kid, _)| *kid);
        assert_eq!(found, [("ec", Algorithm::ES256), ("ed", Algorithm::EdDSA), ("rsa", Algorithm::RS256)]);
    }

    #[test]
    fn unfit_keys_are_left_out() {
        let changes: [(usize, &str, Value); 9] = [
            (0, "use", json!("enc")),
            (0, "alg", json!("ES384")),
            (0, "crv", json!("P-384")),
            (0, "x", json!("AAAA")),
            (0, "y", json!("MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4")),
            (1, "alg", json!("PS256")),
            (1, "n", json!("0vx7agoebGcQSuuPiLJXZptN9nnd")),
            (2, "x", json!("AAAA")),
            (2, "kid", json!("ec")),
        ];
        for (place, field, value) in changes {
            let keys = parse(&set(|keys| keys[place][field] = value.clone())).unwrap();
            assert_eq!(keys.len(), 2, "{place} {field} {value}");
        }
        let no_id = parse(&set(|keys| drop(keys[2].as_object_mut().unwrap().remove("kid")))).unwrap();
        assert_eq!(no_id.len(), 2);
        assert!(matches!(parse(b"{\"keys\":[]}"), Err(JwksError::NoKey)));
        assert!(matches!(parse(b"<html>"), Err(JwksError::Form(_))));
    }
}
