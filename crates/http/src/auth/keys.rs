//! The keys that sign access tokens. Knows neither claims nor where the keys are kept.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use sha2::Sha256;
use switchboard_model::auth_session::REFRESH_PREFIX;
use switchboard_model::secret_text::SecretText;

/// The longest id of a key, in characters.
const KID_CHARS: usize = 64;

/// The fewest bytes of a key, and exactly as many as Ed25519 takes.
const KEY_BYTES: usize = 32;

/// What stands before the seed in the DER form (PKCS #8) of an Ed25519 key.
const ED25519_PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// What keys are derived and compared for; each use has its own label, so that none can stand in for another.
const REFRESH_LABEL: &[u8] = b"switchboard refresh tokens 1";
const REQUEST_LABEL: &[u8] = b"switchboard request hashes 1";
const CHECK_LABEL: &[u8] = b"switchboard key check 1";

/// Why texts are no signing keys. Keys are named by their place: no message shows a part of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There is none.
    #[error("there is no signing key")]
    None,
    /// A text has another form.
    #[error("signing key {0} must read <id>:<algorithm>:<key>")]
    Form(usize),
    /// An id has other characters or is too long.
    #[error("the id of signing key {0} must match ^[A-Za-z0-9._-]{{1,64}}$")]
    Id(usize),
    /// The algorithm is not known.
    #[error("the algorithm of signing key {0} is not known; known are hs256 and ed25519")]
    Algorithm(usize),
    /// The key is not text of the right kind.
    #[error("signing key {0} must be written in base64url")]
    Encoding(usize),
    /// The key is too short, or not as long as its algorithm asks.
    #[error("signing key {0} must have {1} 32 bytes")]
    Length(usize, &'static str),
    /// Two keys have the same id.
    #[error("signing keys {0} and {1} have the same id")]
    Duplicate(usize, usize),
    /// A cryptographic operation failed.
    #[error("signing key {0} cannot be used")]
    Unusable(usize),
    /// The operating system has no random bytes to give.
    #[error("there are no random bytes for a key")]
    Random,
}

/// How a key of our own signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAlgorithm {
    /// HMAC-SHA256: whoever verifies can sign.
    Hs256,
    /// Ed25519.
    Ed25519,
}

impl KeyAlgorithm {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Hs256 => "hs256",
            Self::Ed25519 => "ed25519",
        }
    }
}

/// A key that tokens are verified by, pinned to one algorithm.
#[derive(Clone)]
pub(crate) struct VerifyingKey {
    pub(crate) algorithm: Algorithm,
    pub(crate) key: DecodingKey,
}

/// One of our own keys.
pub(crate) struct SigningKey {
    pub(crate) kid: String,
    pub(crate) encoding: EncodingKey,
    pub(crate) verifying: VerifyingKey,
    check: String,
}

/// The keys of the fleet: the first signs, all verify. A key is rotated by adding the new one behind the others
/// on every replica, then moving it to the front, and taking the old one away when its last token has expired.
pub struct KeyRing {
    keys: Vec<SigningKey>,
    refresh_secret: [u8; 32],
    request_secret: [u8; 32],
}

impl KeyRing {
    /// Reads keys of the form `<id>:hs256:<base64url of at least 32 bytes>` or `<id>:ed25519:<base64url of the
    /// 32-byte seed>`.
    ///
    /// # Errors
    /// Says which key, by its place, is refused and why.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Self, KeyError> {
        let mut keys: Vec<SigningKey> = Vec::with_capacity(texts.len());
        let mut secrets = None;
        for (place, text) in (1..).zip(texts) {
            let (key, material) = parse_key(place, text.as_ref().trim())?;
            if let Some(other) = keys.iter().position(|other| other.kid == key.kid) {
                return Err(KeyError::Duplicate(other + 1, place));
            }
            secrets.get_or_insert_with(|| {
                (keyed_hash(&material, &[REFRESH_LABEL]), keyed_hash(&material, &[REQUEST_LABEL]))
            });
            keys.push(key);
        }
        let (refresh_secret, request_secret) = secrets.ok_or(KeyError::None)?;
        Ok(Self { keys, refresh_secret, request_secret })
    }

    /// Makes the text form of a new key; both algorithms take 32 random bytes.
    ///
    /// # Errors
    /// Fails for an id that is none, and when the operating system has no random bytes to give.
    pub fn generate_text(kid: &str, algorithm: KeyAlgorithm) -> Result<SecretText, KeyError> {
        if !is_kid(kid) {
            return Err(KeyError::Id(1));
        }
        SecretText::generate(&format!("{kid}:{}:", algorithm.as_str())).map_err(|_| KeyError::Random)
    }

    /// Returns each id with a value that is equal on two replicas exactly when their keys are, and that tells
    /// nothing about the key.
    pub fn check_values(&self) -> impl Iterator<Item = (&str, &str)> {
        self.keys.iter().map(|key| (key.kid.as_str(), key.check.as_str()))
    }

    /// Returns the key that signs.
    pub(crate) fn signing(&self) -> &SigningKey {
        // `parse` refuses an empty ring.
        &self.keys[0]
    }

    /// Finds the key that verifies what `kid` signed.
    pub(crate) fn find(&self, kid: &str) -> Option<&VerifyingKey> {
        self.keys.iter().find(|key| key.kid == kid).map(|key| &key.verifying)
    }

    /// Derives the successor of a refresh token, so that equal requests have equal answers on every replica.
    /// Whoever has only the database, or only the older token, cannot.
    pub(crate) fn successor(&self, presented: &str) -> SecretText {
        let bytes = keyed_hash(&self.refresh_secret, &[presented.as_bytes()]);
        SecretText::from_presented(format!("{REFRESH_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Blinds the hash of a request that holds a password, so that the database is of no use for guessing it.
    pub(crate) fn blind(&self, request_hash: &[u8; 32]) -> [u8; 32] {
        keyed_hash(&self.request_secret, &[request_hash])
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.check_values()).finish()
    }
}

fn parse_key(place: usize, text: &str) -> Result<(SigningKey, Vec<u8>), KeyError> {
    let mut parts = text.split(':');
    let (Some(kid), Some(algorithm), Some(encoded), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(KeyError::Form(place));
    };
    if !is_kid(kid) {
        return Err(KeyError::Id(place));
    }
    let material = URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('=')).map_err(|_| KeyError::Encoding(place))?;
    let (algorithm, encoding) = match algorithm {
        "hs256" if material.len() < KEY_BYTES => return Err(KeyError::Length(place, "at least")),
        "hs256" => (Algorithm::HS256, EncodingKey::from_secret(&material)),
        "ed25519" if material.len() != KEY_BYTES => return Err(KeyError::Length(place, "exactly")),
        "ed25519" => {
            let der = [&ED25519_PKCS8[..], &material].concat();
            (Algorithm::EdDSA, Ok(EncodingKey::from_ed_der(&der)))
        }
        _ => return Err(KeyError::Algorithm(place)),
    };
    let unusable = |_| KeyError::Unusable(place);
    let encoding = encoding.map_err(unusable)?;
    let decoding = Jwk::from_encoding_key(&encoding, algorithm).and_then(|jwk| DecodingKey::from_jwk(&jwk));
    let verifying = VerifyingKey { algorithm, key: decoding.map_err(unusable)? };
    let check = check_value(&material, CHECK_LABEL, kid);
    let key = SigningKey { kid: kid.to_owned(), encoding, verifying, check };
    Ok((key, material))
}

