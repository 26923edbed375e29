//! Access tokens of providers: handed out while they live, and renewed by one caller on one replica for all.
//!
//! Whoever finds a token that is too old takes the right to ask its provider, in the row of the token, and commits. While
//! the provider is asked no connection to the database is held. The answer is written if the token is still the one that
//! was renewed. Everybody else looks again, ten times a second for a replica, until there is another token, a failure, or
//! nobody who asks: a replica that dies on the way is followed after its lease. A failure makes all wait before the next
//! request, ever longer. Knows no endpoint, and providers only by [`TokenEndpoint`].

mod renew;
mod verdict;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use switchboard_model::identity::TokenName;
use switchboard_model::ids::TokenId;
use switchboard_model::sealed::{Sealed, SealedTable};
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use switchboard_model::token::{StoredToken, TokenProvider, TokenReading};
use switchboard_model::wire::secret::{TokenAccess, TokenAccessRequest};
use switchboard_store_api::{SecretStore, StoreError, Stores, TokenStore};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub(crate) use self::renew::describe_metrics;
use self::verdict::{Verdict, judge};
use crate::sealing::{SealError, SealPlace, Sealer};

/// How long a caller waits for a token, longer than a lease and shorter than a request may take.
const PATIENCE: Duration = Duration::from_secs(25);

/// How a provider is asked.
#[async_trait]
pub trait TokenEndpoint: Send + Sync {
    /// Asks for an access token.
    ///
    /// # Errors
    /// [`TokenAskError`] tells whether asking again can help; its texts hold nothing secret.
    async fn ask(&self, ask: &TokenAsk) -> Result<TokenAnswer, TokenAskError>;
}

/// A request for an access token: by the refresh token where there is one, otherwise in the name of the server.
#[derive(Clone, Debug)]
pub struct TokenAsk {
    /// Who is asked.
    pub provider: TokenProvider,
    /// By which the server proves who it is.
    pub client_secret: Option<SecretText>,
    /// The refresh token.
    pub refresh_token: Option<SecretText>,
    /// How long the answer may take.
    pub timeout: Duration,
}

/// An access token, as the provider gave it.
#[derive(Clone, Debug)]
pub struct TokenAnswer {
    /// The access token.
    pub access_token: SecretText,
    /// How it is presented.
    pub token_type: String,
    /// The refresh token that replaces the one that was sent.
    pub refresh_token: Option<SecretText>,
    /// How long the access token lives, where the provider says so.
    pub expires_in: Option<Span>,
}

/// Why a provider gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenAskError {
    /// It refuses, and will until somebody sets the token anew.
    #[error("{0}")]
    Refused(String),
    /// It did not answer, or cannot now.
    #[error("{error}")]
    Failed {
        /// Why.
        error: String,
        /// How long it asks to wait.
        after: Option<Span>,
    },
}

/// Why there is no access token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("there is no such token")]
    NotFound,
    #[error("the provider gave no access token: {error}")]
    BackingOff { error: String, seconds: u64 },
    #[error("the token does not open with the keys of this replica")]
    Unreadable,
    #[error("the renewal of the token takes too long")]
    Slow,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What is secret about a token, as it is sealed.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct TokenSecrets {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) access_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refresh_token: Option<String>,
}

/// The renewal of a token that callers of this replica wait for together.
type Flight = Shared<BoxFuture<'static, ()>>;

/// Hands out access tokens.
pub struct TokenCache {
    tokens: Arc<dyn TokenStore>,
    secrets: Arc<dyn SecretStore>,
    sealer: Arc<Sealer>,
    endpoint: Arc<dyn TokenEndpoint>,
    /// How long a provider may take.
    timeout: Duration,
    /// The renewals that callers of this process wait for: at most one for a token, and none that nobody asked for. Which
    /// replica asks the provider is decided by the database.
    flights: Mutex<HashMap<TokenName, Flight>>,
    tracker: TaskTracker,
}

impl TokenCache {
    /// Makes the cache; its renewals go on `tracker`, to their end also when whoever asked has gone.
    #[must_use]
    pub fn new(
        stores: &Stores,
        sealer: Arc<Sealer>,
        endpoint: Arc<dyn TokenEndpoint>,
        timeout: Duration,
        tracker: TaskTracker,
    ) -> Arc<Self> {
        let (tokens, secrets) = (Arc::clone(&stores.tokens), Arc::clone(&stores.secrets));
        Arc::new(Self { tokens, secrets, sealer, endpoint, timeout, flights: Mutex::default(), tracker })
    }

    /// Hands out an access token that lives long enough, or the one that the provider gives now.
    pub(crate) async fn access(
        self: &Arc<Self>,
        name: &TokenName,
        wanted: &TokenAccessRequest,
    ) -> Result<TokenAccess, TokenError> {
        let start = Instant::now();
        let mut first_seen = None;
        loop {
            let reading = self.tokens.find(name).await?.ok_or(TokenError::NotFound)?;
            let first_seen = *first_seen.get_or_insert(reading.token.version);
            match judge(&reading, first_seen, wanted) {
                Verdict::Usable => return self.opened(reading.token),
                Verdict::BackingOff { error, seconds } => return Err(TokenError::BackingOff { error, seconds }),
                Verdict::TooOld if start.elapsed() > PATIENCE => return Err(TokenError::Slow),
                Verdict::TooOld => self.flight(reading).await,
            }
        }
    }

    /// Encrypts what is secret about a token.
    pub(crate) fn seal(&self, id: TokenId, secrets: &TokenSecrets) -> Result<Sealed, SealError> {
        // Texts always have a JSON form.
        let text = serde_json::to_vec(secrets).unwrap_or_default();
        self.sealer.seal(&SealPlace::of(SealedTable::Tokens, id.as_uuid()), &text)
    }

    fn open(&self, token: &StoredToken) -> Result<TokenSecrets, TokenError> {
        let place = SealPlace::of(SealedTable::Tokens, token.id.as_uuid());
        let opened = self
            .sealer
            .open(&place, &token.sealed.0)
            .inspect_err(|error| tracing::error!(%error, token = %token.name, "a token cannot be read"));
        let text = opened.map_err(|_| TokenError::Unreadable)?;
        serde_json::from_slice(&text).map_err(|_| TokenError::Unreadable)
    }

    fn opened(&self, token: StoredToken) -> Result<TokenAccess, TokenError> {
        let TokenSecrets { access_token, token_type, .. } = self.open(&token)?;
        Ok(TokenAccess {
            access_token: access_token.ok_or(TokenError::Unreadable)?,
            token_type: token_type.unwrap_or_else(|| "Bearer".to_owned()),
            expires_at: token.expires_at,
            version: token.version,
        })
    }

    /// Joins the renewal that is under way on this replica, or starts one.
    fn flight(self: &Arc<Self>, reading: TokenReading) -> Flight {
        let name = reading.token.name.clone();
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(&name) {
            return flight.clone();
        }
        let landing = Landing { cache: Arc::clone(self), name: name.clone() };
        let task = self.tracker.spawn(async move { landing.cache.renew(reading).await });
        let flight = task.map(drop).boxed().shared();
        flights.insert(name, flight.clone());
        flight
    }
}

impl std::fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenCache({} renewals)", self.flights.lock().len())
    }
}

/// Takes a flight off the list, however it ends.
struct Landing {
    cache: Arc<TokenCache>,
    name: TokenName,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.cache.flights.lock().remove(&self.name);
    }
}
