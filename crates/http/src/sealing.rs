//! Encryption of secrets at rest: what the database holds of them opens with configured keys only.
//!
//! A sealed value is a version, the id of its key, a nonce and the ciphertext (XChaCha20-Poly1305); it is bound to
//! the place where it is stored, so that it cannot be moved to another row. Knows no endpoint and no store.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use rand::TryRngCore as _;
use rand::rand_core::OsError;
use switchboard_model::secret_text::SecretText;
use uuid::Uuid;

use crate::auth::check_value;

/// The form of sealed values that is written.
const VERSION: u8 = 1;

/// What the check values of keys are derived under.
const CHECK_LABEL: &[u8] = b"switchboard sealing key check";

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;

/// The longest id of a key, in characters.
const KEY_ID_CHARS: usize = 32;

/// Where a sealed value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealPlace {
    /// The table.
    pub table: &'static str,
    /// The column.
    pub column: &'static str,
    /// The identity of the row.
    pub row: Uuid,
}

/// Why configured texts are not keys. Nothing of a key is ever repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealingKeyError {
    /// A text does not have the form of a key.
    #[error(
        "sealing key {position} must be an id of 1 to 32 letters, digits, - or _, then a colon, then base64url of 32 bytes"
    )]
    Malformed {
        /// Which text, counted from 1.
        position: usize,
    },
    /// Two keys have the same id.
    #[error("two sealing keys have the id {0}")]
    Doubled(String),
    /// The operating system has no random bytes to give.
    #[error("there are no random bytes for a sealing key")]
    NoRandomness,
}

/// Why a value was not sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// There is no key at all.
    #[error("no sealing key is configured; set secrets.keys")]
    NoKey,
    /// The key by which the value was sealed is not among those that are configured.
    #[error("the sealing key {0} is missing; add it to secrets.keys")]
    KeyMissing(String),
    /// The value is not of a form that this version knows.
    #[error("the sealed value has an unknown form")]
    Malformed,
    /// The value was changed, moved from another row, or sealed by another key of the same id.
    #[error("the sealed value is not authentic under the sealing key {0}")]
    NotAuthentic(String),
    /// The operating system has no random bytes to give.
    #[error("there are no random bytes to seal with")]
    NoRandomness(#[source] OsError),
}

struct SealingKey {
    id: String,
    check: String,
    cipher: XChaCha20Poly1305,
}

/// Seals with the first of its keys and opens with all of them, so that keys can be exchanged without a stop.
pub struct Sealer {
    keys: Vec<SealingKey>,
}

impl Sealer {
    /// Reads keys in their text form `id:<base64url of 32 bytes>`. Without any, nothing can be sealed or opened.
    ///
    /// # Errors
    /// [`SealingKeyError`] says which text is wrong.
    pub fn from_texts(texts: &[SecretText]) -> Result<Self, SealingKeyError> {
        let mut keys: Vec<SealingKey> = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            let key = SealingKey::parse(text.expose()).ok_or(SealingKeyError::Malformed { position: index + 1 })?;
            if keys.iter().any(|other| other.id == key.id) {
                return Err(SealingKeyError::Doubled(key.id));
            }
            keys.push(key);
        }
        Ok(Self { keys })
    }

    /// Makes the text form of a new random key.
    ///
    /// # Errors
    /// Fails for an id that is none, and when the operating system has no random bytes to give.
    pub fn generate_text(id: &str) -> Result<SecretText, SealingKeyError> {
        if !is_key_id(id) {
            return Err(SealingKeyError::Malformed { position: 1 });
        }
        SecretText::generate(&format!("{id}:")).map_err(|_| SealingKeyError::NoRandomness)
    }

    /// Returns each id with a value that is equal on two replicas exactly when their keys are, and that tells
    /// nothing about the key.
    pub fn check_values(&self) -> impl Iterator<Item = (&str, &str)> {
        self.keys.iter().map(|key| (key.id.as_str(), key.check.as_str()))
    }

    /// Encrypts a value for the place where it will be stored.
    ///
    /// # Errors
    /// Fails without a key or without random bytes.
    pub fn seal(&self, place: &SealPlace, value: &[u8]) -> Result<Vec<u8>, SealError> {
        let key = self.keys.first().ok_or(SealError::NoKey)?;
        let mut nonce = [0_u8; NONCE_BYTES];
        rand::rngs::OsRng.try_fill_bytes(&mut nonce).map_err(SealError::NoRandomness)?;
        // An id has at most KEY_ID_CHARS bytes.
        let mut sealed = vec![VERSION, key.id.len() as u8];
        sealed.extend_from_slice(key.id.as_bytes());
        let bound = bound_to(place, &sealed);
        let payload = Payload { msg: value, aad: &bound };
        let encrypted = key.cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| SealError::Malformed)?;
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&encrypted);
        Ok(sealed)
    }

    /// Decrypts a value that was sealed for this place.
    ///
    /// # Errors
    /// [`SealError`] names the key that is missing, or says that the value is not what was sealed here.
    pub fn open(&self, place: &SealPlace, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let Sealed { head, id, nonce, encrypted } = Sealed::split(sealed).ok_or(SealError::Malformed)?;
        let missing = || SealError::KeyMissing(id.to_owned());
        let key = self.keys.iter().find(|key| key.id == id).ok_or_else(missing)?;
        let bound = bound_to(place, head);
        let payload = Payload { msg: encrypted, aad: &bound };
        key.cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| SealError::NotAuthentic(id.to_owned()))
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| &key.id)).finish()
    }
}

