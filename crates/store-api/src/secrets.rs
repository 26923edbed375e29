//! Named secrets; what is stored of their values is encrypted above the stores.

use async_trait::async_trait;
use switchboard_model::identity::SecretName;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::secret::{NewSecret, StoredSecret};

use crate::StoreResult;
use crate::context::WriteContext;

/// What setting a secret gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretPutOutcome {
    /// It was set.
    Set(StoredSecret),
    /// Somebody set or deleted it in between; this is its version now, 0 when it is gone.
    VersionMismatch(i64),
    /// The name belongs to a secret of another identity, for which the value is to be sealed.
    Moved,
}

/// Secrets by name.
#[async_trait]
pub trait SecretStore: Send + Sync {
    /// Sets a secret, whatever its version when `expected` is absent; 0 stands for a secret that is not there.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn put(
        &self,
        context: &WriteContext,
        secret: &NewSecret,
        expected: Option<i64>,
    ) -> StoreResult<SecretPutOutcome>;

    /// Finds secrets by name; those that are not there are left out.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find(&self, names: &[SecretName]) -> StoreResult<Vec<StoredSecret>>;

    /// Lists secrets by name.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<StoredSecret>>;

    /// Deletes a secret. `false` means that there is none of this name.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn delete(&self, context: &WriteContext, name: &SecretName) -> StoreResult<bool>;
}