fn is_kid(text: &str) -> bool {
    (1..=KID_CHARS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Derives what tells equal keys from different ones, and nothing about the key.
pub(crate) fn check_value(key: &[u8], label: &[u8], id: &str) -> String {
    URL_SAFE_NO_PAD.encode(&keyed_hash(key, &[label, id.as_bytes()])[..9])
}

fn keyed_hash(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    // HMAC takes keys of every length.
    #[expect(clippy::expect_used, reason = "the error cannot happen")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of every length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kid: &str, algorithm: &str, bytes: &[u8]) -> String {
        format!("{kid}:{algorithm}:{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    #[test]
    fn keys_are_read_and_the_first_signs() {
        let ring = KeyRing::parse(&[key("a", "hs256", &[1; 32]), key("b", "ed25519", &[2; 32])]).unwrap();
        assert_eq!(ring.signing().kid, "a");
        assert_eq!(ring.find("b").unwrap().algorithm, Algorithm::EdDSA);
        for absent in ["c", "", "../a", "A"] {
            assert!(ring.find(absent).is_none());
        }
        for algorithm in [KeyAlgorithm::Hs256, KeyAlgorithm::Ed25519] {
            let generated = KeyRing::generate_text("2026-11", algorithm).unwrap();
            assert!(KeyRing::parse(&[generated.expose()]).is_ok());
        }
        assert_eq!(KeyRing::generate_text("a:b", KeyAlgorithm::Hs256).unwrap_err(), KeyError::Id(1));
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_shown() {
        let long = "k".repeat(65);
        let good = key("a", "hs256", &[0x55; 32]);
        let cases = [
            (vec![], KeyError::None),
            (vec!["secret".to_owned()], KeyError::Form(1)),
            (vec![good.clone(), format!("{good}:more")], KeyError::Form(2)),
            (vec![key("a/../b", "hs256", &[0x55; 32])], KeyError::Id(1)),
            (vec![key(&long, "hs256", &[0x55; 32])], KeyError::Id(1)),
            (vec![key("", "hs256", &[0x55; 32])], KeyError::Id(1)),
            (vec![key("a", "none", &[0x55; 32])], KeyError::Algorithm(1)),
            (vec![key("a", "rs256", &[0x55; 32])], KeyError::Algorithm(1)),
            (vec!["a:hs256:not base64".to_owned()], KeyError::Encoding(1)),
            (vec![key("a", "hs256", &[0x55; 31])], KeyError::Length(1, "at least")),
            (vec![key("a", "ed25519", &[0x55; 33])], KeyError::Length(1, "exactly")),
            (vec![good.clone(), key("a", "ed25519", &[0x55; 32])], KeyError::Duplicate(1, 2)),
        ];
        for (texts, error) in cases {
            let found = KeyRing::parse(&texts).unwrap_err();
            assert_eq!(found, error);
            assert!(!found.to_string().contains("VVVV") && !found.to_string().contains("secret"), "{found}");
        }
    }

    #[test]
    fn check_values_tell_equal_keys_from_different_ones() {
        let ring = |byte| KeyRing::parse(&[key("a", "hs256", &[byte; 32])]).unwrap();
        let check = |ring: &KeyRing| ring.check_values().next().unwrap().1.to_owned();
        assert_eq!(check(&ring(1)), check(&ring(1)));
        assert_ne!(check(&ring(1)), check(&ring(2)));
        assert!(!format!("{:?}", ring(0x55)).contains("VVVV"));
    }

    #[test]
    fn successors_are_derived_from_the_first_key() {
        let (a, b) = (key("a", "hs256", &[1; 32]), key("b", "hs256", &[2; 32]));
        let successor = |texts: &[&String]| KeyRing::parse(texts).unwrap().successor("sbr_x");
        assert_eq!(successor(&[&a]), successor(&[&a, &b]));
        assert_ne!(successor(&[&a]), successor(&[&b, &a]));
        assert!(successor(&[&a]).expose().starts_with("sbr_") && successor(&[&a]).expose().len() == 47);
    }
}
