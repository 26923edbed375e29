//! The client itself: addresses, credentials and how an answer is read. Knows no aggregate.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderName;
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use switchboard_model::identity::ClientKey;
use switchboard_model::page::PageRequest;
use switchboard_model::secret_text::SecretText;
use tokio_util::task::TaskTracker;

use crate::error::ClientError;

/// How long connecting may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a whole request may take, and how long the server may be silent in the middle of one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What sign-in sessions remember as the client.
const USER_AGENT: &str = concat!("switchboard-client/", env!("CARGO_PKG_VERSION"));

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Where and as whom a client works.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The address of a replica or a balancer, such as `http://127.0.0.1:8080`.
    pub base_url: String,
    /// What every request presents: an API key, or the access token of a user.
    pub credential: Option<SecretText>,
}

/// A client of one address. Clones share connections and are cheap.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    credential: Option<Arc<SecretText>>,
    idempotency_key: Option<ClientKey>,
    request_id: Option<ClientKey>,
    tracker: TaskTracker,
}

impl Client {
    /// Makes a client; nothing is sent yet. Proxies named by the environment are not used.
    ///
    /// # Errors
    /// [`ClientError::Url`] for an address that is not `http` or `https`; [`ClientError::Transport`] when TLS
    /// cannot be set up on this machine.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        let base = parse_base(&options.base_url)?;
        Ok(Self {
            http: build_http(&base)?,
            base,
            credential: options.credential.map(Arc::new),
            idempotency_key: None,
            request_id: None,
            tracker: TaskTracker::new(),
        })
    }

    /// Returns the same client for another address.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn at(&self, base_url: &str) -> Result<Self, ClientError> {
        let base = parse_base(base_url)?;
        let http = if base.scheme() == self.base.scheme() { self.http.clone() } else { build_http(&base)? };
        Ok(Self { http, base, ..self.clone() })
    }

    /// Returns the same client with another API key or access token, or none.
    #[must_use]
    pub fn with_credential(&self, credential: Option<SecretText>) -> Self {
        Self { credential: credential.map(Arc::new), ..self.clone() }
    }

    /// Returns the same client, whose POST requests carry `key`: a repeated one is answered as the first was.
    #[must_use]
    pub fn with_idempotency_key(&self, key: ClientKey) -> Self {
        Self { idempotency_key: Some(key), ..self.clone() }
    }

    /// Returns the same client, whose requests are logged by the server under `id`.
    #[must_use]
    pub fn with_request_id(&self, id: ClientKey) -> Self {
        Self { request_id: Some(id), ..self.clone() }
    }

    /// Returns the address, without a slash at its end.
    #[must_use]
    pub fn base_url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Waits until every socket that was opened through this client or a clone of it has ended.
    pub async fn closed(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Builds an address below the base; each segment is escaped as needed.
    pub(crate) fn url(&self, segments: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// Starts a request outside the versioned surface.
    pub(crate) fn request(&self, method: Method, segments: &[&str]) -> RequestBuilder {
        let is_post = method == Method::POST;
        let mut request = self.http.request(method, self.url(segments));
        if let Some(credential) = &self.credential {
            request = request.bearer_auth(credential.expose());
        }
        if let Some(key) = self.idempotency_key.as_ref().filter(|_| is_post) {
            request = request.header(IDEMPOTENCY_KEY, key.as_str());
        }
        if let Some(id) = &self.request_id {
            request = request.header(REQUEST_ID, id.as_str());
        }
        request
    }

    /// Starts a request to the versioned surface.
    pub(crate) fn api(&self, method: Method, segments: &[&str]) -> RequestBuilder {
        self.request(method, &[&["api", "v1"], segments].concat())
    }

    /// Starts the request for one page of a list.
    pub(crate) fn api_page(&self, segments: &[&str], page: &PageRequest) -> RequestBuilder {
        #[derive(Serialize)]
        struct PageQuery<'a> {
            cursor: Option<&'a str>,
            limit: u32,
        }
        self.api(Method::GET, segments).query(&PageQuery { cursor: page.after.as_deref(), limit: page.limit })
    }
}

/// Sends a request and decodes the body of the answer.
pub(crate) async fn fetch<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, ClientError> {
    serde_json::from_slice(&send(request).await?).map_err(ClientError::Decode)
}

/// Sends a request and returns the body of a successful answer.
pub(crate) async fn send(request: RequestBuilder) -> Result<Vec<u8>, ClientError> {
    Ok(open(request).await?.bytes().await.map_err(request_error)?.into())
}

/// Sends a request and returns a successful answer, whose body is still to come.
pub(crate) async fn open(request: RequestBuilder) -> Result<Response, ClientError> {
    let answer = request.send().await.map_err(request_error)?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    Err(ClientError::refused(status.as_u16(), &answer.bytes().await.map_err(request_error)?))
}

pub(crate) fn request_error(error: reqwest::Error) -> ClientError {
    if error.is_builder() { ClientError::Url(error.to_string()) } else { ClientError::transport(error) }
}

fn parse_base(text: &str) -> Result<Url, ClientError> {
    let url = Url::parse(text).map_err(|error| ClientError::Url(format!("{text:?} is no address: {error}")))?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        Ok(url)
    } else {
        Err(ClientError::Url(format!("{text:?} must start with http:// or https://")))
    }
}

fn build_http(base: &Url) -> Result<reqwest::Client, ClientError> {
    // Whoever installed a provider first has decided already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .read_timeout(REQUEST_TIMEOUT)
        .user_agent(USER_AGENT);
    if base.scheme() == "http" {
        // Without TLS nothing has to be read from the machine, which may have no certificates at all.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(ClientError::transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(base_url: &str) -> Result<Client, ClientError> {
        Client::new(ClientOptions { base_url: base_url.into(), credential: None })
    }

    #[test]
    fn addresses_are_joined_and_escaped() {
        for base in ["http://host/below", "http://host/below/"] {
            let url = client(base).unwrap().url(&["api", "rooms", "dm:a@b:c|d", "a/b"]);
            assert_eq!(url.as_str(), "http://host/below/api/rooms/dm:a@b:c|d/a%2Fb");
        }
        for bad in ["host:80", "ftp://host", "", "http://"] {
            assert!(matches!(client(bad), Err(ClientError::Url(_))), "{bad}");
        }
    }

    #[test]
    fn only_posts_carry_the_idempotency_key() {
        let client = client("http://host").unwrap().with_idempotency_key("k-1".parse().unwrap());
        let header = |method| {
            let request = client.api(method, &["tasks"]).build().unwrap();
            request.headers().get(IDEMPOTENCY_KEY).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(header(Method::POST).as_deref(), Some("k-1"));
        assert_eq!(header(Method::GET), None);
    }
}