impl SealingKey {
    fn parse(text: &str) -> Option<Self> {
        let (id, encoded) = text.trim().split_once(':')?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('=')).ok()?;
        let bytes: [u8; KEY_BYTES] = bytes.try_into().ok()?;
        is_key_id(id).then(|| Self {
            id: id.to_owned(),
            check: check_value(&bytes, CHECK_LABEL, id),
            cipher: XChaCha20Poly1305::new(&bytes.into()),
        })
    }
}

fn is_key_id(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=KEY_ID_CHARS).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// The parts of a sealed value.
struct Sealed<'a> {
    /// The version and the id of the key.
    head: &'a [u8],
    id: &'a str,
    nonce: &'a [u8; NONCE_BYTES],
    encrypted: &'a [u8],
}

impl<'a> Sealed<'a> {
    fn split(sealed: &'a [u8]) -> Option<Self> {
        let [VERSION, length, ..] = sealed else { return None };
        let (head, rest) = sealed.split_at_checked(2 + usize::from(*length))?;
        let (nonce, encrypted) = rest.split_first_chunk()?;
        Some(Self { head, id: std::str::from_utf8(&head[2..]).ok()?, nonce, encrypted })
    }
}

/// Joins everything that a value is bound to; no table and no column contains the separator.
fn bound_to(place: &SealPlace, head: &[u8]) -> Vec<u8> {
    [head, place.table.as_bytes(), b"\n", place.column.as_bytes(), b"\n", place.row.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"hunter2-hunter2";

    fn place() -> SealPlace {
        SealPlace { table: "webhook_secrets", column: "sealed", row: Uuid::from_u128(7) }
    }

    fn sealer(texts: &[&SecretText]) -> Sealer {
        Sealer::from_texts(&texts.iter().map(|text| (*text).clone()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_first_key_seals_and_all_keys_open() {
        let (old, new) = (Sealer::generate_text("old").unwrap(), Sealer::generate_text("new").unwrap());
        let before = sealer(&[&old]).seal(&place(), SECRET).unwrap();
        let during = sealer(&[&new, &old]);
        assert_eq!(during.open(&place(), &before).unwrap(), SECRET);
        let after = during.seal(&place(), SECRET).unwrap();
        assert_eq!(sealer(&[&new]).open(&place(), &after).unwrap(), SECRET);
        let missing = sealer(&[&new]).open(&place(), &before).unwrap_err();
        assert_eq!(missing.to_string(), "the sealing key old is missing; add it to secrets.keys");
        assert_ne!(during.seal(&place(), SECRET).unwrap(), after, "every nonce is new");
    }

    #[test]
    fn a_value_opens_at_its_place_only_and_unchanged_only() {
        let sealer = sealer(&[&Sealer::generate_text("k").unwrap()]);
        let sealed = sealer.seal(&place(), SECRET).unwrap();
        for elsewhere in [
            SealPlace { row: Uuid::from_u128(8), ..place() },
            SealPlace { column: "other", ..place() },
            SealPlace { table: "other", ..place() },
        ] {
            assert!(matches!(sealer.open(&elsewhere, &sealed), Err(SealError::NotAuthentic(_))));
        }
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert!(sealer.open(&place(), &changed).is_err(), "byte {index}");
            assert!(sealer.open(&place(), &sealed[..index]).is_err(), "cut at {index}");
        }
        let other = self::sealer(&[&Sealer::generate_text("k").unwrap()]);
        assert!(matches!(other.open(&place(), &sealed), Err(SealError::NotAuthentic(_))));
    }

    #[test]
    fn errors_name_the_position_and_never_the_key() {
        let key = Sealer::generate_text("k").unwrap();
        let read = |texts: &[&str]| {
            let texts: Vec<_> = texts.iter().map(|text| SecretText::from_presented((*text).to_owned())).collect();
            Sealer::from_texts(&texts)
        };
        let good = key.expose();
        for bad in [&good[2..], "", "k", "k:", "k:hunter2", &format!("a b{good}"), &format!("{good}AA")] {
            let error = read(&[good, bad]).unwrap_err();
            assert_eq!(error, SealingKeyError::Malformed { position: 2 }, "{bad}");
            assert!(!error.to_string().contains("hunter2"));
        }
        assert_eq!(read(&[good, good]).unwrap_err(), SealingKeyError::Doubled("k".to_owned()));
        assert!(Sealer::generate_text("a:b").is_err());
        assert_eq!(format!("{:?}", read(&[good]).unwrap()), r#"["k"]"#);
        assert!(matches!(read(&[]).unwrap().seal(&place(), SECRET), Err(SealError::NoKey)));
    }
}
