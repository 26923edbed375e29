//! Rate limits over REST: one answer for the whole fleet.

use reqwest::Method;
use switchboard_model::identity::ClientKey;
use switchboard_model::wire::rest::{LimitTakeRequest, LimitTakeResponse};

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Takes units from the limit of this key, or says when they could be taken; a denial is no error.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn take_limit(
        &self,
        key: &ClientKey,
        request: &LimitTakeRequest,
    ) -> Result<LimitTakeResponse, ClientError> {
        fetch(self.api(Method::POST, &["limits", key.as_str(), "take"]).json(request)).await
    }
}
