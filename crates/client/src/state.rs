//! Shared state over REST: values that are changed by compare-and-set, and watched.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use switchboard_model::identity::Namespace;
use switchboard_model::page::{Page, PageRequest};
use switchboard_model::span::Span;
use switchboard_model::state::{StateEntry, StateHead, StateKey};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::coordination::{StatePutRequest, StateWritten};
use tokio::time::sleep;

use crate::client::{Client, fetch, send};
use crate::error::ClientError;

/// How long one request of a watch waits.
const WAIT: Span = Span::from_secs(20);

/// How long a watch waits before it asks again after a loss.
const RETRY: Duration = Duration::from_millis(500);

impl Client {
    fn state(&self, method: Method, key: &StateKey) -> RequestBuilder {
        self.api(method, &["state", key.ns.as_str(), key.key.as_str()])
    }

    /// Returns a value, or `None` when there is none.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get_state(&self, key: &StateKey) -> Result<Option<StateEntry>, ClientError> {
        found(fetch(self.state(Method::GET, key)).await)
    }

    /// Returns a value once it has another version than `after_version`, or `wait` is over.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn wait_for_state(
        &self,
        key: &StateKey,
        after_version: i64,
        wait: Span,
    ) -> Result<Option<StateEntry>, ClientError> {
        let query = [("after_version", after_version.to_string()), ("wait", wait.to_string())];
        found(fetch(self.state(Method::GET, key).query(&query)).await)
    }

    /// Stores a value.
    ///
    /// # Errors
    /// See [`ClientError`]; the code is `version_mismatch` when another version is there than the request says.
    pub async fn put_state(&self, key: &StateKey, request: &StatePutRequest) -> Result<StateWritten, ClientError> {
        fetch(self.state(Method::PUT, key).json(request)).await
    }

    /// Deletes a value, of this version if one is given.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_state(&self, key: &StateKey, version: Option<i64>) -> Result<(), ClientError> {
        let version = version.map(|version| ("version", version));
        send(self.state(Method::DELETE, key).query(&Vec::from_iter(version))).await.map(drop)
    }

    /// Returns a page of the keys of a namespace that start with `prefix`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_state(
        &self,
        ns: &Namespace,
        prefix: &str,
        page: PageRequest,
    ) -> Result<Page<StateHead>, ClientError> {
        fetch(self.api_page(&["state", ns.as_str()], &page).query(&[("prefix", prefix)])).await
    }

    /// Watches a value: begins with what is there.
    #[must_use]
    pub fn watch_state(&self, key: StateKey) -> StateWatch {
        StateWatch { client: self.clone(), key, seen: None }
    }
}

/// One who watches a value. Versions that follow each other fast may be passed over; the last one is not.
pub struct StateWatch {
    client: Client,
    key: StateKey,
    /// The version that was seen last, 0 for none; `None` before the first look.
    seen: Option<i64>,
}

impl StateWatch {
    /// Returns the same watch, which asks another address from its next request on.
    #[must_use]
    pub fn at(mut self, client: &Client) -> Self {
        self.client = client.clone();
        self
    }

    /// Waits for the next change and returns what is there then; `None` when the value is gone. The first call returns at
    /// once. What goes and comes back between two looks is one change.
    ///
    /// # Errors
    /// See [`ClientError`]; after the first look a loss of the connection is none.
    pub async fn next(&mut self) -> Result<Option<StateEntry>, ClientError> {
        loop {
            let asked = match self.seen {
                None => self.client.get_state(&self.key).await,
                Some(seen) => self.client.wait_for_state(&self.key, seen, WAIT).await,
            };
            let found = match asked {
                Err(error) if self.seen.is_some() && error.is_retryable() => {
                    sleep(RETRY).await;
                    continue;
                }
                asked => asked?,
            };
            let version = found.as_ref().map_or(0, |entry| entry.version);
            if self.seen.replace(version) != Some(version) {
                return Ok(found);
            }
        }
    }
}

fn found<T>(answer: Result<T, ClientError>) -> Result<Option<T>, ClientError> {
    match answer {
        Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(None),
        answer => answer.map(Some),
    }
}
