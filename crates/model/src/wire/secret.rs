//! Bodies of the REST surface about named secrets, the keys that encrypt them, and tokens of providers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::{SecretName, TokenName};
use crate::ids::{SecretId, TokenId};
use crate::sealed::SealedTable;
use crate::secret::SecretValue;
use crate::span::Span;
use crate::token::TokenProvider;

/// Sets a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretRequest {
    /// The value; no answer ever shows it.
    pub value: SecretValue,
    /// The version that it replaces, 0 for none; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
}

/// A secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Secret {
    /// The identity.
    pub id: SecretId,
    /// The unique name.
    pub name: SecretName,
    /// Grows by one each time it is set.
    pub version: i64,
    /// The id of the key that encrypts it.
    pub key_id: String,
    /// When it was set first.
    pub created_at: Timestamp,
    /// When it was set last.
    pub updated_at: Timestamp,
}

/// Which keys encrypt what is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SealingReport {
    /// The id of the key by which the replica that answers encrypts.
    pub encrypts: String,
    /// The id of the key under which all values are to be.
    pub current: String,
    /// How many values each key encrypts, by table.
    pub keys: Vec<SealingKeyReport>,
}

/// How many values of a table a key encrypts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SealingKeyReport {
    /// The id of the key; absent for values of an unknown form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// Whether the replica that answers has the key.
    pub is_configured: bool,
    /// The table.
    pub table: SealedTable,
    /// How many values there are.
    pub values: u64,
    /// How many of them are to be encrypted anew.
    pub stale: u64,
}

/// Encrypts stored values anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RewrapRequest {
    /// The id of the key to which everything goes, which must be the one by which the replica that answers encrypts: it
    /// becomes the current one, as after going back to an earlier key. The current one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
}

/// What a stretch of encrypting anew has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RewrapReport {
    /// How many values are under the current key now that were not before.
    pub rewrapped: u64,
    /// How many could not be read, for want of their key.
    pub unreadable: u64,
    /// How many are left; those that could not be read are among them.
    pub left: u64,
    /// The ids of the keys that nothing needs any more; they can be removed from `secrets.keys`.
    pub retired: Vec<String>,
}

/// Sets a token: what its provider must be told to give access tokens.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenSetRequest {
    /// Where access tokens come from.
    pub provider: TokenProvider,
    /// The refresh token; without one the server asks in its own name (grant `client_credentials`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<SecretValue>,
    /// An access token that is there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<SecretValue>,
    /// How long that one lives; unknown when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Span>,
}

/// A token of a provider, without what is secret about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// The identity.
    pub id: TokenId,
    /// The unique name.
    pub name: TokenName,
    /// Where access tokens come from.
    pub provider: TokenProvider,
    /// Grows by one each time it is set or renewed.
    pub version: i64,
    /// The id of the key that encrypts it.
    pub key_id: String,
    /// When the provider gave the access token; absent when there is none yet.
    pub granted_at: Option<Timestamp>,
    /// When the access token expires; absent when nobody knows.
    pub expires_at: Option<Timestamp>,
    /// How many times in a row the provider gave none.
    pub failures: u32,
    /// Before which time the provider is not asked again.
    pub retry_at: Option<Timestamp>,
    /// Why the provider gave none.
    pub last_error: Option<String>,
    /// When it was set first.
    pub created_at: Timestamp,
    /// When it was set last.
    pub updated_at: Timestamp,
}

/// Asks for an access token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenAccessRequest {
    /// How long it must still live, `30s` when absent; never more than half of how long the provider lets it live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ttl: Option<Span>,
    /// The version of an access token that was refused where it was presented: it is not handed out again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_version: Option<i64>,
}

/// An access token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenAccess {
    /// The access token.
    pub access_token: String,
    /// How it is presented, mostly `Bearer`.
    pub token_type: String,
    /// When it expires; absent when nobody knows.
    pub expires_at: Option<Timestamp>,
    /// The version of the token, to tell when it is refused.
    pub version: i64,
}
