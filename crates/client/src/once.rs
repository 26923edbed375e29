//! Once-keys over REST: claimed before something that must not happen twice.

use reqwest::{Method, RequestBuilder};
use switchboard_model::ids::Fence;
use switchboard_model::json_text::JsonText;
use switchboard_model::once::{OnceEntry, OnceKey};
use switchboard_model::span::Span;
use switchboard_model::wire::coordination::{
    OnceAbandonRequest, OnceClaimRequest, OnceClaimed, OnceCompleteRequest, OnceTakeOverRequest,
};

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

impl Client {
    fn post_once(&self, key: &OnceKey, operation: &str) -> RequestBuilder {
        self.api(Method::POST, &["once", key.scope.as_str(), key.key.as_str(), operation])
    }

    /// Claims a once-key, or finds out what became of an earlier claim.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `in_progress` while somebody else works, and `idempotency_mismatch` when the key was
    /// claimed for something else.
    pub async fn claim_once(&self, key: &OnceKey, request: &OnceClaimRequest) -> Result<OnceClaimed, ClientError> {
        fetch(self.post_once(key, "claim").json(request)).await
    }

    /// Completes a claimed key; to be repeated when the answer is lost.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `fenced` when somebody else has taken the key over.
    pub async fn complete_once(&self, key: &OnceKey, fence: Fence, result: JsonText) -> Result<(), ClientError> {
        send(self.post_once(key, "complete").json(&OnceCompleteRequest { fence, result })).await.map(drop)
    }

    /// Gives a claimed key up: it can be claimed again.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `fenced` when the key is completed or somebody else's.
    pub async fn abandon_once(&self, key: &OnceKey, fence: Fence) -> Result<(), ClientError> {
        send(self.post_once(key, "abandon").json(&OnceAbandonRequest { fence })).await.map(drop)
    }

    /// Takes a key over that is unknown, after finding out what became of its work; `fence` is that of the lost claim.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `fenced` when somebody else was faster.
    pub async fn take_over_once(&self, key: &OnceKey, fence: Fence, lease: Span) -> Result<OnceClaimed, ClientError> {
        fetch(self.post_once(key, "take-over").json(&OnceTakeOverRequest { fence, lease })).await
    }

    /// Deletes a completed key and returns what was in it: exactly one caller gets it.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `not_found` when there is no such key or it was consumed.
    pub async fn consume_once(&self, key: &OnceKey) -> Result<OnceEntry, ClientError> {
        fetch(self.post_once(key, "consume")).await
    }

    /// Returns how a key stands.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_once(&self, key: &OnceKey) -> Result<OnceEntry, ClientError> {
        fetch(self.api(Method::GET, &["once", key.scope.as_str(), key.key.as_str()])).await
    }
}
