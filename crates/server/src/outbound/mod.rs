//! The one way by which this server sends requests that users describe: guarded, bounded, and without a memory.
//!
//! Redirects are not followed, proxies of the environment and cookies are not used. Knows neither tasks nor runs.

mod addresses;
mod meters;
mod policy;
mod resolver;

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, ClientBuilder, Method, Response, StatusCode, Url, redirect, retry};

use self::meters::Measured;
pub(crate) use self::meters::describe_metrics;
use self::policy::Verdict;
pub(crate) use self::policy::{Destination, Policy};
use self::resolver::{GuardedResolver, Lookup, SystemLookup};

/// How long it may take until there is a connection, the name and TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may wait for the next request to the same place.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How many of them are kept for each place.
const IDLE_CONNECTIONS: usize = 8;

/// How much of the body of a response is read, in bytes.
const READ_BYTES: usize = 80 * 1024;

/// A request to be sent.
pub(crate) struct OutboundRequest {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<String>,
    /// How long it may take until the response is read; as long as the operator configured when absent.
    pub(crate) timeout: Option<Duration>,
}

/// What was answered.
pub(crate) struct OutboundResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The body, as far as it was read.
    pub(crate) body: Vec<u8>,
}

/// Why there is no response. The texts are the same for whatever is or is not listening at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OutboundError {
    /// The URL names an address that requests may not go to.
    #[error("requests to this address are not allowed; an operator can allow it with outbound.allow")]
    Refused,
    /// The name has no address that requests may go to, the connection failed, or it took too long.
    #[error("there was no answer: the host cannot be reached, the connection failed, or it took too long")]
    Unanswered,
}

/// Sends requests.
#[derive(Clone)]
pub(crate) struct Outbound {
    policy: Arc<Policy>,
    /// Connects to what its resolver lets through.
    guarded: Client,
    /// Connects to hosts that are allowed by name or address, so that its resolver need not choose.
    trusted: Client,
    timeout: Duration,
}

impl Outbound {
    /// Makes the client; a request without a time of its own may take `timeout`.
    ///
    /// # Errors
    /// Fails when the means of TLS cannot be set up.
    pub(crate) fn new(policy: Policy, timeout: Duration) -> reqwest::Result<Self> {
        Self::with_lookup(policy, timeout, Arc::new(SystemLookup))
    }

    fn with_lookup(policy: Policy, timeout: Duration, lookup: Arc<dyn Lookup>) -> reqwest::Result<Self> {
        // Whoever installed a provider first has decided already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let policy = Arc::new(policy);
        let resolver = || GuardedResolver { policy: Arc::clone(&policy), lookup: Arc::clone(&lookup) };
        let guarded = build(&|| bounded().dns_resolver(resolver()))?;
        let trusted = build(&bounded)?;
        Ok(Self { guarded, trusted, timeout, policy })
    }

    /// Sends a request and reads the response. To drop the future closes the connection.
    ///
    /// # Errors
    /// [`OutboundError`] tells only whether it was sent at all; the log of the server knows more.
    pub(crate) async fn send(&self, request: OutboundRequest) -> Result<OutboundResponse, OutboundError> {
        let measured = Measured::start();
        let result = self.exchange(request).await;
        measured.ended(&result);
        result
    }

    async fn exchange(&self, request: OutboundRequest) -> Result<OutboundResponse, OutboundError> {
        let client = match self.policy.judge(&request.url) {
            Verdict::Trusted => &self.trusted,
            Verdict::Guarded => &self.guarded,
            Verdict::Refused => return Err(OutboundError::Refused),
        };
        let OutboundRequest { method, url, headers, body, timeout } = request;
        let mut building = client.request(method, url).headers(headers).timeout(timeout.unwrap_or(self.timeout));
        if let Some(body) = body {
            building = building.body(body);
        }
        let answered = async { read(building.send().await?).await };
        answered.await.map_err(|error| {
            // Without the URL, whose query may hold a secret.
            tracing::debug!(
                error = switchboard_events::error_chain(&error.without_url()),
                "a request was not answered"
            );
            OutboundError::Unanswered
        })
    }
}

impl std::fmt::Debug for Outbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.policy.fmt(f)
    }
}

/// Describes a client that does nothing of its own accord.
fn bounded() -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .user_agent(concat!("Switchboard/", env!("CARGO_PKG_VERSION")))
}

/// Builds a client, on a machine without certificates one that trusts nobody: requests without TLS work there too.
fn build(describe: &dyn Fn() -> ClientBuilder) -> reqwest::Result<Client> {
    describe().build().or_else(|error| {
        tracing::warn!(%error, "no certificates are found on this machine; requests by https will not be answered");
        describe().tls_certs_only([]).build()
    })
}

/// Reads a response as far as it is kept; the rest is not waited for.
async fn read(mut response: Response) -> reqwest::Result<OutboundResponse> {
    let mut body = Vec::new();
    while body.len() < READ_BYTES
        && let Some(chunk) = response.chunk().await?
    {
        body.extend_from_slice(&chunk);
    }
    Ok(OutboundResponse { status: response.status(), headers: std::mem::take(response.headers_mut()), body })
}

#[cfg(test)]
mod tests;
