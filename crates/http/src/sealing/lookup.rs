//! Secrets by name, for what the server sends. They are read anew for each use and kept nowhere.

use std::collections::BTreeMap;

use switchboard_model::identity::SecretName;
use switchboard_model::sealed::SealedTable;
use switchboard_model::secret_text::SecretText;
use switchboard_store_api::{SecretStore, StoreError};

use super::{SealPlace, Sealer};

/// Why a secret cannot be used. Nothing of a value is ever repeated.
#[derive(Debug, thiserror::Error)]
pub enum SecretLookupError {
    /// There is none of this name.
    #[error("there is no secret {0}; set it with `switchboard secret set {0}`")]
    Missing(SecretName),
    /// It does not open with the keys of this replica.
    #[error("the secret {0} cannot be read: the operator has to look at secrets.keys")]
    Unreadable(SecretName),
    /// The database does not answer.
    #[error("secrets cannot be read now")]
    Store(#[from] StoreError),
}

/// Reads the values of secrets.
///
/// # Errors
/// [`SecretLookupError`] names the first that cannot be used.
pub async fn look_up<'a>(
    secrets: &dyn SecretStore,
    sealer: &Sealer,
    names: impl IntoIterator<Item = &'a SecretName>,
) -> Result<BTreeMap<SecretName, SecretText>, SecretLookupError> {
    let mut names: Vec<SecretName> = names.into_iter().cloned().collect();
    names.sort_unstable();
    names.dedup();
    let mut values = BTreeMap::new();
    if names.is_empty() {
        return Ok(values);
    }
    for secret in secrets.find(&names).await? {
        let place = SealPlace::of(SealedTable::Secrets, secret.id.as_uuid());
        let opened = sealer
            .open(&place, &secret.sealed.0)
            .inspect_err(|error| tracing::error!(%error, secret = %secret.name, "a secret cannot be read"));
        match opened.ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
            Some(text) => values.insert(secret.name, SecretText::from_presented(text)),
            None => return Err(SecretLookupError::Unreadable(secret.name)),
        };
    }
    match names.into_iter().find(|name| !values.contains_key(name)) {
        Some(missing) => Err(SecretLookupError::Missing(missing)),
        None => Ok(values),
    }
}
