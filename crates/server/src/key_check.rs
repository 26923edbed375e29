//! What two replicas compare to find out whether they have the same secret keys. It tells nothing about the keys.

use serde::{Deserialize, Serialize};
use switchboard_http::{KeyRing, Sealer};

/// The id and the check value of a key.
type Checked = (String, String);

/// The keys of a replica by their ids and check values, those in use first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyCheck {
    pub(crate) signing: Vec<Checked>,
    pub(crate) sealing: Vec<Checked>,
}

impl KeyCheck {
    pub(crate) fn of(signing: &KeyRing, sealing: &Sealer) -> Self {
        let owned = |(id, check): (&str, &str)| (id.to_owned(), check.to_owned());
        Self {
            signing: signing.check_values().map(owned).collect(),
            sealing: sealing.check_values().map(owned).collect(),
        }
    }

    /// Writes it down as a replica announces it.
    pub(crate) fn to_text(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// Reads what a replica announced; `None` where its release announces nothing, or something else.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Says what this replica and another one, `name`, cannot read of each other. During a rotation one may have keys
    /// that the other has not yet, but not use them.
    pub(crate) fn differences(&self, other: &Self, name: &str) -> Vec<String> {
        let of = |setting, here: &[Checked], there: &[Checked]| {
            difference(here, there, name).map(|what| format!("{setting}: {what}"))
        };
        let signing = of("auth.signing_keys", &self.signing, &other.signing);
        signing.into_iter().chain(of("secrets.keys", &self.sealing, &other.sealing)).collect()
    }
}

fn difference(here: &[Checked], there: &[Checked], name: &str) -> Option<String> {
    let differs = |(id, check): &&Checked| there.iter().any(|(other, value)| other == id && value != check);
    if let Some((id, _)) = here.iter().find(differs) {
        return Some(format!("key {id} is another one than key {id} of {name}"));
    }
    let missing = |used: &[Checked], known: &[Checked]| used.first().filter(|used| !known.contains(used)).cloned();
    if let Some((id, _)) = missing(here, there) {
        return Some(format!("key {id}, which is in use here, is missing on {name}"));
    }
    let (id, _) = missing(there, here)?;
    Some(format!("key {id}, which {name} uses, is missing here"))
}
