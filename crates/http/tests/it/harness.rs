//! One replica without a process: stores, bus and router, and a way to ask it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use metrics_exporter_prometheus::PrometheusBuilder;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use switchboard_events::{Calls, Feed, FeedObserver, Hub, HubOptions, Operations, Publisher, StateWaits, Streams};
use switchboard_http::{
    Api, AuthOptions, Hashing, HttpOptions, KeyRing, Lifecycle, LimitOptions, Sealer, TokenAnswer, TokenAsk,
    TokenAskError, TokenCache, TokenEndpoint, check_keys, router,
};
use switchboard_model::api_key::{API_KEY_PREFIX, NewApiKey};
use switchboard_model::feed::{Tick, TickRequest};
use switchboard_model::ids::{ApiKeyId, InstanceId};
use switchboard_model::instance::{NewInstance, Role};
use switchboard_model::scope::Scope;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use switchboard_model::state::StateUsage;
use switchboard_model::user::{User, UserRole};
use switchboard_model::wire::auth::TokenResponse;
use switchboard_model::wire::problem::Problem;
use switchboard_scheduler::{HistoryAges, Scheduler, SchedulerObserver, SchedulerOptions};
use switchboard_store_api::{News, WriteContext};
use switchboard_store_sqlite::{SqliteOptions, open};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::document::judge;

/// The origin that the replica allows.
pub(crate) const ORIGIN: &str = "https://app.example";

/// The most sockets of one user.
pub(crate) const SOCKETS: u32 = 5;

/// What a namespace of shared state may hold.
pub(crate) const STATE_QUOTA: StateUsage = StateUsage { keys: 5, bytes: 3 * 1024 * 1024 };

/// The password of every user.
pub(crate) const PASSWORD: &str = "correct horse";

/// A key that signs, as configuration has it.
pub(crate) const SIGNING_KEY: &str = "first:ed25519:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE";

/// Makes options of sign-in with these keys, under which hashing costs little.
pub(crate) fn auth_options(keys: &[&str]) -> AuthOptions {
    let keys = Arc::new(KeyRing::parse(keys).unwrap());
    AuthOptions { hashing: Hashing::new(8, 1, 1).unwrap(), ..AuthOptions::new(keys) }
}

/// Passes ticks on to the scheduler, none of whose loops runs.
struct Ticks(SchedulerObserver);

impl FeedObserver for Ticks {
    fn observe(&self, tick: &Tick) {
        self.0.observe(tick);
    }

    fn hear(&self, news: &News) {
        self.0.hear(news);
    }
}

fn scheduler_options(instance: InstanceId) -> SchedulerOptions {
    SchedulerOptions {
        instance,
        roles: Vec::new(),
        pools: Vec::new(),
        permits: 1,
        lease: Span::from_secs(15),
        misfire_grace: Span::from_secs(60),
        history: HistoryAges { runs: Span::from_secs(3600), audit: Span::from_secs(3600) },
    }
}

/// A provider of tokens that gives what it is told to, and remembers who asked.
#[derive(Default)]
pub(crate) struct Provider {
    pub(crate) asked: Mutex<Vec<TokenAsk>>,
    /// What it answers; a token that is numbered by the requests when there is nothing.
    pub(crate) answer: Mutex<Option<Result<TokenAnswer, TokenAskError>>>,
}

#[async_trait]
impl TokenEndpoint for Provider {
    async fn ask(&self, ask: &TokenAsk) -> Result<TokenAnswer, TokenAskError> {
        let mut asked = self.asked.lock();
        asked.push(ask.clone());
        let numbered = || TokenAnswer {
            access_token: SecretText::from_presented(format!("access-{}", asked.len())),
            token_type: "Bearer".to_owned(),
            refresh_token: Some(SecretText::from_presented(format!("refresh-{}", asked.len()))),
            expires_in: Some(Span::from_secs(3_600)),
        };
        self.answer.lock().clone().unwrap_or_else(|| Ok(numbered()))
    }
}

