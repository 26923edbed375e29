//! Shared state: small values under a namespace and a key, changed by compare-and-set.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::identity::{ClientKey, NameError, Namespace, RoomName};
use crate::json_text::JsonText;
use crate::span::Span;

/// The most bytes of a value.
pub const STATE_VALUE_BYTES: usize = 1024 * 1024;

/// Names a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateKey {
    /// Its namespace.
    pub ns: Namespace,
    /// Its key.
    pub key: ClientKey,
}

impl StateKey {
    /// Reads the text form, in which the first slash ends the namespace.
    ///
    /// # Errors
    /// [`NameError`] says which part does not follow its grammar.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let (ns, key) = text.split_once('/').unwrap_or((text, ""));
        Ok(Self { ns: ns.parse()?, key: key.parse()? })
    }
}

impl fmt::Display for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ns, self.key)
    }
}

impl FromStr for StateKey {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl Namespace {
    /// Returns the room whose members are told what changes in the namespace, or `None` for a name that no room can
    /// have.
    #[must_use]
    pub fn state_room(&self) -> Option<RoomName> {
        format!("state:{self}").parse().ok()
    }
}

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateEntry {
    /// Its key.
    pub key: ClientKey,
    /// Its version: each change has a greater one than all before it in its namespace, also after a deletion.
    pub version: i64,
    /// The value, byte for byte.
    pub value: JsonText,
    /// When it was changed last.
    pub updated_at: Timestamp,
    /// When it is gone, unless it is written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// What a list says of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateHead {
    /// Its key.
    pub key: ClientKey,
    /// Its version.
    pub version: i64,
    /// What it counts against the quota: the bytes of key and value.
    pub bytes: i64,
    /// When it was changed last.
    pub updated_at: Timestamp,
    /// When it is gone, unless it is written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// What must be there for a change to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateExpected {
    /// Anything or nothing.
    Any,
    /// Nothing.
    Absent,
    /// This version.
    Version(i64),
}

impl StateExpected {
    /// Reads the form on the wire: no number stands for anything, 0 for nothing.
    #[must_use]
    pub const fn of_version(version: Option<i64>) -> Self {
        match version {
            None => Self::Any,
            Some(0) => Self::Absent,
            Some(version) => Self::Version(version),
        }
    }

    /// Tells whether this is what is there.
    #[must_use]
    pub fn holds(self, found: Option<i64>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => found.is_none(),
            Self::Version(version) => found == Some(version),
        }
    }
}

/// A value that is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePut {
    /// Where.
    pub key: StateKey,
    /// What.
    pub value: JsonText,
    /// How long; for good when absent.
    pub ttl: Option<Span>,
    /// What must be there before.
    pub expected: StateExpected,
}

impl StatePut {
    /// Returns what it will count against the quota, in bytes.
    #[must_use]
    pub fn bytes(&self) -> i64 {
        bytes(self.key.key.as_str().len() + self.value.as_str().len())
    }
}

/// How much a namespace holds, or may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateUsage {
    /// How many keys.
    pub keys: i64,
    /// How many bytes of keys and values.
    pub bytes: i64,
}

impl StateUsage {
    /// Returns what is held once a value takes the place of one that is `replaced` bytes large.
    #[must_use]
    pub const fn with(self, replaced: Option<i64>, bytes: i64) -> Self {
        match replaced {
            None => Self { keys: self.keys + 1, bytes: self.bytes + bytes },
            Some(replaced) => Self { keys: self.keys, bytes: self.bytes - replaced + bytes },
        }
    }

    /// Returns what is held without these.
    #[must_use]
    pub const fn without(self, gone: Self) -> Self {
        Self { keys: self.keys - gone.keys, bytes: self.bytes - gone.bytes }
    }

    /// Tells whether a change from `self` to `next` keeps to the quota. One that makes nothing larger does, whatever the
    /// quota has become meanwhile.
    #[must_use]
    pub const fn may_become(self, next: Self, quota: Self) -> bool {
        (next.keys <= self.keys || next.keys <= quota.keys) && (next.bytes <= self.bytes || next.bytes <= quota.bytes)
    }
}

fn bytes(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_slash_ends_the_namespace() {
        let key: StateKey = "approvals/run/7".parse().unwrap();
        assert_eq!((key.ns.as_str(), key.key.as_str()), ("approvals", "run/7"));
        assert_eq!(key.to_string(), "approvals/run/7");
        for bad in ["approvals", "approvals/", "/x", "Approvals/x", "a/b c"] {
            assert!(bad.parse::<StateKey>().is_err(), "{bad}");
        }
        assert_eq!(key.ns.state_room().unwrap().as_str(), "state:approvals");
    }

    #[test]
    fn what_makes_nothing_larger_is_always_allowed() {
        let usage = |keys, bytes| StateUsage { keys, bytes };
        let (quota, held) = (usage(2, 100), usage(3, 150));
        assert!(held.may_become(held.with(Some(50), 40), quota));
        assert!(!held.may_become(held.with(Some(50), 60), quota));
        assert!(!held.may_become(held.with(None, 0), quota));
        assert!(usage(1, 50).may_become(usage(1, 50).with(None, 50), quota));
        assert!(!usage(1, 50).may_become(usage(1, 50).with(None, 51), quota));
        assert_eq!(held.without(usage(1, 50)), usage(2, 100));
    }

    #[test]
    fn zero_stands_for_nothing() {
        for (version, found, holds) in [
            (None, None, true),
            (None, Some(3), true),
            (Some(0), None, true),
            (Some(0), Some(3), false),
            (Some(3), Some(3), true),
            (Some(3), None, false),
            (Some(2), Some(3), false),
        ] {
            assert_eq!(StateExpected::of_version(version).holds(found), holds, "{version:?} {found:?}");
        }
    }
}
