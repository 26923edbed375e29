//! Bringing stored values under the current key, a stretch at a time.
//!
//! What is left to be done is what the values themselves say, so whoever goes on, after a crash or on another replica,
//! goes on where it was. A value that changes meanwhile is left as it is: its writer has the current key, or it is found
//! again.

use switchboard_model::sealed::{Reseal, SealedTable, SealedValue};
use switchboard_model::wire::secret::RewrapReport;
use switchboard_store_api::{StoreError, Stores};
use uuid::Uuid;

use super::canary::current;
use super::{SealError, SealPlace, Sealer};

/// The most values of one transaction.
const BATCH: u32 = 100;

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum RewrapError {
    /// Other replicas encrypt by a newer key already.
    #[error(
        "this replica encrypts by the key {own}, and the current key is {current}: let it be the first of secrets.keys"
    )]
    NotCurrent {
        /// The id of the key that seals here.
        own: String,
        /// The id of the key to which values go.
        current: String,
    },
    /// There is no key.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The database does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Brings up to about `most` values under the key that seals here, which must be the current one.
///
/// # Errors
/// [`RewrapError`] says why nothing, or not everything, was done.
pub async fn rewrap(stores: &Stores, sealer: &Sealer, most: u64) -> Result<RewrapReport, RewrapError> {
    let own = sealer.key_id()?;
    let canaries = stores.sealed.canaries().await?;
    if let Some(current) = current(&canaries).filter(|canary| canary.key_id != own) {
        return Err(RewrapError::NotCurrent { own: own.to_owned(), current: current.key_id.clone() });
    }
    let head = sealer.head()?;
    let mut report = RewrapReport::default();
    for table in SealedTable::ALL {
        let mut after = Uuid::nil();
        while report.rewrapped < most {
            let values = stores.sealed.stale(*table, &head, after, BATCH).await?;
            let Some(last) = values.last() else { break };
            after = last.row;
            let changes = changes(sealer, *table, values, &mut report);
            report.rewrapped += stores.sealed.reseal(*table, &changes).await?;
        }
    }
    let left = stores.sealed.counts().await?.into_iter().filter(|count| count.head.0 != head);
    report.left = left.map(|count| count.values).sum();
    Ok(report)
}

fn changes(sealer: &Sealer, table: SealedTable, values: Vec<SealedValue>, report: &mut RewrapReport) -> Vec<Reseal> {
    let mut changes = Vec::with_capacity(values.len());
    for SealedValue { row, sealed } in values {
        match sealer.rewrap(&SealPlace::of(table, row), &sealed.0) {
            Ok(Some(after)) => changes.push(Reseal { row, before: sealed, after }),
            Ok(None) => {}
            Err(error) => {
                report.unreadable += 1;
                tracing::warn!(%error, table = table.as_str(), %row, "a sealed value cannot be read");
            }
        }
    }
    changes
}
