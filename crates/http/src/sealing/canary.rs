//! The check at boot: a replica that lacks a key by which stored values are encrypted does not start.
//!
//! Each key that encrypts, or did, has a canary, a known value that only this key opens. A key gets its canary before it
//! encrypts anything else, so a replica that has the keys of all canaries can read everything.

use switchboard_model::sealed::{Canary, Sealed, SealedTable, SealedValue};
use switchboard_store_api::{StoreError, Stores};
use uuid::Uuid;

use super::{SealError, SealPlace, Sealer};

/// What canaries say.
const KNOWN: &[u8] = b"switchboard";

/// Why a replica cannot work with its keys. Each text goes behind the name of the setting.
#[derive(Debug, thiserror::Error)]
pub enum CanaryError {
    /// A key that stored values need is not configured.
    #[error(
        "the key {0} is missing, by which stored secrets are encrypted; add it behind the one that is there. If it is lost, \
         so are they: `switchboard secret retire-key {0}` gives them up"
    )]
    Missing(String),
    /// A key is not the one that has encrypted stored values under the same id.
    #[error(
        "the key {0} is not the one by which stored secrets are encrypted; give back that one. If it is lost, so are they: \
         `switchboard secret retire-key {0}` gives them up, and the new key needs another id"
    )]
    Wrong(String),
    /// A key that was retired is to encrypt again.
    #[error("the key {0} was retired, so other replicas no longer have it; {1}")]
    Retired(String, String),
    /// The keys cannot be used at all.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The database does not answer.
    #[error("the canaries of the keys cannot be read")]
    Store(#[from] StoreError),
}

/// Checks that the keys open all that is stored, and announces the one that seals if it is new.
///
/// # Errors
/// [`CanaryError`] says which key is missing or wrong.
pub async fn check_keys(stores: &Stores, sealer: &Sealer) -> Result<(), CanaryError> {
    let own = sealer.key_id()?;
    let canaries = stores.sealed.canaries().await?;
    judge(sealer, &canaries)?;
    if canaries.iter().any(|canary| canary.key_id == own) {
        return Ok(());
    }
    probe(stores, sealer, own).await?;
    let row = Uuid::new_v4();
    let value = SealedValue { row, sealed: sealer.seal(&place(row), KNOWN)? };
    stores.sealed.add_canary(own, &value).await?;
    // Another replica may have been faster, with another key of the same id.
    judge(sealer, &stores.sealed.canaries().await?)
}

/// Returns the canary of the key to which values go.
pub(super) fn current(canaries: &[Canary]) -> Option<&Canary> {
    canaries.iter().find(|canary| canary.retired_at.is_none())
}

fn judge(sealer: &Sealer, canaries: &[Canary]) -> Result<(), CanaryError> {
    let own = sealer.key_id()?;
    for Canary { key_id, value, retired_at, .. } in canaries {
        if retired_at.is_some() && key_id == own {
            let advice = match current(canaries) {
                Some(current) => format!("put the current key {} first", current.key_id),
                None => "take a key with another id".to_owned(),
            };
            return Err(CanaryError::Retired(own.to_owned(), advice));
        }
        if retired_at.is_none() {
            opens(sealer, &place(value.row), &value.sealed)?;
        }
    }
    Ok(())
}

/// Tries values that were stored before there were canaries: one of each table under the key that will get one.
async fn probe(stores: &Stores, sealer: &Sealer, own: &str) -> Result<(), CanaryError> {
    for table in SealedTable::ALL {
        let values = stores.sealed.stale(*table, &sealer.head()?, Uuid::nil(), 1_000).await?;
        if let Some(value) = values.iter().find(|value| value.sealed.key_id() == Some(own)) {
            opens(sealer, &SealPlace::of(*table, value.row), &value.sealed)?;
        }
    }
    Ok(())
}

fn opens(sealer: &Sealer, place: &SealPlace, sealed: &Sealed) -> Result<(), CanaryError> {
    match sealer.open(place, &sealed.0) {
        Ok(_) => Ok(()),
        Err(SealError::KeyMissing(id)) => Err(CanaryError::Missing(id)),
        Err(SealError::NotAuthentic(id)) => Err(CanaryError::Wrong(id)),
        Err(error) => Err(error.into()),
    }
}

const fn place(row: Uuid) -> SealPlace {
    SealPlace { table: "sealing_canaries", column: "sealed", row }
}
