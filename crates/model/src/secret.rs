//! Named secrets: values that requests of tasks carry and that nobody reads back.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::SecretName;
use crate::ids::SecretId;
use crate::sealed::Sealed;

/// The value of a secret on its way in; it has no `Display` and no readable `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("format" = "password", "writeOnly" = true))]
pub struct SecretValue(#[schemars(length(min = Self::SHORTEST, max = Self::LONGEST))] String);

impl SecretValue {
    /// The fewest bytes; shorter values could not be kept out of results and errors.
    pub const SHORTEST: usize = 4;
    /// The most bytes.
    pub const LONGEST: usize = 8 * 1024;

    /// Takes a value as somebody gave it.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Shows the value; only to encrypt it and to send it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Tells whether it may be set: 4 to 8192 bytes.
    #[must_use]
    pub fn has_allowed_length(&self) -> bool {
        (Self::SHORTEST..=Self::LONGEST).contains(&self.0.len())
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(…)")
    }
}

/// A secret as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSecret {
    /// The identity.
    pub id: SecretId,
    /// The unique name.
    pub name: SecretName,
    /// Grows by one each time it is set.
    pub version: i64,
    /// The encrypted value.
    pub sealed: Sealed,
    /// When it was set first.
    pub created_at: Timestamp,
    /// When it was set last.
    pub updated_at: Timestamp,
}

/// A secret to be set.
#[derive(Clone, Debug)]
pub struct NewSecret {
    /// The identity that the value is sealed for: that of the secret to be replaced, or a new one.
    pub id: SecretId,
    /// The unique name.
    pub name: SecretName,
    /// The encrypted value.
    pub sealed: Sealed,
}
