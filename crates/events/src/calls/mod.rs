//! Calls on this replica: offers reach the sockets they are for, calls that are due move on, and whoever waits for the
//! end of a call is woken.
//!
//! What stands in the database is the truth; the feed only says when to look. Nothing here knows who called.

mod operations;
mod told;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchboard_model::feed::{SignalKind, Tick};
use switchboard_model::identity::UserId;
use switchboard_store_api::{CallStore, StoreError};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use told::Told;

use crate::feed::{FeedObserver, error_chain};
use crate::hub::Hub;
use crate::waits::CallWaits;

/// The most calls that are moved on in one transaction.
const BATCH: u32 = 100;

/// How long a failed read of offers waits before it is tried again.
const READ_RETRY: Duration = Duration::from_millis(250);

/// The calls of one replica.
pub struct Calls {
    hub: Arc<Hub>,
    store: Arc<dyn CallStore>,
    due: Mutex<Due>,
    wake: Notify,
    waits: CallWaits,
}

/// What the next pass of the loop does.
#[derive(Debug, Default)]
struct Due {
    /// The users whose offers are to be read.
    users: BTreeSet<UserId>,
    /// When a call of the whole deployment is due to move on.
    advance_at: Option<Instant>,
}

impl Calls {
    /// Makes the calls of the replica whose sockets are in `hub`.
    #[must_use]
    pub fn new(store: Arc<dyn CallStore>, hub: Arc<Hub>) -> Arc<Self> {
        Arc::new(Self { hub, store, due: Mutex::default(), wake: Notify::new(), waits: CallWaits::default() })
    }

    /// Returns what wakes those who wait for the end of a call.
    #[must_use]
    pub const fn waits(&self) -> &CallWaits {
        &self.waits
    }

    /// Tells sockets of their offers and moves calls on, until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        loop {
            let Due { users, advance_at } = {
                let mut due = self.due.lock();
                Due { users: std::mem::take(&mut due.users), advance_at: due.advance_at }
            };
            if !users.is_empty() {
                self.offer(users).await;
            }
            if advance_at.is_some_and(|at| at <= Instant::now()) {
                self.advance().await;
                continue;
            }
            let due = async {
                match advance_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                // What is noted between the look and here is kept by `Notify`.
                () = self.wake.notified() => {}
                () = due => {}
            }
        }
    }

    /// Tells the sockets of these users what they are offered.
    async fn offer(&self, users: BTreeSet<UserId>) {
        let asked: Vec<UserId> = users.iter().cloned().collect();
        match self.store.offers(&asked).await {
            Ok(offers) => {
                for offered in &offers {
                    self.hub.offer(offered);
                }
            }
            Err(error) => {
                self.report("offers of calls cannot be read", &error);
                self.due.lock().users.extend(users);
                self.wake.notify_one();
                tokio::time::sleep(READ_RETRY).await;
            }
        }
    }

    /// Moves on what is due, on whichever replica comes first; the next tick says what is due then.
    async fn advance(&self) {
        self.due.lock().advance_at = None;
        match self.store.advance(BATCH).await {
            Ok(report) => {
                metrics::counter!("switchboard_calls_moved_total").increment(report.offered);
                metrics::counter!("switchboard_calls_unanswered_total").increment(report.ended);
                if report.more {
                    self.due.lock().advance_at.get_or_insert_with(Instant::now);
                }
            }
            Err(error) => self.report("calls cannot be moved on", &error),
        }
    }

    fn report(&self, what: &'static str, error: &StoreError) {
        if error.is_transient() {
            tracing::debug!(error = %error_chain(error), "{what}");
        } else {
            tracing::error!(error = %error_chain(error), "{what}");
        }
    }
}

impl FeedObserver for Calls {
    fn observe(&self, tick: &Tick) {
        let of_kind = |kind| tick.signals.iter().filter(move |signal| signal.kind == kind);
        if tick.resync {
            self.waits.wake_all();
        }
        for signal in of_kind(SignalKind::CallEnded) {
            if let Ok(id) = signal.key.parse() {
                self.waits.wake(&id);
            }
        }
        let offered: BTreeSet<UserId> =
            of_kind(SignalKind::CallOffered).filter_map(|signal| signal.key.parse().ok()).collect();
        let users = match (tick.resync, offered.is_empty()) {
            (true, _) => self.hub.local_users(|_| true),
            (false, true) => BTreeSet::new(),
            (false, false) => self.hub.local_users(|user| offered.contains(user)),
        };
        let mut due = self.due.lock();
        due.users.extend(users);
        due.advance_at = tick.next.call.map(|at| Instant::now() + (at - tick.now).to_std().unwrap_or_default());
        if !due.users.is_empty() || due.advance_at.is_some() {
            self.wake.notify_one();
        }
    }
}
