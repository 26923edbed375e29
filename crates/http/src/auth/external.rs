//! Tokens of another issuer: whose they are, by keys that are kept fresh in the background.
//!
//! What such a token proves is who somebody is. What they may do here is decided by our own users.

use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::decode_header;
use parking_lot::Mutex;
use serde::Deserialize;
use switchboard_events::error_chain;
use switchboard_model::Timestamp;
use switchboard_model::identity::UserId;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::jwks::{JwksError, JwksSource, KeySet};
use super::keys::VerifyingKey;
use super::tokens::{LEEWAY_SECONDS, decode_pinned, is_alive};
use crate::ApiResult;
use crate::error::ApiError;

/// How long a request waits for the keys to be read again.
const PATIENCE: Duration = Duration::from_secs(6);

/// The types under which other issuers send access tokens (RFC 7519, RFC 9068).
const TOKEN_TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

/// The values of the label of the metric.
const READ: &str = "read";
const FAILED: &str = "failed";

/// Another issuer, and how its keys are kept.
#[derive(Clone, Debug)]
pub struct ExternalIssuer {
    /// The claim `iss` of its tokens.
    pub issuer: String,
    /// What must be among the claim `aud` of its tokens.
    pub audience: String,
    /// Where its keys are.
    pub jwks: JwksSource,
    /// How often the keys are read.
    pub refresh: Duration,
    /// How long after a read a token with an unknown key, or a failure, makes them read again.
    pub retry: Duration,
}

impl ExternalIssuer {
    /// Describes an issuer whose keys are read every five minutes, and after 30 seconds when there is a reason.
    #[must_use]
    pub fn new(issuer: String, audience: String, jwks: JwksSource) -> Self {
        Self { issuer, audience, jwks, refresh: Duration::from_secs(300), retry: Duration::from_secs(30) }
    }
}

/// The keys of another issuer, as last read.
pub struct ExternalKeys {
    issuer: ExternalIssuer,
    state: Mutex<State>,
    asked: Notify,
    rounds: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// Absent until the first read that gave any.
    keys: Option<Arc<KeySet>>,
    /// When the latest read ended.
    read_at: Option<Instant>,
    /// Whether one is under way, or about to be.
    is_reading: bool,
}

/// What is read of a token.
#[derive(Deserialize)]
struct ExternalClaims {
    sub: UserId,
    exp: i64,
    nbf: Option<i64>,
    iat: Option<i64>,
}

impl ExternalKeys {
    /// Reads the keys and keeps them fresh on `tracker` until `stop`.
    ///
    /// # Errors
    /// Fails when a file cannot be used. An address may answer later.
    pub async fn start(
        issuer: ExternalIssuer,
        tracker: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, JwksError> {
        let keys =
            Arc::new(Self { issuer, state: Mutex::default(), asked: Notify::new(), rounds: watch::Sender::new(0) });
        let first = keys.read().await;
        let pause = keys.pause_after(&first);
        if matches!(keys.issuer.jwks, JwksSource::File(_)) {
            first?;
        }
        tracker.spawn(Arc::clone(&keys).keep_fresh(pause, stop));
        Ok(keys)
    }

    /// Verifies a token and says whose it is, and when it expires, in seconds since 1970; `None` for what is no token
    /// of this issuer, whatever is wrong.
    ///
    /// # Errors
    /// `unavailable` while no key of the issuer is known.
    pub(crate) async fn verify(&self, token: &str, now: Timestamp) -> ApiResult<Option<(UserId, i64)>> {
        let Some(kid) = key_id(token) else { return Ok(None) };
        let Some(key) = self.find(&kid).await? else { return Ok(None) };
        let claims: Option<ExternalClaims> = decode_pinned(token, &key, &self.issuer.issuer, &self.issuer.audience);
        let latest = now.timestamp() + LEEWAY_SECONDS;
        let is_valid = |claims: &ExternalClaims| {
            is_alive(claims.exp, now) && [claims.nbf, claims.iat].into_iter().flatten().all(|from| from <= latest)
        };
        Ok(claims.filter(is_valid).map(|claims| (claims.sub, claims.exp)))
    }

    /// Finds a key; an unknown one may be new, so the keys are read again unless they just were.
    async fn find(&self, kid: &str) -> ApiResult<Option<VerifyingKey>> {
        let look = || self.state.lock().keys.as_ref().map(|keys| keys.get(kid).cloned());
        if let Some(Some(key)) = look() {
            return Ok(Some(key));
        }
        // Subscribed before asking: a round that ends in between is not missed.
        let mut rounds = self.rounds.subscribe();
        if self.ask() {
            let _ = timeout(PATIENCE, rounds.changed()).await;
        }
        look().ok_or_else(|| ApiError::unavailable("the keys of the issuer of this token cannot be read now"))
    }

    /// Asks for a read, and says whether one is under way.
    fn ask(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_reading && state.read_at.is_none_or(|at| at.elapsed() >= self.issuer.retry) {
            state.is_reading = true;
            self.asked.notify_one();
        }
        state.is_reading
    }

    async fn keep_fresh(self: Arc<Self>, mut pause: Duration, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
                () = self.asked.notified() => {}
            }
            let read = tokio::select! {
                () = stop.cancelled() => return,
                read = self.read() => read,
            };
            pause = self.pause_after(&read);
        }
    }

    fn pause_after(&self, read: &Result<(), JwksError>) -> Duration {
        if read.is_ok() { self.issuer.refresh } else { self.issuer.retry }
    }

    /// Reads the keys once. Those read before stay when it fails.
    async fn read(&self) -> Result<(), JwksError> {
        self.state.lock().is_reading = true;
        let read = self.issuer.jwks.load().await;
        let outcome = if read.is_ok() { READ } else { FAILED };
        metrics::counter!("switchboard_auth_key_set_reads_total", "outcome" => outcome).increment(1);
        let result = {
            let mut state = self.state.lock();
            state.is_reading = false;
            state.read_at = Some(Instant::now());
            read.map(|keys| state.keys = Some(Arc::new(keys)))
        };
        self.rounds.send_modify(|round| *round += 1);
        if let Err(error) = &result {
            tracing::warn!(error = %error_chain(error), "the keys of the issuer cannot be read; older ones stay in force");
        }
        result
    }
}

impl std::fmt::Debug for ExternalKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.issuer.fmt(f)
    }
}

/// Registers the metrics of key sets at zero.
pub(super) fn describe_metrics() {
    for outcome in [READ, FAILED] {
        metrics::counter!("switchboard_auth_key_set_reads_total", "outcome" => outcome).absolute(0);
    }
}

/// Reads which key signed a token, unless it is a token of another kind.
fn key_id(token: &str) -> Option<String> {
    let header = decode_header(token).ok()?;
    let is_access = header.typ.is_none_or(|typ| TOKEN_TYPES.iter().any(|known| typ.eq_ignore_ascii_case(known)));
    header.kid.filter(|_| is_access)
}
