//! Limits that all replicas share, and what holds while their store does not answer. Knows no endpoint.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchboard_events::error_chain;
use switchboard_model::limit::Decision;
use switchboard_model::wire::rest::Outage;
use switchboard_store_api::{LimitStore, LimitTake};
use tokio::time::{Instant, timeout};

use super::buckets::Buckets;
use crate::ApiResult;
use crate::error::ApiError;

/// How long the store is left alone after it failed; then a single request tries it again.
const PAUSE: Duration = Duration::from_secs(1);

/// What a limit is for: the label of its metrics and the first word of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitScope {
    /// Signing in.
    Login,
    /// Requests as such.
    Requests,
    /// Limits of programs that use this one.
    Take,
}

impl LimitScope {
    const ALL: [Self; 3] = [Self::Login, Self::Requests, Self::Take];

    /// Returns the word.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Requests => "requests",
            Self::Take => "take",
        }
    }
}

/// Takes from limits, of the store or, while that does not answer, as the caller decides.
pub(crate) struct Limiter {
    store: Arc<dyn LimitStore>,
    /// How long the store may take: nobody waits longer to sign in because it cannot be reached.
    patience: Duration,
    local: Buckets,
    /// For each scope, when the store is tried again after it failed: a hot key of one scope is no outage of another.
    retry_at: [Mutex<Option<Instant>>; LimitScope::ALL.len()],
}

impl Limiter {
    pub(crate) fn new(store: Arc<dyn LimitStore>, patience: Duration) -> Self {
        Self { store, patience, local: Buckets::new(), retry_at: Default::default() }
    }

    /// Takes units of several keys, of all or of none, and returns a decision for each, in order.
    ///
    /// # Errors
    /// `unavailable` under [`Outage::Refuse`] while the store does not answer.
    pub(crate) async fn take(
        &self,
        scope: LimitScope,
        outage: Outage,
        takes: &[LimitTake],
    ) -> ApiResult<Vec<Decision>> {
        let decisions = match self.ask(scope, takes).await {
            Some(decisions) => decisions,
            None => {
                count_fallback(scope, outage);
                match outage {
                    Outage::Open => takes.iter().map(unused).collect(),
                    Outage::Local => self.local.take(takes),
                    Outage::Refuse => {
                        return Err(ApiError::unavailable("the limit cannot be checked now; ask again"));
                    }
                }
            }
        };
        count_decision(scope, decisions.iter().all(|decision| decision.allowed));
        Ok(decisions)
    }

    /// Asks the store, unless it failed just now.
    async fn ask(&self, scope: LimitScope, takes: &[LimitTake]) -> Option<Vec<Decision>> {
        let retry_at = &self.retry_at[scope as usize];
        if !is_worth_asking(retry_at) {
            return None;
        }
        let fault = match timeout(self.patience, self.store.take(takes)).await {
            Ok(Ok(decisions)) => {
                if retry_at.lock().take().is_some() {
                    tracing::info!("limits are shared again");
                }
                return Some(decisions);
            }
            Ok(Err(error)) => error_chain(&error),
            Err(_) => "no answer in time".to_owned(),
        };
        if retry_at.lock().replace(Instant::now() + PAUSE).is_none() {
            tracing::warn!(error = %fault, "limits are not shared for now");
        }
        None
    }
}

/// Lets everybody ask while the store answers, and one of all a while after it failed.
fn is_worth_asking(retry_at: &Mutex<Option<Instant>>) -> bool {
    let mut retry_at = retry_at.lock();
    let now = Instant::now();
    match *retry_at {
        Some(at) if now < at => false,
        Some(_) => {
            *retry_at = Some(now + PAUSE);
            true
        }
        None => true,
    }
}

/// Allows what is taken, as if the key were new: nothing is known of it.
fn unused(take: &LimitTake) -> Decision {
    take.rate.decided(true, take.rate.cost_us(take.cost), take.cost)
}

