//! API keys: hashed, scoped, expiring credentials of programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::ids::ApiKeyId;
use crate::scope::Scope;
use crate::secret_text::SecretHash;

/// The prefix that marks a text as an API key of Switchboard.
pub const API_KEY_PREFIX: &str = "sbk_";

/// A stored API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApiKey {
    /// The identity of the key.
    pub id: ApiKeyId,
    /// What the operator calls it.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops working by itself.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

impl ApiKey {
    /// Tells whether some scope of this key grants `wanted`.
    #[must_use]
    pub fn allows(&self, wanted: &Scope) -> bool {
        self.scopes.iter().any(|held| held.grants(wanted))
    }
}

/// A key to be stored.
#[derive(Clone, Debug)]
pub struct NewApiKey {
    /// The identity of the key.
    pub id: ApiKeyId,
    /// What the operator calls it.
    pub name: String,
    /// The hash of its secret.
    pub hash: SecretHash,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// How long it works; `None` means until it is revoked.
    pub ttl: Option<crate::span::Span>,
}
