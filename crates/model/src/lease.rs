//! Leases: named ownership that expires. Each holder has a newer fence than all before it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::ClientKey;
use crate::ids::Fence;
use crate::json_text::JsonText;
use crate::span::Span;

/// How long a lease holds when nobody says.
pub const LEASE_TTL: Span = Span::from_secs(15);

/// The shortest and the longest time that a lease is asked for.
pub const LEASE_TTLS: [Span; 2] = [Span::from_millis(100), Span::from_secs(24 * 3600)];

/// The most bytes that a holder says about itself.
pub const LEASE_META_BYTES: usize = 4 * 1024;

/// How long the row of a lease that is over is kept. No statement takes as long, so one that drew its fence before the
/// lease was over finds the row and draws another.
pub const LEASE_REST: Span = Span::from_secs(60);

/// A lease that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lease {
    /// What is owned.
    pub key: ClientKey,
    /// Who owns it: a name that is new for each hold.
    pub holder: ClientKey,
    /// The number of the hold; later ones have greater numbers.
    pub fence: Fence,
    /// Until when, in database time, unless it is renewed.
    pub expires_at: Timestamp,
    /// What the holder says about itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<JsonText>,
}

impl Lease {
    /// Returns what renewing and releasing it takes.
    #[must_use]
    pub fn hold(&self) -> LeaseHold {
        LeaseHold { key: self.key.clone(), holder: self.holder.clone(), fence: self.fence }
    }
}

/// A lease that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLease {
    /// What is to be owned.
    pub key: ClientKey,
    /// Who will own it.
    pub holder: ClientKey,
    /// How long, unless it is renewed.
    pub ttl: Span,
    /// What the holder says about itself.
    pub meta: Option<JsonText>,
}

/// One hold of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseHold {
    /// What is owned.
    pub key: ClientKey,
    /// Who owns it.
    pub holder: ClientKey,
    /// The number of the hold.
    pub fence: Fence,
}
