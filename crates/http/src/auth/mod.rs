//! Sign-in: keys, tokens, passwords, and the tokens of other issuers. Knows no endpoint.

mod external;
mod jwks;
mod keys;
pub(crate) mod passwords;
pub(crate) mod tokens;

use std::sync::Arc;

use switchboard_model::span::Span;

pub use external::{ExternalIssuer, ExternalKeys};
pub use jwks::{JwksError, JwksSource};
pub(crate) use keys::check_value;
pub use keys::{KeyAlgorithm, KeyError, KeyRing};
pub use passwords::Hashing;

/// What operators decide about sign-in.
#[derive(Clone, Debug)]
pub struct AuthOptions {
    /// The keys of access tokens.
    pub keys: Arc<KeyRing>,
    /// Who issues access tokens: the claim `iss`.
    pub issuer: String,
    /// For whom they are: the claim `aud`.
    pub audience: String,
    /// How long an access token works.
    pub access_ttl: Span,
    /// How long a sign-in session lives whatever happens.
    pub session_ttl: Span,
    /// How long it lives without a refresh.
    pub idle_ttl: Span,
    /// Whether people may make accounts for themselves.
    pub registration: bool,
    /// Whose tokens are accepted beside our own.
    pub external: Option<Arc<ExternalKeys>>,
    /// What hashing a password costs.
    pub hashing: Hashing,
}

impl AuthOptions {
    /// Decides by default: tokens work ten minutes, sessions 30 days and 7 without a refresh, nobody may
    /// register.
    #[must_use]
    pub fn new(keys: Arc<KeyRing>) -> Self {
        Self {
            keys,
            issuer: "switchboard".to_owned(),
            audience: "switchboard".to_owned(),
            access_ttl: Span::from_secs(600),
            session_ttl: Span::from_secs(30 * 24 * 3600),
            idle_ttl: Span::from_secs(7 * 24 * 3600),
            registration: false,
            external: None,
            hashing: Hashing::default(),
        }
    }
}

/// Registers the metrics of sign-in at zero.
pub(crate) fn describe_metrics() {
    external::describe_metrics();
}
