//! One replica without a process: stores, bus and router, and a way to ask it.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde::de::DeserializeOwned;
use serde_json::Value;
use switchboard_events::{Feed, Hub, Operations, Publisher};
use switchboard_http::{Api, HttpOptions, Lifecycle, LimitOptions, router};
use switchboard_model::api_key::{API_KEY_PREFIX, NewApiKey};
use switchboard_model::feed::TickRequest;
use switchboard_model::ids::{ApiKeyId, InstanceId};
use switchboard_model::scope::Scope;
use switchboard_model::secret_text::SecretText;
use switchboard_model::wire::problem::Problem;
use switchboard_store_api::WriteContext;
use switchboard_store_sqlite::{SqliteOptions, open};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// The origin that the replica allows.
pub(crate) const ORIGIN: &str = "https://app.example";

/// A replica. Dropping it stops its tasks.
pub(crate) struct Replica {
    pub(crate) api: Api,
    pub(crate) router: Router,
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
        let hub = Hub::new(stores.rooms.clone(), instance.clone(), tracker.clone(), stop.clone());
        let (publisher, lanes) = Publisher::new(stores.rooms.clone(), stores.feed.clone(), hub.clone());
        let feed = Feed::new(stores.feed.clone(), TickRequest::default(), vec![hub.clone()]);
        let mut api = Api {
            operations: Operations::new(hub.clone(), publisher.clone(), stores.rooms.clone()),
            stores,
            hub,
            publisher,
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
                },
            },
            tracker: TaskTracker::new(),
        };
        change(&mut api.options);
        tracker.spawn(lanes.run(stop.clone()));
        tracker.spawn(feed.run(stop.clone()));
        api.lifecycle.set_ready();
        let mut replica = Self { router: router(api.clone()), api, admin: String::new(), stop, _folder: folder };
        replica.admin = replica.key(&[Scope::Admin]).await;
        replica
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

    /// Sends a request as it is; a body is declared as JSON unless the headers say otherwise.
    pub(crate) async fn send(&self, method: &str, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
        if !body.is_empty() && !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.pass(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    /// Sends a request as the administrator whose JSON body begins and never ends.
    pub(crate) async fn send_endless(&self, method: &str, path: &str) -> Answer {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {}", self.admin));
        let begin = futures_util::stream::iter([Ok::<_, std::io::Error>("{")]);
        let body = futures_util::StreamExt::chain(begin, futures_util::stream::pending());
        self.pass(request.body(Body::from_stream(body)).unwrap()).await
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
