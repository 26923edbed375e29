//! Tokens of providers (OAuth 2.0): kept encrypted, and renewed by one replica for all.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::{SecretName, TokenName};
use crate::ids::{Fence, TokenId};
use crate::sealed::Sealed;
use crate::span::Span;
use crate::task::check_url;
use crate::text_enum::text_enum;

text_enum! {
    /// How the server proves to a provider who it is (RFC 6749, 2.3.1).
    #[derive(Default)]
    ClientAuth, "client authentication" {
        /// In the header `Authorization`.
        #[default]
        Basic = "basic",
        /// In the form that is sent.
        Form = "form",
    }
}

/// Where tokens come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenProvider {
    /// The token endpoint: an absolute `http` or `https` URL.
    pub token_url: String,
    /// Who the server is to the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The name of the secret by which the server proves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<SecretName>,
    /// How it does.
    #[serde(default)]
    pub client_auth: ClientAuth,
    /// What the token is to be good for, as the provider names it; whatever it grants when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// Why a provider cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct TokenProviderError {
    /// The field that is wrong.
    pub field: &'static str,
    /// What it must be.
    pub reason: &'static str,
}

impl TokenProvider {
    /// The longest client id and scope, in bytes.
    pub const TEXT_BYTES: usize = 1_024;

    /// Checks what can be checked before the provider is asked.
    ///
    /// # Errors
    /// [`TokenProviderError`] names the first field that is wrong.
    pub fn check(&self) -> Result<(), TokenProviderError> {
        let refuse = |field, reason| Err(TokenProviderError { field, reason });
        if let Err(reason) = check_url(&self.token_url) {
            return refuse("provider.token_url", reason);
        }
        let is_text = |text: &str| {
            (1..=Self::TEXT_BYTES).contains(&text.len()) && text.bytes().all(|b| (b' '..=b'~').contains(&b))
        };
        for (field, text) in [("provider.client_id", &self.client_id), ("provider.scope", &self.scope)] {
            if text.as_ref().is_some_and(|text| !is_text(text)) {
                return refuse(field, "must be 1 to 1024 printable ASCII characters");
            }
        }
        if self.client_secret.is_some() && self.client_id.is_none() {
            return refuse("provider.client_id", "is needed beside a client secret");
        }
        Ok(())
    }
}

/// A token as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredToken {
    /// The identity.
    pub id: TokenId,
    /// The unique name.
    pub name: TokenName,
    /// Where it comes from.
    pub provider: TokenProvider,
    /// What is secret about it, encrypted.
    pub sealed: Sealed,
    /// Grows by one each time the token is set or renewed.
    pub version: i64,
    /// When there was an access token last; `None` when there is none.
    pub granted_at: Option<Timestamp>,
    /// When the access token expires; `None` when the provider does not say.
    pub expires_at: Option<Timestamp>,
    /// Until when one replica alone may ask the provider; `None` when nobody does.
    pub refresh_until: Option<Timestamp>,
    /// How many times in a row the provider gave none.
    pub failures: u32,
    /// Before which time the provider is not asked again.
    pub retry_at: Option<Timestamp>,
    /// Why the provider gave none, without anything secret.
    pub last_error: Option<String>,
    /// When it was set first.
    pub created_at: Timestamp,
    /// When it was set last.
    pub updated_at: Timestamp,
}

/// A token, and the time of the database at which it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenReading {
    /// The token.
    pub token: StoredToken,
    /// When it was read.
    pub now: Timestamp,
}

/// A token to be set.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// The identity that it is sealed for: that of the token to be replaced, or a new one.
    pub id: TokenId,
    /// The unique name.
    pub name: TokenName,
    /// Where it comes from.
    pub provider: TokenProvider,
    /// The access token, if there is one.
    pub granted: TokenGrant,
}

/// What is written when there is a new access token, or the absence of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenGrant {
    /// What is secret about it, encrypted.
    pub sealed: Sealed,
    /// Whether and for how long there is an access token.
    pub access: Granted,
}

/// Whether there is an access token, and how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// There is none yet.
    Nothing,
    /// There is one whose end nobody knows.
    ForEver,
    /// There is one for so long.
    For(Span),
}

/// The right to ask the provider of a token, held by one replica for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefreshHold {
    /// The token.
    pub id: TokenId,
    /// The version that is renewed.
    pub version: i64,
    /// The fence of the hold.
    pub fence: Fence,
}

/// What is remembered when a provider gave no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefreshFailure {
    /// Why, without anything secret.
    pub error: String,
    /// How long nobody asks again.
    pub pause: Span,
}