/// A replica. Dropping it stops its tasks.
pub(crate) struct Replica {
    pub(crate) api: Api,
    pub(crate) router: Router,
    pub(crate) provider: Arc<Provider>,
    /// The key that encrypts what is stored.
    pub(crate) sealing_key: SecretText,
    pub(crate) admin: String,
    pub(crate) stop: CancellationToken,
    _folder: TempDir,
}

impl Replica {
    pub(crate) async fn boot() -> Self {
        Self::boot_with(|_| {}).await
    }

    /// Boots with other options than usual.
    pub(crate) async fn boot_with(change: impl FnOnce(&mut HttpOptions)) -> Self {
        let folder = TempDir::new().unwrap();
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let options = SqliteOptions::new(folder.path().join("switchboard.db"));
        let stores = open(&options, &tracker, stop.clone()).await.unwrap();
        let instance = InstanceId::boot("test");
        let announced = NewInstance {
            id: instance.clone(),
            name: "test".to_owned(),
            version: "1.2.3".to_owned(),
            schema_version: 1,
            roles: vec![Role::Api],
            pools: Vec::new(),
            pool_size: 1,
            key_check: String::new(),
        };
        stores.instances.register(&announced, Span::MAX).await.unwrap();
        let options = HubOptions { instance: instance.clone(), sockets_per_user: SOCKETS };
        let hub = Hub::new(&stores, options, tracker.clone(), stop.clone());
        let (publisher, lanes) = Publisher::new(stores.rooms.clone(), stores.feed.clone(), hub.clone());
        let scheduler = Scheduler::new(&stores, scheduler_options(instance.clone()), Vec::new());
        let (streams, stream_lanes) = Streams::new(stores.streams.clone());
        let calls = Calls::new(stores.calls.clone(), hub.clone());
        let state_waits = StateWaits::default();
        let observers: Vec<Arc<dyn FeedObserver>> = vec![
            hub.clone(),
            calls.clone(),
            streams.clone(),
            Arc::new(state_waits.clone()),
            Arc::new(Ticks(scheduler.observer())),
        ];
        let feed = Feed::new(stores.feed.clone(), TickRequest::default(), observers);
        let sealing_key = Sealer::generate_text("test").unwrap();
        let sealer = Arc::new(Sealer::from_texts(std::slice::from_ref(&sealing_key)).unwrap());
        check_keys(&stores, &sealer).await.unwrap();
        let provider = Arc::new(Provider::default());
        let endpoint = Arc::clone(&provider) as Arc<dyn TokenEndpoint>;
        let (patience, renewals) = (Duration::from_secs(10), tracker.clone());
        let tokens = TokenCache::new(&stores, Arc::clone(&sealer), endpoint, patience, renewals);
        let mut api = Api {
            operations: Operations::new(hub.clone(), publisher.clone(), &stores),
            calls: calls.waits().clone(),
            state_waits,
            stores,
            hub,
            publisher,
            streams,
            pull: scheduler.pull_queue(),
            tokens,
            replay: None,
            feed: feed.status(),
            prometheus: PrometheusBuilder::new().build_recorder().handle(),
            lifecycle: Lifecycle::new(),
            options: HttpOptions {
                allowed_origins: vec![ORIGIN.to_owned()],
                public_url: None,
                trusted_proxies: Vec::new(),
                instance,
                request_timeout: Duration::from_secs(30),
                limits: LimitOptions {
                    requests: None,
                    login_account: "10/1m".parse().unwrap(),
                    login_address: "60/1m".parse().unwrap(),
                    login_global: "3000/1m".parse().unwrap(),
                    patience: Duration::from_secs(30),
                    state: STATE_QUOTA,
                },
                auth: auth_options(&[SIGNING_KEY]),
                sealer,
            },
            tracker: TaskTracker::new(),
        };
        change(&mut api.options);
        tracker.spawn(lanes.run(stop.clone()));
        tracker.spawn(stream_lanes.run(stop.clone()));
        tracker.spawn(feed.run(stop.clone()));
        tracker.spawn({
            let stop = stop.clone();
            async move { calls.run(stop).await }
        });
        api.lifecycle.set_ready();
        let router = router(api.clone());
        let mut replica = Self { router, api, provider, sealing_key, admin: String::new(), stop, _folder: folder };
        replica.admin = replica.key(&[Scope::Admin]).await;
        let known = async {
            while replica.api.hub.now().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), known).await.unwrap();
        replica
    }

    /// Goes on with other options of sign-in, over the same database.
    pub(crate) fn sign_in_by(&mut self, change: impl FnOnce(&mut AuthOptions)) {
        change(&mut self.api.options.auth);
        self.router = router(self.api.clone());
    }

    /// Goes on with other keys for what is stored, over the same database.
    pub(crate) fn seal_by(&mut self, sealer: Sealer) {
        self.api.options.sealer = Arc::new(sealer);
        self.router = router(self.api.clone());
    }

    /// Makes a user with [`PASSWORD`].
    pub(crate) async fn user(&self, name: &str, role: UserRole) -> User {
        let body = json!({"name": name, "password": PASSWORD, "role": role}).to_string();
        let answer = self.ask("POST", "/api/v1/users", &body).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.read()
    }

    /// Signs a user in.
    pub(crate) async fn login(&self, name: &str) -> TokenResponse {
        let body = json!({"name": name, "password": PASSWORD}).to_string();
        let answer = self.send("POST", "/api/v1/auth/login", &body, &[]).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.read()
    }

    /// Makes a user, signs them in and returns the access token.
    pub(crate) async fn token(&self, name: &str, role: UserRole) -> String {
        self.user(name, role).await;
        self.login(name).await.access_token
    }

    /// Asks with a bearer credential.
    pub(crate) async fn ask_as(&self, bearer: &str, method: &str, path: &str, body: &str) -> Answer {
        self.send(method, path, body, &[("authorization", &format!("Bearer {bearer}"))]).await
    }

    /// Makes an API key with the given scopes and returns its secret.
    pub(crate) async fn key(&self, scopes: &[Scope]) -> String {
        let secret = SecretText::generate(API_KEY_PREFIX).unwrap();
        let key = NewApiKey {
            id: ApiKeyId::new(),
            name: "test".to_owned(),
            hash: secret.hash(),
            scopes: scopes.to_vec(),
            ttl: None,
        };
        self.api.stores.api_keys.create(&WriteContext::system("test"), &key).await.unwrap();
        secret.expose().to_owned()
    }

    /// Asks as the administrator.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.ask_with(method, path, body, &[]).await
    }

    /// Asks as the administrator, with further headers.
    pub(crate) async fn ask_with(&self, method: &str, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        let key = format!("Bearer {}", self.admin);
        let headers = [&[("authorization", key.as_str())], headers].concat();
        self.send(method, path, body, &headers).await
    }

    /// Sends a request as it is; a body is declared as JSON unless the headers say otherwise. The exchange must be
    /// one that the OpenAPI document describes.
    pub(crate) async fn send(&self, method: &str, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
        if !body.is_empty() && !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.pass(request.body(Body::from(body.to_owned())).unwrap()).await;
        judge(method, path, body, &answer);
        answer
    }

    /// Sends a request as the administrator whose JSON body begins and never ends.
    pub(crate) async fn send_endless(&self, method: &str, path: &str) -> Answer {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {}", self.admin));
        let begin = futures_util::stream::iter([Ok::<_, std::io::Error>("{")]);
        let body = futures_util::StreamExt::chain(begin, futures_util::stream::pending());
        let answer = self.pass(request.body(Body::from_stream(body)).unwrap()).await;
        judge(method, path, "", &answer);
        answer
    }

    async fn pass(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        self.read()
    }

    pub(crate) fn read<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Reads a problem document after checking what every one must be.
    pub(crate) fn problem(&self) -> Problem {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: Problem = self.read();
        assert_eq!(problem.status, self.status);
        assert_eq!(self.header("x-request-id"), Some(problem.request_id.as_str()));
        assert!(!problem.detail.is_empty() && !problem.title.is_empty());
        problem
    }
}