fn count_decision(scope: LimitScope, is_allowed: bool) {
    let outcome = if is_allowed { "allowed" } else { "denied" };
    metrics::counter!("switchboard_limits_decisions_total", "scope" => scope.as_str(), "outcome" => outcome)
        .increment(1);
}

fn count_fallback(scope: LimitScope, outage: Outage) {
    let policy = policy_label(outage);
    metrics::counter!("switchboard_limits_fallbacks_total", "scope" => scope.as_str(), "policy" => policy).increment(1);
}

const fn policy_label(outage: Outage) -> &'static str {
    match outage {
        Outage::Open => "open",
        Outage::Local => "local",
        Outage::Refuse => "refuse",
    }
}

/// Registers the metrics of limits at zero.
pub(crate) fn describe_metrics() {
    for scope in LimitScope::ALL.map(LimitScope::as_str) {
        for outcome in ["allowed", "denied"] {
            metrics::counter!("switchboard_limits_decisions_total", "scope" => scope, "outcome" => outcome).absolute(0);
        }
        for policy in [Outage::Open, Outage::Local, Outage::Refuse].map(policy_label) {
            metrics::counter!("switchboard_limits_fallbacks_total", "scope" => scope, "policy" => policy).absolute(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;
    use switchboard_store_api::{StoreError, StoreResult};
    use tokio::time::advance;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(500);

    /// How the store behaves.
    const WORKS: u32 = 0;
    const FAILS: u32 = 1;
    const HANGS: u32 = 2;

    #[derive(Default)]
    struct Store {
        mode: AtomicU32,
        asked: AtomicU32,
    }

    #[async_trait]
    impl LimitStore for Store {
        async fn take(&self, takes: &[LimitTake]) -> StoreResult<Vec<Decision>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            match self.mode.load(Ordering::SeqCst) {
                WORKS => Ok(takes.iter().map(unused).collect()),
                FAILS => Err(StoreError::Unavailable("gone".into())),
                _ => std::future::pending().await,
            }
        }

        async fn sweep(&self, _: u32) -> StoreResult<u64> {
            Ok(0)
        }
    }

    fn limiter(mode: u32) -> (Arc<Store>, Limiter) {
        let store = Arc::new(Store { mode: AtomicU32::new(mode), ..Store::default() });
        (store.clone(), Limiter::new(store, PATIENCE))
    }

    async fn allowed(limiter: &Limiter, outage: Outage, times: usize) -> usize {
        let take = LimitTake { key: "k".to_owned(), rate: "3/1h".parse().unwrap(), cost: 1 };
        let mut allowed = 0;
        for _ in 0..times {
            let decisions = limiter.take(LimitScope::Take, outage, std::slice::from_ref(&take)).await;
            allowed += usize::from(decisions.is_ok_and(|decisions| decisions[0].allowed));
        }
        allowed
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_store_fails_the_policy_decides() {
        for (outage, expected) in [(Outage::Open, 10), (Outage::Local, 3), (Outage::Refuse, 0)] {
            let (_, limiter) = limiter(FAILS);
            assert_eq!(allowed(&limiter, outage, 10).await, expected, "{outage:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_hangs_costs_patience_once_a_pause() {
        let (store, limiter) = limiter(HANGS);
        let started = Instant::now();
        assert_eq!(allowed(&limiter, Outage::Local, 10).await, 3);
        assert_eq!(started.elapsed(), PATIENCE);
        assert_eq!(store.asked.load(Ordering::SeqCst), 1);
        advance(PAUSE).await;
        allowed(&limiter, Outage::Local, 10).await;
        assert_eq!(store.asked.load(Ordering::SeqCst), 2, "one request tries it again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_answers_again_is_asked_again() {
        let (store, limiter) = limiter(FAILS);
        allowed(&limiter, Outage::Local, 10).await;
        store.mode.store(WORKS, Ordering::SeqCst);
        assert_eq!(allowed(&limiter, Outage::Local, 10).await, 0, "the pause is not over");
        advance(PAUSE).await;
        assert_eq!(allowed(&limiter, Outage::Local, 10).await, 10);
        assert_eq!(store.asked.load(Ordering::SeqCst), 11);
    }
}
