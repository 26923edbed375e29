//! What the change feed means to the scheduler: which loop it wakes, and when.
//!
//! It only notes and returns. The instants of a tick are database time; they become local timers
//! counted from the moment the tick arrives, which is never too early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use switchboard_model::Timestamp;
use switchboard_model::feed::{Signal, SignalKind, Tick};
use switchboard_model::identity::PoolName;
use switchboard_store_api::News;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::lease::Held;
use crate::pull::PullWakes;
use crate::replay::Progress;
use crate::wake::Wake;

/// How often runs are looked at that wait for a permit or a rate limit.
const WAITING_CHECK: Duration = Duration::from_secs(5);

/// How soon a pool that this replica does not serve is looked at after a run was queued in it.
const COVERAGE_CHECK: Duration = Duration::from_secs(2);

/// The wake-ups of the loops and what else they tell each other.
#[derive(Debug)]
pub(crate) struct Wakes {
    pub(crate) fire: Wake,
    pub(crate) promote: Wake,
    pub(crate) recover: Wake,
    pub(crate) relay: Wake,
    pub(crate) coverage: Wake,
    pub(crate) dispatch: Wake,
    pub(crate) heartbeat: Wake,
    /// Those who wait for runs of external workers.
    pub(crate) pulls: PullWakes,
    /// Whether the fleet settings must be read again.
    pub(crate) settings_changed: AtomicBool,
    /// Whether runs may be queued for which no permit of this replica was free, or no room in their pool.
    pub(crate) wants_permits: AtomicBool,
    /// Grows with every request to cancel a running run.
    pub(crate) cancels: AtomicU64,
    /// What the loops have done, for whoever waits until they have nothing to do.
    pub(crate) progress: watch::Sender<Progress>,
}

impl Default for Wakes {
    fn default() -> Self {
        Self {
            fire: Wake::default(),
            promote: Wake::default(),
            recover: Wake::default(),
            relay: Wake::default(),
            coverage: Wake::default(),
            dispatch: Wake::default(),
            heartbeat: Wake::default(),
            pulls: PullWakes::default(),
            settings_changed: AtomicBool::new(true),
            wants_permits: AtomicBool::new(false),
            cancels: AtomicU64::new(0),
            progress: watch::Sender::default(),
        }
    }
}

/// Takes note of what the change feed says; clones serve the same scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerObserver {
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) held: Arc<Held>,
    pub(crate) pools: Arc<[PoolName]>,
}

impl SchedulerObserver {
    /// Takes note of a tick. Never blocks.
    pub fn observe(&self, tick: &Tick) {
        let wakes = &self.wakes;
        if tick.resync {
            self.wake_all();
        }
        for signal in &tick.signals {
            self.note(signal);
        }
        let read_at = Instant::now();
        let arm = |wake: &Wake, due: Option<Timestamp>| {
            if let Some(due) = due {
                wake.when(due - tick.now, read_at);
            }
        };
        // An edited task needs no wake-up of its own: the same read says when the earliest is due.
        arm(&wakes.fire, tick.next.task);
        arm(&wakes.promote, tick.next.scheduled_run);
        arm(&wakes.promote, tick.next.start_by);
        arm(&wakes.recover, tick.next.lease);
        if tick.next.has_queued {
            wakes.dispatch.now();
        }
        if tick.next.has_waiting {
            // Whoever frees a permit promotes; this finds what nobody did. An earlier timer stays.
            wakes.promote.at(read_at + WAITING_CHECK);
        }
        if tick.next.has_outbox {
            wakes.relay.now();
        }
    }

    /// Takes note of news, which come before the tick that brings them, too. Never blocks.
    pub fn hear(&self, news: &News) {
        if let News::Signal(Signal { kind: SignalKind::PoolQueued, key, .. }) = news
            && self.pools.iter().any(|pool| pool.as_str() == key)
        {
            self.wakes.dispatch.now();
        }
    }

    fn note(&self, signal: &Signal) {
        match signal.kind {
            // The pools of this replica wake their loop by what the same read finds in them, not by what once came in.
            SignalKind::PoolQueued => {
                self.wakes.pulls.queued(&signal.key);
                if !self.pools.iter().any(|pool| pool.as_str() == signal.key) {
                    // Somebody else may serve it; those who do have started the runs by then.
                    self.wakes.coverage.at(Instant::now() + COVERAGE_CHECK);
                }
            }
            SignalKind::InstanceChanged => self.wakes.coverage.now(),
            SignalKind::RunCancelled => {
                self.wakes.cancels.fetch_add(1, Ordering::SeqCst);
                if signal.key.parse().is_ok_and(|run| self.held.holds(run)) {
                    self.wakes.heartbeat.now();
                }
            }
            SignalKind::SettingChanged => {
                self.wakes.settings_changed.store(true, Ordering::SeqCst);
                self.wakes.fire.now();
                self.wakes.dispatch.now();
                self.wakes.pulls.all();
            }
            SignalKind::OutboxFilled => self.wakes.relay.now(),
            _ => {}
        }
    }

    fn wake_all(&self) {
        let wakes = &self.wakes;
        wakes.settings_changed.store(true, Ordering::SeqCst);
        let Wakes { fire, promote, recover, relay, coverage, dispatch, heartbeat, .. } = &**wakes;
        for wake in [fire, promote, recover, relay, coverage, dispatch, heartbeat] {
            wake.now();
        }
        wakes.pulls.all();
    }
}

#[cfg(test)]
mod tests {
    use switchboard_model::feed::{FeedCursor, NextDue};
    use switchboard_model::ids::{Fence, RunId};
    use switchboard_model::span::Span;
    use switchboard_store_api::Renewal;

    use super::*;

