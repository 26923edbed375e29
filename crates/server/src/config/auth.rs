//! The sections of the configuration that are about who may do what, and how often.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use switchboard_model::limit::Rate;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use switchboard_model::state::StateUsage;
use switchboard_model::wire::limits::SOCKETS_PER_USER;

use super::{kind, text};

/// Sign-in, and the tokens that it gives.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Auth {
    /// The keys of access tokens, each `ID:hs256:` or `ID:ed25519:` and base64url of 32 bytes (at least, for hs256),
    /// as `switchboard token new-key` makes them. The first signs, all verify. When there are none, a single replica
    /// makes one and keeps it in a file.
    #[serde(deserialize_with = "text::secrets")]
    #[schemars(with = "Vec<kind::Secret>")]
    pub(crate) signing_keys: Vec<SecretText>,
    /// A file that holds the signing keys, one a line.
    #[schemars(with = "Option<kind::Path>")]
    pub(crate) signing_keys_file: Option<PathBuf>,
    /// Who the tokens say issued them.
    pub(crate) issuer: String,
    /// Whom the tokens say they are for.
    pub(crate) audience: String,
    /// How long an access token works, 10s to 1day.
    #[schemars(with = "kind::Duration")]
    pub(crate) access_ttl: Span,
    /// How long a sign-in lasts whatever happens, at most 10years.
    #[schemars(with = "kind::Duration")]
    pub(crate) session_ttl: Span,
    /// How long a sign-in lasts without a refresh.
    #[schemars(with = "kind::Duration")]
    pub(crate) idle_ttl: Span,
    /// Whether people may register by themselves.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) registration: bool,
    /// Somebody else whose tokens are accepted as well.
    pub(crate) external: Option<ExternalIssuer>,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            signing_keys: Vec::new(),
            signing_keys_file: None,
            issuer: "switchboard".to_owned(),
            audience: "switchboard".to_owned(),
            access_ttl: Span::from_secs(600),
            session_ttl: Span::from_secs(30 * 24 * 3600),
            idle_ttl: Span::from_secs(7 * 24 * 3600),
            registration: false,
            external: None,
        }
    }
}

/// An issuer of tokens that is not this server; all three settings are needed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ExternalIssuer {
    /// What its tokens name as `iss`.
    pub(crate) issuer: String,
    /// What its tokens must name as `aud`.
    pub(crate) audience: String,
    /// Its keys as a JWK set: the path of a file, or an `https` or `http` URL.
    #[schemars(with = "kind::Url")]
    pub(crate) jwks: String,
}

/// Encryption of what is stored and must be read again.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Secrets {
    /// The keys of stored secrets, each `ID:` and base64url of 32 bytes. The first encrypts, all decrypt. When there
    /// are none, a single replica makes one and keeps it in a file.
    #[serde(deserialize_with = "text::secrets")]
    #[schemars(with = "Vec<kind::Secret>")]
    pub(crate) keys: Vec<SecretText>,
    /// A file that holds the keys, one a line.
    #[schemars(with = "Option<kind::Path>")]
    pub(crate) keys_file: Option<PathBuf>,
    /// How long the provider of a token may take to answer, 100ms to 15s. A replica that dies while it asks is followed by
    /// another one five seconds after that.
    #[schemars(with = "kind::Duration")]
    pub(crate) token_timeout: Span,
}

impl Default for Secrets {
    fn default() -> Self {
        Self { keys: Vec::new(), keys_file: None, token_timeout: Span::from_secs(10) }
    }
}

/// How often something may be done: `20/1m`, or `20/1m burst 40` when another number may come at once. The limits
/// hold for the fleet as a whole.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Sign-ins of one account.
    #[schemars(with = "kind::Rate")]
    pub(crate) login_account: Rate,
    /// Sign-ins from one address; a /64 of IPv6 is one.
    #[schemars(with = "kind::Rate")]
    pub(crate) login_address: Rate,
    /// All sign-ins.
    #[schemars(with = "kind::Rate")]
    pub(crate) login_global: Rate,
    /// Requests of one credential, or of one address without any; ten times as many of one address and replica under
    /// all credentials. There is no limit when absent.
    #[schemars(with = "Option<kind::Rate>")]
    pub(crate) requests: Option<Rate>,
    /// How long the database may take to decide, 10ms to 1m. After that each replica limits sign-ins and
    /// requests by itself for a while.
    #[schemars(with = "kind::Duration")]
    pub(crate) patience: Span,
    /// The most open sockets of one user, over all replicas, 1 to 100000; answers that go on as events on the same replica
    /// count as sockets.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) sockets_per_user: u32,
    /// The most keys of one namespace of shared state.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) state_keys: u32,
    /// The most bytes of the keys and values of one namespace of shared state.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) state_bytes: u64,
}

impl Limits {
    /// Returns how much each namespace of shared state may hold.
    pub(crate) fn state(&self) -> StateUsage {
        StateUsage { keys: self.state_keys.into(), bytes: i64::try_from(self.state_bytes).unwrap_or(i64::MAX) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            login_account: per_minute(10),
            login_address: per_minute(60),
            login_global: per_minute(3_000),
            requests: None,
            patience: Span::from_secs(1),
            sockets_per_user: SOCKETS_PER_USER,
            state_keys: 100_000,
            state_bytes: 64 * 1024 * 1024,
        }
    }
}

fn per_minute(count: u32) -> Rate {
    // A minute and the counts above are far within the range of rates.
    #[expect(clippy::expect_used, reason = "the numbers are constants in range")]
    Rate::new(count, Span::from_secs(60), count).expect("a rate in range")
}
