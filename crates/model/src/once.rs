//! Once-keys that programs claim by themselves, before something that must not happen twice.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::{ClientKey, Namespace};
use crate::ids::Fence;
use crate::json_text::JsonText;
use crate::span::Span;

/// How long a claimant has before its claim counts as unknown, when nobody says.
pub const ONCE_LEASE: Span = Span::from_secs(60);

/// How long a key is remembered after its claim, when nobody says.
pub const ONCE_TTL: Span = Span::from_secs(24 * 3600);

/// The longest time that a key is remembered.
pub const LONGEST_ONCE_TTL: Span = Span::from_secs(400 * 24 * 3600);

/// How a once-key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnceState {
    /// Somebody has claimed it and works.
    InFlight,
    /// Somebody has claimed it, and their time is over: what they did, if anything, is not known.
    Unknown,
    /// It is completed.
    Done,
}

/// Names a once-key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OnceKey {
    /// Keys of different scopes are different keys.
    pub scope: Namespace,
    /// The key.
    pub key: ClientKey,
}

/// A claim on a once-key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOnce {
    /// Which key.
    pub key: OnceKey,
    /// A hash of what it is claimed for, to tell a repetition from something else.
    pub request_hash: [u8; 32],
    /// How long the claimant has before the claim counts as unknown.
    pub lease: Span,
    /// How long the key is remembered.
    pub ttl: Span,
    /// What completes the key together with the claim.
    pub result: Option<JsonText>,
}

/// A once-key that was claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OnceEntry {
    /// How it stands.
    pub state: OnceState,
    /// The number of the claim; whoever takes it over gets a greater one.
    pub fence: Fence,
    /// What it was completed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JsonText>,
    /// Until when the claimant has time, in database time.
    pub lease_until: Timestamp,
    /// Until when the key is remembered.
    pub expires_at: Timestamp,
}
