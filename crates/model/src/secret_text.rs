//! Random secrets that are shown once and stored as hashes: tickets and API keys.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRngCore as _;
use sha2::{Digest as _, Sha256};

/// The SHA-256 of a secret; the only form in which a secret is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretHash(pub [u8; 32]);

impl SecretHash {
    /// Hashes the text form of a secret.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Returns the hash as the databases store it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(…)")
    }
}

/// A secret in its text form; it has no `Display`, so that it cannot slip into a log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Makes a secret of 32 random bytes: `prefix` and 43 characters of URL-safe base64.
    ///
    /// # Errors
    /// Fails when the operating system has no random bytes to give.
    pub fn generate(prefix: &str) -> Result<Self, rand::rand_core::OsError> {
        let mut bytes = [0_u8; 32];
        rand::rngs::OsRng.try_fill_bytes(&mut bytes)?;
        Ok(Self(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes))))
    }

    /// Takes a secret that somebody presented or configured.
    #[must_use]
    pub fn from_presented(text: String) -> Self {
        Self(text)
    }

    /// Shows the secret; only for the one response that hands it out.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Hashes the secret.
    #[must_use]
    pub fn hash(&self) -> SecretHash {
        SecretHash::of(&self.0)
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}
