//! Work under a lease: acquired before, renewed meanwhile, given back after, and stopped when it is lost. Needs a store
//! and nothing else, so that any application on the same database can use it.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use switchboard_model::identity::ClientKey;
use switchboard_model::ids::Fence;
use switchboard_model::lease::{LEASE_TTL, Lease, LeaseHold, NewLease};
use switchboard_model::span::Span;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::error::StoreError;
use crate::leases::{AcquireOutcome, LeaseRenewal, LeaseStore};

/// How many renewals fit into a lease.
const RENEWALS: u32 = 3;

/// How many tries fit between two renewals when one fails.
const RETRIES: u32 = 6;

/// Why work under a lease was not done, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// Somebody else holds the lease; nothing was begun.
    #[error("{} is held by {} until {}", .0.key, .0.holder, .0.expires_at)]
    Held(Lease),
    /// The lease was taken away, or could not be renewed in time; the work was stopped. What it has written with its
    /// fence counts where nobody has written with a newer one.
    #[error("the lease was lost")]
    LeaseLost,
    /// The lease could not be asked for; nothing was begun.
    #[error("the lease cannot be acquired")]
    Store(#[from] StoreError),
}

/// What the work is given.
#[derive(Clone, Debug)]
pub struct Holding {
    /// The number of the hold, for whatever the work writes: who checks it accepts no smaller one after a greater.
    pub fence: Fence,
    /// Cancelled when the lease is lost. The work has [`WithLease::grace`] to end by itself.
    pub stop: CancellationToken,
}

/// How leases are held.
#[derive(Clone)]
pub struct WithLease {
    store: Arc<dyn LeaseStore>,
    tracker: TaskTracker,
    /// How long a lease outlives its last renewal; it is renewed three times as often.
    pub ttl: Span,
    /// How long work that has lost its lease may take to end by itself before it is dropped.
    pub grace: Duration,
}

impl WithLease {
    /// Holds leases of `store`. What has to be given back after its holder was dropped is given back on `tracker`.
    #[must_use]
    pub fn new(store: Arc<dyn LeaseStore>, tracker: TaskTracker) -> Self {
        Self { store, tracker, ttl: LEASE_TTL, grace: Duration::from_secs(5) }
    }

    /// Does `work` while holding the lease on `key`, under a holder's name that is new for each call.
    ///
    /// The lease is renewed beside the work, in the same task: work that blocks its thread is not renewed, and belongs
    /// into `spawn_blocking`. The lease is given back when the work ends, panics, or is dropped.
    ///
    /// # Errors
    /// [`LeaseError::Held`] when somebody else holds the lease, [`LeaseError::LeaseLost`] when it was lost before the work
    /// ended.
    ///
    /// # Panics
    /// Panics when the work does, after the lease is given back.
    pub async fn with_lease<T, F>(&self, key: &ClientKey, work: impl FnOnce(Holding) -> F) -> Result<T, LeaseError>
    where
        F: Future<Output = T>,
    {
        let asked = Instant::now();
        let lease = self.acquire(key).await?;
        let hold = lease.hold();
        let mut guard = Guard { with: self, hold: Some(hold.clone()) };
        let stop = CancellationToken::new();
        let work = AssertUnwindSafe(work(Holding { fence: lease.fence, stop: stop.clone() })).catch_unwind();
        tokio::pin!(work);
        let ended = tokio::select! {
            // First, so that work whose lease is over does not end well by chance.
            biased;
            () = self.lost(&hold, asked) => None,
            ended = &mut work => Some(ended),
        };
        let Some(ended) = ended else {
            guard.hold = None;
            stop.cancel();
            // The end of the grace drops the work at its next await.
            if let Ok(Err(panic)) = timeout(self.grace, work).await {
                resume_unwind(panic);
            }
            return Err(LeaseError::LeaseLost);
        };
        let released = self.store.release(&hold).await;
        // When there is no answer, the guard asks again.
        if released.is_ok() {
            guard.hold = None;
        }
        let value = ended.unwrap_or_else(|panic| {
            drop(guard);
            resume_unwind(panic)
        });
        match released {
            Ok(false) => Err(LeaseError::LeaseLost),
            // By the clock of this process it held to the end of the work.
            Ok(true) | Err(_) => Ok(value),
        }
    }

    /// Acquires a lease; a hold whose answer was lost is recognised by its holder.
    async fn acquire(&self, key: &ClientKey) -> Result<Lease, LeaseError> {
        let holder: ClientKey = fresh_holder();
        let new = NewLease { key: key.clone(), holder, ttl: self.ttl, meta: None };
        let outcome = match self.store.acquire(&new).await {
            Err(error) if error.is_transient() => self.store.acquire(&new).await?,
            outcome => outcome?,
        };
        match outcome {
            AcquireOutcome::Acquired(lease) => Ok(lease),
            AcquireOutcome::Held(lease) if lease.holder == new.holder => Ok(lease),
            AcquireOutcome::Held(lease) => Err(LeaseError::Held(lease)),
        }
    }

    /// Renews a lease until it is lost. It counts from before each request was sent: what the database granted ends later.
    async fn lost(&self, hold: &LeaseHold, mut granted: Instant) {
        let ttl = self.ttl.to_std();
        let period = ttl / RENEWALS;
        loop {
            let deadline = granted + ttl;
            sleep_until(granted + period).await;
            loop {
                let asked = Instant::now();
                // A connection may be dead without a word; to be renewed twice does no harm.
                match timeout_at(deadline.min(asked + period), self.store.renew(hold, self.ttl)).await {
                    Ok(Ok(LeaseRenewal::Renewed(_))) => {
                        granted = asked;
                        break;
                    }
                    Ok(Ok(LeaseRenewal::Lost(_))) => return,
                    Ok(Err(error)) => {
                        tracing::debug!(key = %hold.key, %error, "a lease cannot be renewed now");
                        sleep_until(deadline.min(Instant::now() + period / RETRIES)).await;
                    }
                    Err(_) => {}
                }
                if Instant::now() >= deadline {
                    return;
                }
            }
        }
    }
}

