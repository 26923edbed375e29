//! Encryption of secrets at rest: what the database holds of them opens with configured keys only.
//!
//! A sealed value is a version, the id of a configured key, a data key encrypted by that key, and the value encrypted by
//! the data key (XChaCha20-Poly1305 twice, each with a nonce before it). Both are bound to the place where the value is
//! stored, so that it cannot be moved to another row. To go to another configured key, only the data key is encrypted
//! anew. Earlier versions encrypted the value by the configured key itself; such values are still read. Knows no endpoint.

mod canary;
mod lookup;
mod rewrap;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use rand::TryRngCore as _;
use rand::rand_core::OsError;
use switchboard_model::sealed::{Sealed, SealedTable};
use switchboard_model::secret_text::SecretText;
use uuid::Uuid;

use crate::auth::check_value;

pub use canary::{CanaryError, check_keys};
pub use lookup::{SecretLookupError, look_up};
pub use rewrap::{RewrapError, rewrap};

/// The form of sealed values that is written.
const VERSION: u8 = 2;
/// The form without a data key, which is read.
const WITHOUT_DATA_KEY: u8 = 1;

/// What the check values of keys are derived under.
const CHECK_LABEL: &[u8] = b"switchboard sealing key check";

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// What encryption adds to a value: the nonce before it and the tag behind it.
const OVERHEAD_BYTES: usize = NONCE_BYTES + 16;

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

impl SealPlace {
    /// Names the place of a value in one of the tables that have some.
    #[must_use]
    pub const fn of(table: SealedTable, row: Uuid) -> Self {
        Self { table: table.as_str(), column: "sealed", row }
    }
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

    /// Returns the id of the key that seals.
    ///
    /// # Errors
    /// Fails without a key.
    pub fn key_id(&self) -> Result<&str, SealError> {
        self.keys.first().map(|key| key.id.as_str()).ok_or(SealError::NoKey)
    }

    /// Tells whether there is a key of this id.
    #[must_use]
    pub fn has_key(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id == id)
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
    pub fn seal(&self, place: &SealPlace, value: &[u8]) -> Result<Sealed, SealError> {
        let mut data_key = [0_u8; KEY_BYTES];
        rand::rngs::OsRng.try_fill_bytes(&mut data_key).map_err(SealError::NoRandomness)?;
        let cipher = XChaCha20Poly1305::new(&data_key.into());
        let encrypted = encrypt(&cipher, &bound_to(place, &[VERSION]), value)?;
        self.wrap(place, &data_key, &encrypted)
    }

    /// Decrypts a value that was sealed for this place.
    ///
    /// # Errors
    /// [`SealError`] names the key that is missing, or says that the value is not what was sealed here.
    pub fn open(&self, place: &SealPlace, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let parts = Parts::of(sealed)?;
        let key = self.find(parts.id)?;
        let not_authentic = || SealError::NotAuthentic(parts.id.to_owned());
        if parts.version == WITHOUT_DATA_KEY {
            return decrypt(&key.cipher, &bound_to(place, parts.head), parts.rest).ok_or_else(not_authentic);
        }
        let (data_key, encrypted) = unwrapped(key, place, &parts)?;
        let cipher = XChaCha20Poly1305::new(&data_key.into());
        decrypt(&cipher, &bound_to(place, &[VERSION]), encrypted).ok_or_else(not_authentic)
    }

    /// Returns the value under the key that seals now, of which only the data key is encrypted anew, or `None` for a
    /// value that is under it already.
    ///
    /// # Errors
    /// As [`Sealer::open`] and [`Sealer::seal`].
    pub fn rewrap(&self, place: &SealPlace, sealed: &[u8]) -> Result<Option<Sealed>, SealError> {
        let parts = Parts::of(sealed)?;
        if parts.version == WITHOUT_DATA_KEY {
            return self.seal(place, &self.open(place, sealed)?).map(Some);
        }
        if parts.id == self.key_id()? {
            return Ok(None);
        }
        let (data_key, encrypted) = unwrapped(self.find(parts.id)?, place, &parts)?;
        self.wrap(place, &data_key, encrypted).map(Some)
    }

    /// Returns how values begin that are sealed now.
    ///
    /// # Errors
    /// Fails without a key.
    fn head(&self) -> Result<Vec<u8>, SealError> {
        Ok(Sealed::head_of(VERSION, self.key_id()?))
    }

    /// Tells whether values that are sealed now begin so.
    pub(crate) fn is_written(&self, head: &Sealed) -> bool {
        self.head().is_ok_and(|own| own == head.0)
    }

    fn wrap(&self, place: &SealPlace, data_key: &[u8], encrypted: &[u8]) -> Result<Sealed, SealError> {
        let key = self.keys.first().ok_or(SealError::NoKey)?;
        let head = Sealed::head_of(VERSION, &key.id);
        let wrapped = encrypt(&key.cipher, &bound_to(place, &head), data_key)?;
        Ok(Sealed([head.as_slice(), &wrapped, encrypted].concat()))
    }

