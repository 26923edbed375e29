//! The HTTP surface: the router, one file per group of endpoints, and the WebSocket session.
//!
//! It knows the stores only by their traits and the bus only by its handles. Every error leaves as a
//! problem document, and a route that names no access is not served.

mod access;
mod answer;
mod audit;
mod auth;
mod client_address;
mod cors;
mod endpoints;
mod error;
mod extract;
mod lifecycle;
mod limits;
mod middleware;
mod once;
mod openapi;
mod origin;
mod readiness;
mod request_line;
mod routes;
mod sealing;
mod sse;
mod tokens;
mod unread;
mod wait;
mod ws;

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use switchboard_events::{CallWaits, FeedStatus, Hub, Operations, Publisher, StateWaits, Streams};
use switchboard_model::Timestamp;
use switchboard_model::ids::InstanceId;
use switchboard_scheduler::{PullQueue, Replay};
use switchboard_store_api::Stores;
use tokio_util::task::TaskTracker;

pub use auth::{
    AuthOptions, ExternalIssuer, ExternalKeys, Hashing, JwksError, JwksSource, KeyAlgorithm, KeyError, KeyRing,
};
pub use endpoints::webhook_secrets::open_webhook_keys;
pub use lifecycle::Lifecycle;
pub use limits::LimitOptions;
pub use openapi::asyncapi::asyncapi_document;
pub use openapi::openapi_document;
pub use routes::{Access, ROUTES, Route, describe_metrics, metrics_router, router};
pub use sealing::{
    CanaryError, RewrapError, SealError, SealPlace, Sealer, SealingKeyError, SecretLookupError, check_keys, look_up,
    rewrap,
};
pub use tokens::{TokenAnswer, TokenAsk, TokenAskError, TokenCache, TokenEndpoint};
pub use ws::MessageBudget;

use auth::passwords::Passwords;
use error::ApiError;
use limits::{Limiter, Rules};
use readiness::Readiness;

/// Everything that the HTTP surface works with.
#[derive(Clone)]
pub struct Api {
    /// The database.
    pub stores: Stores,
    /// The sessions of this replica.
    pub hub: Arc<Hub>,
    /// The way by which events are published.
    pub publisher: Publisher,
    /// The streams of this replica.
    pub streams: Arc<Streams>,
    /// What external workers lease runs from.
    pub pull: PullQueue,
    /// What sockets may ask for.
    pub operations: Operations,
    /// What wakes requests that wait for the end of a call.
    pub calls: CallWaits,
    /// What wakes requests that wait for a change of a shared value.
    pub state_waits: StateWaits,
    /// What hands out access tokens of providers.
    pub tokens: Arc<TokenCache>,
    /// What moves the clock of schedules, on a server with a test clock.
    pub replay: Option<Replay>,
    /// How the change feed is doing.
    pub feed: FeedStatus,
    /// The metrics of this process.
    pub prometheus: PrometheusHandle,
    /// Where the process is in its life.
    pub lifecycle: Lifecycle,
    /// What operators decide.
    pub options: HttpOptions,
    /// Counts the open sockets, so that a shutdown can wait for them.
    pub tracker: TaskTracker,
}

/// What operators decide about the HTTP surface.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The origins from which browsers may open sockets and read answers, such as `https://app.example`; compared
    /// exactly.
    pub allowed_origins: Vec<String>,
    /// Where clients reach the fleet, such as `https://switchboard.example`; `Location` headers start with it.
    pub public_url: Option<String>,
    /// The addresses of proxies whose word on the client's address is taken.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// The identity of this replica; shown to callers with a key only.
    pub instance: InstanceId,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// How much may be asked for.
    pub limits: LimitOptions,
    /// How people sign in.
    pub auth: AuthOptions,
    /// Encrypts the secrets that the database keeps.
    pub sealer: Arc<Sealer>,
}

/// What handlers share: the given parts and the little state that outlives a request.
struct AppState {
    api: Api,
    readiness: Readiness,
    passwords: Passwords,
    limiter: Limiter,
    rules: Rules,
}

impl AppState {
    fn new(api: Api) -> Self {
        let passwords = Passwords::new(api.options.auth.hashing.clone(), api.tracker.clone());
        let limiter = Limiter::new(Arc::clone(&api.stores.limits), api.options.limits.patience);
        let rules = Rules::new(api.options.limits.requests);
        Self { readiness: Readiness::new(&api), passwords, limiter, rules, api }
    }

    /// Returns database time.
    ///
    /// # Errors
    /// `unavailable` until the database has told it.
    fn now(&self) -> ApiResult<Timestamp> {
        self.hub.now().ok_or_else(|| ApiError::unavailable("the time is not known yet"))
    }
}

impl std::ops::Deref for AppState {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

/// The state of the router.
type App = Arc<AppState>;

/// What handlers return.
type ApiResult<T> = Result<T, ApiError>;
