//! Calls over REST: a program asks one client of a user.

use reqwest::Method;
use switchboard_model::call::Call;
use switchboard_model::identity::UserId;
use switchboard_model::ids::CallId;
use switchboard_model::span::Span;
use switchboard_model::wire::rest::CallRequest;

use crate::client::{Client, fetch};
use crate::error::ClientError;

impl Client {
    /// Asks one client of a user and returns its answer, or the open call when the request does not wait that long:
    /// go on with [`Client::wait_for_call`]. An answer that tells of a failure is an answer; see its `state`.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `no_responder` when nobody is connected and `call_timeout` when nobody answered.
    pub async fn call(&self, user: &UserId, request: &CallRequest) -> Result<Call, ClientError> {
        fetch(self.api(Method::POST, &["users", user.as_str(), "calls"]).json(request)).await
    }

    /// Returns a call, whoever made it and wherever it was answered.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_call(&self, id: CallId) -> Result<Call, ClientError> {
        self.wait_for_call(id, Span::default()).await
    }

    /// Returns a call once it has ended or `wait` is over.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn wait_for_call(&self, id: CallId, wait: Span) -> Result<Call, ClientError> {
        fetch(self.api(Method::GET, &["calls", &id.to_string()]).query(&[("wait", wait.to_string())])).await
    }
}