    fn find(&self, id: &str) -> Result<&SealingKey, SealError> {
        self.keys.iter().find(|key| key.id == id).ok_or_else(|| SealError::KeyMissing(id.to_owned()))
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
struct Parts<'a> {
    version: u8,
    /// The version and the id of the key.
    head: &'a [u8],
    id: &'a str,
    /// What is encrypted.
    rest: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(sealed: &'a [u8]) -> Result<Self, SealError> {
        let [version @ (VERSION | WITHOUT_DATA_KEY), length, ..] = sealed else { return Err(SealError::Malformed) };
        let split = sealed.split_at_checked(2 + usize::from(*length));
        let (head, rest) = split.ok_or(SealError::Malformed)?;
        let id = std::str::from_utf8(&head[2..]).map_err(|_| SealError::Malformed)?;
        Ok(Self { version: *version, head, id, rest })
    }
}

/// Returns the data key of a value, and the value as that has encrypted it.
fn unwrapped<'a>(
    key: &SealingKey,
    place: &SealPlace,
    parts: &Parts<'a>,
) -> Result<([u8; KEY_BYTES], &'a [u8]), SealError> {
    let split = parts.rest.split_at_checked(OVERHEAD_BYTES + KEY_BYTES);
    let (wrapped, encrypted) = split.ok_or(SealError::Malformed)?;
    let data_key = decrypt(&key.cipher, &bound_to(place, parts.head), wrapped);
    let data_key = data_key.and_then(|bytes| bytes.try_into().ok());
    Ok((data_key.ok_or_else(|| SealError::NotAuthentic(parts.id.to_owned()))?, encrypted))
}

/// Encrypts under a new nonce, which goes before.
fn encrypt(cipher: &XChaCha20Poly1305, bound: &[u8], value: &[u8]) -> Result<Vec<u8>, SealError> {
    let mut nonce = [0_u8; NONCE_BYTES];
    rand::rngs::OsRng.try_fill_bytes(&mut nonce).map_err(SealError::NoRandomness)?;
    let payload = Payload { msg: value, aad: bound };
    let encrypted = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| SealError::Malformed)?;
    Ok([nonce.as_slice(), &encrypted].concat())
}

fn decrypt(cipher: &XChaCha20Poly1305, bound: &[u8], encrypted: &[u8]) -> Option<Vec<u8>> {
    let (nonce, encrypted) = encrypted.split_first_chunk::<NONCE_BYTES>()?;
    cipher.decrypt(&XNonce::from(*nonce), Payload { msg: encrypted, aad: bound }).ok()
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
        assert_eq!(during.open(&place(), &before.0).unwrap(), SECRET);
        let after = during.seal(&place(), SECRET).unwrap();
        assert_eq!(sealer(&[&new]).open(&place(), &after.0).unwrap(), SECRET);
        let missing = sealer(&[&new]).open(&place(), &before.0).unwrap_err();
        assert_eq!(missing.to_string(), "the sealing key old is missing; add it to secrets.keys");
        assert_ne!(during.seal(&place(), SECRET).unwrap(), after, "every nonce is new");
    }

    #[test]
    fn a_value_opens_at_its_place_only_and_unchanged_only() {
        let sealer = sealer(&[&Sealer::generate_text("k").unwrap()]);
        let sealed = sealer.seal(&place(), SECRET).unwrap().0;
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
    fn a_value_goes_to_another_key_without_being_encrypted_anew() {
        let (old, new) = (Sealer::generate_text("old").unwrap(), Sealer::generate_text("new").unwrap());
        let before = sealer(&[&old]).seal(&place(), SECRET).unwrap();
        let both = sealer(&[&new, &old]);
        let after = both.rewrap(&place(), &before.0).unwrap().unwrap();
        assert_eq!((before.key_id(), after.key_id()), (Some("old"), Some("new")));
        assert_eq!(sealer(&[&new]).open(&place(), &after.0).unwrap(), SECRET);
        let encrypted = |sealed: &Sealed| sealed.split().unwrap().1[OVERHEAD_BYTES + KEY_BYTES..].to_vec();
        assert_eq!(encrypted(&before), encrypted(&after));
        assert!(after.0.starts_with(&both.head().unwrap()));
        assert_eq!(both.rewrap(&place(), &after.0).unwrap(), None, "it is there");
        assert!(matches!(sealer(&[&new]).rewrap(&place(), &before.0), Err(SealError::KeyMissing(_))));
        let elsewhere = SealPlace { row: Uuid::from_u128(8), ..place() };
        assert!(matches!(both.rewrap(&elsewhere, &before.0), Err(SealError::NotAuthentic(_))));
    }

    #[test]
    fn values_of_earlier_versions_are_read_and_get_a_data_key() {
        // `hunter2-hunter2`, as the version before data keys has sealed it.
        let key = SecretText::from_presented(format!("k:{}", URL_SAFE_NO_PAD.encode([7_u8; KEY_BYTES])));
        let before = {
            let head = Sealed::head_of(WITHOUT_DATA_KEY, "k");
            let cipher = XChaCha20Poly1305::new(&[7_u8; KEY_BYTES].into());
            let payload = Payload { msg: SECRET, aad: &bound_to(&place(), &head) };
            let encrypted = cipher.encrypt(&XNonce::from([9_u8; NONCE_BYTES]), payload).unwrap();
            [head.as_slice(), &[9_u8; NONCE_BYTES], &encrypted].concat()
        };
        let sealer = sealer(&[&key]);
        assert_eq!(sealer.open(&place(), &before).unwrap(), SECRET);
        let after = sealer.rewrap(&place(), &before).unwrap().unwrap();
        assert!(after.0.starts_with(&sealer.head().unwrap()));
        assert_eq!(sealer.open(&place(), &after.0).unwrap(), SECRET);
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
