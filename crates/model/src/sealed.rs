//! Values that are encrypted at rest: where they lie, and which key each needs. How they are encrypted is decided above
//! the stores, which know no more of a value than how it begins.

use std::fmt;

use uuid::Uuid;

use crate::Timestamp;
use crate::text_enum::text_enum;

text_enum! {
    /// The tables whose column `sealed` holds encrypted values. A value is bound to its table and row.
    SealedTable, "table of sealed values" {
        /// Secrets of webhooks, received and sent.
        WebhookSecrets = "webhook_secrets",
        /// Named secrets.
        Secrets = "secrets",
        /// Tokens of providers.
        Tokens = "tokens",
    }
}

/// An encrypted value. It begins with its head: the version of its form, the length of the id of its key, and that id.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed(pub Vec<u8>);

impl Sealed {
    /// Makes the head of values of this form under this key; ids of keys are short.
    #[must_use]
    pub fn head_of(version: u8, key_id: &str) -> Vec<u8> {
        let length = u8::try_from(key_id.len()).unwrap_or(u8::MAX);
        [&[version, length], key_id.as_bytes()].concat()
    }

    /// Returns the head and what follows it; `None` for what has none.
    #[must_use]
    pub fn split(&self) -> Option<(&[u8], &[u8])> {
        let [_, length, ..] = self.0.as_slice() else { return None };
        self.0.split_at_checked(2 + usize::from(*length))
    }

    /// Returns the id of the key that the value needs; `None` for what has none.
    #[must_use]
    pub fn key_id(&self) -> Option<&str> {
        std::str::from_utf8(self.split()?.0.get(2..)?).ok()
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes)", self.0.len())
    }
}

/// An encrypted value and its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedValue {
    /// The identity of the row.
    pub row: Uuid,
    /// The value.
    pub sealed: Sealed,
}

/// A value that is to be replaced by the same one under another key, unless it was changed in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reseal {
    /// The identity of the row.
    pub row: Uuid,
    /// The value as it was read.
    pub before: Sealed,
    /// The value as it will be.
    pub after: Sealed,
}

/// How many values of a table begin with a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedCount {
    /// The table.
    pub table: SealedTable,
    /// The head, or the whole of what has none.
    pub head: Sealed,
    /// How many values there are.
    pub values: u64,
}

/// A known value under one key, by which a replica finds out at its boot whether it has that key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    /// The id of the key.
    pub key_id: String,
    /// The known value.
    pub value: SealedValue,
    /// When the key became the one that encrypts; the latest is the one to which values are sealed anew.
    pub promoted_at: Timestamp,
    /// When nothing was left under the key; it is not taken up again.
    pub retired_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_key_and_nothing_else() {
        let sealed = Sealed([Sealed::head_of(2, "2027-01"), vec![7, 8]].concat());
        assert_eq!(sealed.key_id(), Some("2027-01"));
        assert_eq!(sealed.split().unwrap().1, [7, 8]);
        assert_eq!(format!("{sealed:?}"), "Sealed(11 bytes)");
        for odd in [vec![], vec![1], vec![1, 3, b'a'], vec![1, 1, 0xff]] {
            assert_eq!(Sealed(odd).key_id(), None);
        }
    }
}
