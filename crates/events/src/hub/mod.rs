//! The hub: the sessions of this replica and the rooms they have joined.
//!
//! Lock order: room map, then a channel, then an outbox. No lock is held across an await.

mod calls;
mod channel;
mod join;
mod observe;
mod revocation;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use switchboard_model::Timestamp;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::{ConnectionId, InstanceId};
use switchboard_model::room::{Epoch, HistoryPage, Position, StoredEvent};
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::frame::{Goaway, Hello, HelloLimits, NoticeFrame};
use switchboard_model::wire::limits::{
    HEARTBEAT, HISTORY_EVENTS, MESSAGE_BYTES, OPS_PER_SECOND, PAYLOAD_BYTES, ROOMS_PER_SOCKET,
};
use switchboard_store_api::{AuthSessionStore, CallStore, RoomStore, StoreError, Stores};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::outbox::BehindRoom;
use crate::session::{Session, SessionGuard, SessionIdentity};
use channel::{Advance, Channel};
use observe::Reconciliation;

/// How many reads of the log go at the same time, so that 500 resuming sockets are not 500 readers.
const LOG_READERS: usize = 8;

/// The longest slot of one session in a drain.
const DRAIN_SLOT: Duration = Duration::from_millis(50);

/// How long a failed read of the log waits before it is tried again.
const READ_RETRY: Duration = Duration::from_millis(250);

