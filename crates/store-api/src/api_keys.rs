//! API keys.

use async_trait::async_trait;
use switchboard_model::api_key::{ApiKey, NewApiKey};
use switchboard_model::ids::ApiKeyId;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::secret_text::SecretHash;

use crate::StoreResult;
use crate::context::{WriteContext, Written};

/// API keys, stored by the hash of their secret.
#[async_trait]
pub trait ApiKeyStore: Send + Sync {
    /// Stores a key. A key with the same hash and name already there is left as it is and returned,
    /// so that two replicas may install the same configured key.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn create(&self, context: &WriteContext, key: &NewApiKey) -> StoreResult<Written<ApiKey>>;

    /// Finds the key with this hash that is neither expired nor revoked.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find_valid(&self, hash: SecretHash) -> StoreResult<Option<ApiKey>>;

    /// Lists all keys, oldest first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn list(&self, page: &PageRequest) -> StoreResult<Page<ApiKey>>;

    /// Revokes a key with the tickets that it minted and signals `ApiKeyRevoked`. `false` means that there is no such key that is not revoked.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn revoke(&self, context: &WriteContext, id: ApiKeyId) -> StoreResult<bool>;
}