    fn observer() -> SchedulerObserver {
        let pools = ["default".parse().unwrap(), "heavy".parse().unwrap()];
        SchedulerObserver {
            wakes: Arc::default(),
            held: Arc::new(Held::new(Span::from_secs(15))),
            pools: Arc::new(pools),
        }
    }

    fn tick() -> Tick {
        Tick {
            now: "2027-01-01T00:00:00Z".parse().unwrap(),
            cursor: FeedCursor("1".to_owned()),
            resync: false,
            signals: vec![],
            next: NextDue::default(),
        }
    }

    fn signal(kind: SignalKind, key: &str) -> Tick {
        Tick { signals: vec![Signal { kind, key: key.to_owned(), pos: 0, body: None }], ..tick() }
    }

    /// Returns which loops are woken at once, by their first letters.
    async fn woken(observer: &SchedulerObserver) -> String {
        let wakes = &observer.wakes;
        let mut names = String::new();
        for (name, wake) in [
            ('f', &wakes.fire),
            ('p', &wakes.promote),
            ('r', &wakes.recover),
            ('o', &wakes.relay),
            ('c', &wakes.coverage),
            ('d', &wakes.dispatch),
            ('h', &wakes.heartbeat),
        ] {
            if tokio::time::timeout(Duration::ZERO, wake.due()).await.is_ok() {
                names.push(name);
            }
            wake.arm();
        }
        names
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_tick_wakes_nothing() {
        let observer = observer();
        observer.observe(&tick());
        assert_eq!(woken(&observer).await, "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_is_due_in_300_ms_fires_in_300_ms() {
        let observer = observer();
        let start = Instant::now();
        let next = NextDue { task: Some("2027-01-01T00:00:00.3Z".parse().unwrap()), ..NextDue::default() };
        observer.observe(&Tick { next, ..tick() });
        observer.wakes.fire.due().await;
        assert_eq!(start.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_overdue_wakes_its_loop_at_once() {
        let observer = observer();
        let past = Some("2026-12-31T23:59:59Z".parse().unwrap());
        let next = NextDue { scheduled_run: past, lease: past, has_queued: true, ..NextDue::default() };
        observer.observe(&Tick { next, ..tick() });
        assert_eq!(woken(&observer).await, "prd");
    }

    #[tokio::test(start_paused = true)]
    async fn queues_of_other_pools_wake_nothing() {
        let observer = observer();
        let queued = |pool: &str| {
            News::Signal(Signal { kind: SignalKind::PoolQueued, key: pool.to_owned(), pos: 0, body: None })
        };
        observer.hear(&queued("light"));
        assert_eq!(woken(&observer).await, "");
        observer.hear(&queued("heavy"));
        assert_eq!(woken(&observer).await, "d");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_queued_and_is_leased_wakes_nothing() {
        let observer = observer();
        observer.observe(&signal(SignalKind::PoolQueued, "heavy"));
        assert_eq!(woken(&observer).await, "");
        observer.observe(&Tick {
            next: NextDue { has_queued: true, ..NextDue::default() },
            ..signal(SignalKind::PoolQueued, "heavy")
        });
        assert_eq!(woken(&observer).await, "d");
    }

    #[tokio::test(start_paused = true)]
    async fn coverage_is_looked_at_when_replicas_change_and_soon_after_runs_of_other_pools() {
        let observer = observer();
        observer.observe(&signal(SignalKind::InstanceChanged, "other-1"));
        assert_eq!(woken(&observer).await, "c");
        let start = Instant::now();
        observer.observe(&signal(SignalKind::PoolQueued, "light"));
        observer.wakes.coverage.due().await;
        assert_eq!(start.elapsed(), COVERAGE_CHECK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_request_renews_at_once_if_the_run_is_held() {
        let observer = observer();
        let id = RunId::new();
        observer.observe(&signal(SignalKind::RunCancelled, &id.to_string()));
        assert_eq!(woken(&observer).await, "");
        let _lease = observer.held.insert(Renewal { id, fence: Fence(1) }, Instant::now());
        observer.observe(&signal(SignalKind::RunCancelled, &id.to_string()));
        assert_eq!(woken(&observer).await, "h");
        assert_eq!(observer.wakes.cancels.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_filled_outbox_is_relayed_at_once() {
        let observer = observer();
        observer.observe(&signal(SignalKind::OutboxFilled, "outbox"));
        assert_eq!(woken(&observer).await, "o");
        observer.observe(&Tick { next: NextDue { has_outbox: true, ..NextDue::default() }, ..tick() });
        assert_eq!(woken(&observer).await, "o", "also when its signal is long gone");
    }

    #[tokio::test(start_paused = true)]
    async fn runs_that_wait_are_looked_at_every_five_seconds() {
        let observer = observer();
        let start = Instant::now();
        let next = NextDue { has_waiting: true, ..NextDue::default() };
        for _ in 0..3 {
            observer.observe(&Tick { next, ..tick() });
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        observer.wakes.promote.due().await;
        assert_eq!(start.elapsed(), WAITING_CHECK);
    }

    #[tokio::test(start_paused = true)]
    async fn settings_are_read_again_after_a_change_and_after_a_resync() {
        let observer = observer();
        assert!(observer.wakes.settings_changed.swap(false, Ordering::SeqCst), "they are unknown at first");
        observer.observe(&signal(SignalKind::SettingChanged, "fleet"));
        assert!(observer.wakes.settings_changed.swap(false, Ordering::SeqCst));
        assert_eq!(woken(&observer).await, "fd");
        observer.observe(&Tick { resync: true, ..tick() });
        assert!(observer.wakes.settings_changed.load(Ordering::SeqCst));
        assert_eq!(woken(&observer).await, "fprocdh");
    }
}