/// The sessions and joined rooms of one replica.
pub struct Hub {
    me: Weak<Self>,
    instance: InstanceId,
    rooms: Arc<dyn RoomStore>,
    auth_sessions: Arc<dyn AuthSessionStore>,
    calls: Arc<dyn CallStore>,
    channels: RwLock<HashMap<RoomName, Arc<Channel>>>,
    sessions: Mutex<HashMap<ConnectionId, Arc<Session>>>,
    readers: Semaphore,
    clock: Mutex<Option<(Timestamp, Instant)>>,
    reconciliation: Mutex<Reconciliation>,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Hub {
    /// Makes the hub of a replica; its reads of the log run on `tracker` until `stop`.
    #[must_use]
    pub fn new(stores: &Stores, instance: InstanceId, tracker: TaskTracker, stop: CancellationToken) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            instance,
            rooms: Arc::clone(&stores.rooms),
            auth_sessions: Arc::clone(&stores.auth_sessions),
            calls: Arc::clone(&stores.calls),
            channels: RwLock::default(),
            sessions: Mutex::default(),
            readers: Semaphore::new(LOG_READERS),
            clock: Mutex::default(),
            reconciliation: Mutex::default(),
            tracker,
            stop,
        })
    }

    /// Registers a session, joins it to the room of its user and says hello.
    ///
    /// # Errors
    /// Fails when the position of the user's room cannot be read.
    pub async fn connect(&self, identity: SessionIdentity) -> Result<SessionGuard, StoreError> {
        let hub = self.me.upgrade().ok_or(StoreError::Fenced)?;
        let user_room = identity.user_id.room();
        let hello = |session: &Session| Hello {
            conn_id: session.id(),
            user_id: session.identity().user_id.clone(),
            instance: self.instance.clone(),
            heartbeat_ms: HEARTBEAT.as_millis(),
            limits: HelloLimits {
                message_bytes: MESSAGE_BYTES,
                payload_bytes: PAYLOAD_BYTES,
                rooms: ROOMS_PER_SOCKET,
                ops_per_second: OPS_PER_SECOND,
            },
            pending_calls: Vec::new(),
        };
        let session = Arc::new(Session::new(identity, hub));
        let guard = SessionGuard(Arc::clone(&session));
        let count = {
            let mut sessions = self.sessions.lock();
            sessions.insert(session.id(), Arc::clone(&session));
            sessions.len()
        };
        set_gauge("switchboard_realtime_sessions", count);
        // What is offered to it from now on finds the session, which keeps it for the hello.
        let pending = self.calls.pending(&session.identity().user_id, session.id()).await?;
        session.greet(hello(&session), pending);
        self.enter_at_latest(&session, &user_room).await?;
        Ok(guard)
    }

    /// Forgets a session and leaves its rooms.
    pub(crate) fn disconnect(&self, session: &Arc<Session>) {
        let rooms = session.outbox.lock().rooms();
        for room in rooms {
            self.leave(session, &room);
        }
        let count = {
            let mut sessions = self.sessions.lock();
            sessions.remove(&session.id());
            sessions.len()
        };
        set_gauge("switchboard_realtime_sessions", count);
    }

    /// Counts the sessions.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.lock().len()
    }

    /// Closes every session with the same code.
    pub fn close_all(&self, code: CloseCode) {
        for session in self.all_sessions() {
            session.close(code);
        }
    }

    /// Moves every session to another replica: each is told the window, and closed at its own slot in it. A
    /// few sessions need less than the `longest` window.
    pub async fn drain(&self, longest: Duration) {
        let sessions = self.all_sessions();
        let count = u32::try_from(sessions.len().max(1)).unwrap_or(u32::MAX);
        let window = longest.min(DRAIN_SLOT.saturating_mul(count));
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        for session in &sessions {
            session.notice(&NoticeFrame::Goaway(Goaway {
                reason: "drain".to_owned(),
                reconnect_min_ms: 0,
                reconnect_max_ms: window_ms,
            }));
        }
        let start = Instant::now();
        for (index, session) in (1_u32..).zip(sessions) {
            // Absolute slots: many short sleeps would add up to more than the window.
            tokio::time::sleep_until(start + window.mul_f64(f64::from(index) / f64::from(count))).await;
            session.close(CloseCode::Drain);
        }
        self.close_all(CloseCode::Drain);
    }

    fn all_sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().values().cloned().collect()
    }

    /// Returns database time as of the latest tick, carried on by the monotonic clock; `None` before the
    /// first tick.
    #[must_use]
    pub fn now(&self) -> Option<Timestamp> {
        let (now, read_at) = (*self.clock.lock())?;
        Some(now + read_at.elapsed())
    }

    fn channel(&self, room: &RoomName) -> Option<Arc<Channel>> {
        self.channels.read().get(room).cloned()
    }

    /// Takes an event that this replica has just appended; the sequencer of its room puts it in order.
    pub(crate) fn appended(&self, room: &RoomName, position: &Position, event: &StoredEvent) {
        if let Some(channel) = self.channel(room)
            && channel.advance(&position.epoch, event) == Advance::Gap
        {
            self.fetch(channel);
        }
    }

    /// Reads a room from the log until everything known of is delivered; one reader per room.
    fn fetch(&self, channel: Arc<Channel>) {
        let Some(hub) = self.me.upgrade().filter(|_| channel.start_fetching()) else { return };
        let task = async move {
            while let Some(after) = channel.next_read() {
                match hub.read(channel.name(), after).await {
                    Ok(page) => channel.apply(after, page),
                    Err(error) => hub.pause_after(&error).await,
                }
                if hub.stop.is_cancelled() {
                    return;
                }
            }
            hub.forget_if_empty(channel.name());
        };
        self.tracker.spawn(task);
    }

    /// Reads a page of the log, behind the semaphore that bounds the readers.
    async fn read(&self, room: &RoomName, after: i64) -> Result<Option<HistoryPage>, StoreError> {
        let _permit = self.readers.acquire().await;
        self.rooms.history(room, after, HISTORY_EVENTS).await
    }

    /// Waits before a read is tried again: briefly after a passing fault, longer after one that stays.
    async fn pause_after(&self, error: &StoreError) {
        if error.is_transient() {
            tracing::debug!(error = %crate::feed::error_chain(error), "a room cannot be read now");
            self.pause(READ_RETRY).await;
        } else {
            tracing::error!(error = %crate::feed::error_chain(error), "a room cannot be read");
            self.pause(READ_RETRY * 20).await;
        }
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    /// Reads the next stretch for a session that is behind in a room, and makes it live if that was all.
    pub(crate) async fn catch_up(&self, session: &Session, behind: BehindRoom) {
        let Some(channel) = self.channel(&behind.room) else {
            session.outbox.lock().leave(&behind.room);
            return;
        };
        if channel.go_live(session) {
            return;
        }
        if let Some(frames) = channel.recent_after(&behind.epoch, behind.cursor) {
            session.outbox.lock().extend(&behind, &frames);
        } else {
            metrics::counter!("switchboard_realtime_catch_ups_total").increment(1);
            match self.read(&behind.room, behind.cursor).await {
                Ok(page) => channel.catch_up(session, &behind, page),
                Err(error) => self.pause_after(&error).await,
            }
        }
        if !session.outbox.lock().has_joined(&behind.room) {
            self.leave(session, &behind.room);
            return;
        }
        if !channel.go_live(session) && session.outbox.lock().is_still(&behind) {
            // The log and the channel disagree, so the channel is out of date: it reads, too.
            self.fetch(Arc::clone(&channel));
            self.pause(READ_RETRY).await;
        }
    }
}

/// The history of a room that has no row yet; its first event starts the real one.
pub(crate) fn void_epoch() -> Epoch {
    Epoch::new("none", "0")
}

fn set_gauge(name: &'static str, count: usize) {
    // Counts of sockets and rooms are far below 2^52.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    metrics::gauge!(name).set(count as f64);
}
