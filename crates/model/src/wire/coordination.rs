//! Bodies of the coordination primitives: leases, once-keys and shared state.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::ClientKey;
use crate::ids::Fence;
use crate::json_text::JsonText;
use crate::lease::{LEASE_TTL, Lease};
use crate::once::{ONCE_LEASE, ONCE_TTL, OnceState};
use crate::span::Span;

/// Asks for a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseAcquireRequest {
    /// Who will hold it: a name that is new for each hold, so that a repeated request finds its own hold; made by the
    /// server when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<ClientKey>,
    /// How long it holds unless it is renewed: 100 ms to 24 h.
    pub ttl: Span,
    /// What the holder says about itself, at most 4 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<JsonText>,
}

impl Default for LeaseAcquireRequest {
    fn default() -> Self {
        Self { holder: None, ttl: LEASE_TTL, meta: None }
    }
}

/// Whether a lease was acquired, and who holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseAcquired {
    /// Whether this request acquired it; somebody else holds it otherwise.
    pub acquired: bool,
    /// The lease as it stands.
    pub lease: Lease,
    /// How long it holds unless it is renewed, in milliseconds; clocks of clients do not matter.
    pub remaining_ms: u64,
}

/// Prolongs a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRenewRequest {
    /// Who holds it.
    pub holder: ClientKey,
    /// The number of the hold.
    pub fence: Fence,
    /// How long it holds from now on: 100 ms to 24 h.
    #[serde(default = "lease_ttl")]
    pub ttl: Span,
}

fn lease_ttl() -> Span {
    LEASE_TTL
}

/// Gives a lease back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseReleaseRequest {
    /// Who holds it.
    pub holder: ClientKey,
    /// The number of the hold.
    pub fence: Fence,
}

/// Claims a once-key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OnceClaimRequest {
    /// What the key is claimed for, or a hash of it: the same key with another one is refused.
    pub request: JsonText,
    /// How long the claimant has before the claim counts as unknown.
    pub lease: Span,
    /// How long the key is remembered from now on, at most 400 days.
    pub ttl: Span,
    /// Completes the key together with the claim, for what is done by the claim itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<JsonText>,
}

impl Default for OnceClaimRequest {
    fn default() -> Self {
        Self { request: JsonText::null(), lease: ONCE_LEASE, ttl: ONCE_TTL, result: None }
    }
}

/// How a claim on a once-key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnceOutcome {
    /// The key is the caller's: do the work, then complete it or give it up.
    New,
    /// The work was done before, with this result.
    Done,
    /// Somebody claimed the key and has not said in time what became of it. Find out whether it was done; then take the
    /// key over or give it up, with this fence.
    Unknown,
}

/// The answer to a claim on a once-key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OnceClaimed {
    /// How it ended.
    pub outcome: OnceOutcome,
    /// The number of the claim that stands.
    pub fence: Fence,
    /// What the key was completed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JsonText>,
    /// Until when its claimant has time.
    pub lease_until: Timestamp,
    /// Until when the key is remembered.
    pub expires_at: Timestamp,
}

impl OnceClaimed {
    /// Tells an outcome from how a key that was found stands; `None` while somebody works.
    #[must_use]
    pub const fn outcome_of(state: OnceState) -> Option<OnceOutcome> {
        match state {
            OnceState::InFlight => None,
            OnceState::Unknown => Some(OnceOutcome::Unknown),
            OnceState::Done => Some(OnceOutcome::Done),
        }
    }
}

/// Completes a once-key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnceCompleteRequest {
    /// The number of the claim.
    pub fence: Fence,
    /// What later claims are answered with.
    #[serde(default = "JsonText::null")]
    pub result: JsonText,
}

/// Gives a once-key up, so that it can be claimed again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnceAbandonRequest {
    /// The number of the claim.
    pub fence: Fence,
}

/// Takes over a once-key whose claimant is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnceTakeOverRequest {
    /// The number of the claim that was seen to be unknown.
    pub fence: Fence,
    /// How long the new claimant has.
    #[serde(default = "once_lease")]
    pub lease: Span,
}

fn once_lease() -> Span {
    ONCE_LEASE
}

/// Stores a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatePutRequest {
    /// The value, at most 1 MiB.
    pub value: JsonText,
    /// The version that it takes the place of; 0 means that there must be none. Whatever is there when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub version: Option<i64>,
    /// How long it is kept; for good when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
}

/// A value that was stored, without the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateWritten {
    /// Its version.
    pub version: i64,
    /// When that was, in database time.
    pub updated_at: Timestamp,
    /// When it is gone, unless it is written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// The name of the event that carries [`StateChanged`].
pub const STATE_CHANGED: &str = "sb.state_changed";

/// What the event `sb.state_changed` carries, in the room `state:<namespace>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateChanged {
    /// Which key of the namespace.
    pub key: ClientKey,
    /// The version of the change; a value that is read afterwards is as new as this, or the key is gone.
    pub version: i64,
}