/// Makes a holder's name that nobody else has.
fn fresh_holder() -> ClientKey {
    // The text form of a UUID consists of visible ASCII characters.
    #[expect(clippy::expect_used, reason = "the line above")]
    Uuid::new_v4().to_string().parse().expect("a UUID is a key")
}

/// Gives a lease back whose holder was dropped, or got no answer.
struct Guard<'a> {
    with: &'a WithLease,
    hold: Option<LeaseHold>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let (Some(hold), Ok(_)) = (self.hold.take(), tokio::runtime::Handle::try_current()) else { return };
        let store = Arc::clone(&self.with.store);
        self.with.tracker.spawn(async move {
            // It ends by itself otherwise.
            if let Err(error) = store.release(&hold).await {
                tracing::debug!(key = %hold.key, %error, "a lease cannot be given back");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use switchboard_model::Timestamp;
    use switchboard_model::page::{Page, PageRequest};
    use tokio::sync::Mutex;

    use super::*;
    use crate::StoreResult;
    use crate::context::WriteContext;

    /// How renewals go.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Renewals {
        Granted,
        Refused,
        Silent,
        Failing,
    }

    /// A store with one lease, which notes what was asked of it.
    struct Fake {
        renewals: Renewals,
        asked: Mutex<Vec<&'static str>>,
    }

    impl Fake {
        fn lease(new: &NewLease) -> Lease {
            Lease {
                key: new.key.clone(),
                holder: new.holder.clone(),
                fence: Fence(7),
                expires_at: Timestamp::default(),
                meta: None,
            }
        }

        async fn note(&self, what: &'static str) {
            self.asked.lock().await.push(what);
        }

        async fn count(&self, what: &str) -> usize {
            self.asked.lock().await.iter().filter(|asked| **asked == what).count()
        }
    }

    #[async_trait]
    impl LeaseStore for Fake {
        async fn acquire(&self, new: &NewLease) -> StoreResult<AcquireOutcome> {
            self.note("acquire").await;
            // The answer to the first request is lost.
            if self.count("acquire").await == 1 {
                return Err(StoreError::Unavailable("lost".into()));
            }
            Ok(AcquireOutcome::Held(Self::lease(new)))
        }

        async fn seize(&self, _: &WriteContext, new: &NewLease) -> StoreResult<Lease> {
            Ok(Self::lease(new))
        }

        async fn renew(&self, hold: &LeaseHold, ttl: Span) -> StoreResult<LeaseRenewal> {
            self.note("renew").await;
            let new = NewLease { key: hold.key.clone(), holder: hold.holder.clone(), ttl, meta: None };
            match self.renewals {
                Renewals::Granted => Ok(LeaseRenewal::Renewed(Self::lease(&new))),
                Renewals::Refused => Ok(LeaseRenewal::Lost(None)),
                Renewals::Failing => Err(StoreError::Unavailable("down".into())),
                Renewals::Silent => std::future::pending().await,
            }
        }

        async fn release(&self, _: &LeaseHold) -> StoreResult<bool> {
            self.note("release").await;
            Ok(true)
        }

        async fn holder(&self, _: &ClientKey) -> StoreResult<Option<Lease>> {
            Ok(None)
        }

        async fn list(&self, _: &PageRequest) -> StoreResult<Page<Lease>> {
            Ok(Page { items: Vec::new(), next_cursor: None })
        }

        async fn sweep(&self, _: u32) -> StoreResult<u64> {
            Ok(0)
        }
    }

    fn fake(renewals: Renewals) -> (Arc<Fake>, WithLease) {
        let fake = Arc::new(Fake { renewals, asked: Mutex::default() });
        let store: Arc<dyn LeaseStore> = fake.clone();
        let with = WithLease { ttl: Span::from_secs(15), ..WithLease::new(store, TaskTracker::new()) };
        (fake, with)
    }

    fn key() -> ClientKey {
        "k".parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_every_third_and_given_back() {
        let (fake, with) = fake(Renewals::Granted);
        let fence = with
            .with_lease(&key(), async |holding| {
                tokio::time::sleep(Duration::from_secs(62)).await;
                assert!(!holding.stop.is_cancelled());
                holding.fence
            })
            .await;
        assert_eq!(fence.unwrap(), Fence(7), "a hold whose first answer was lost is recognised");
        assert_eq!((fake.count("renew").await, fake.count("release").await), (12, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn work_stops_when_its_lease_is_lost_or_cannot_be_renewed_in_time() {
        for (renewals, seconds) in [(Renewals::Refused, 5), (Renewals::Failing, 15), (Renewals::Silent, 15)] {
            let (fake, with) = fake(renewals);
            let began = Instant::now();
            let outcome = with
                .with_lease(&key(), async |holding| {
                    holding.stop.cancelled().await;
                    assert_eq!(began.elapsed().as_secs(), seconds, "{renewals:?}");
                })
                .await;
            assert!(matches!(outcome, Err(LeaseError::LeaseLost)), "{renewals:?}");
            assert_eq!(fake.count("release").await, 0, "it is nobody's to give back");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_does_not_stop_is_dropped() {
        let (_, with) = fake(Renewals::Refused);
        let began = Instant::now();
        let outcome = with.with_lease::<(), _>(&key(), |_| std::future::pending()).await;
        assert!(matches!(outcome, Err(LeaseError::LeaseLost)));
        assert_eq!(began.elapsed().as_secs(), 5 + 5, "a third of the lease, and the grace");
    }
}
