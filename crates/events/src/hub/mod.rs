//! The hub: the sessions of this replica and the rooms they have joined.
//!
//! Lock order: room map, then a channel, then an outbox. No lock is held across an await.

mod calls;
mod channel;
mod join;
mod kicks;
mod listen;
mod observe;
mod presence;
mod revocation;
mod state;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rand::Rng as _;
use switchboard_model::Timestamp;
use switchboard_model::identity::{RoomName, UserId};
use switchboard_model::ids::{ConnectionId, InstanceId};
use switchboard_model::room::{Epoch, HistoryPage, StoredEvent};
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::frame::{Goaway, Hello, HelloLimits, NoticeFrame};
use switchboard_model::wire::limits::{
    HEARTBEAT, HISTORY_EVENTS, MESSAGE_BYTES, OPS_PER_SECOND, PAYLOAD_BYTES, ROOMS_PER_SOCKET,
};
use switchboard_store_api::{AuthSessionStore, CallStore, ConnectionStore, RoomStore, StoreError, Stores};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connections::{ConnectError, Connections};
use crate::outbox::BehindRoom;
use crate::session::{Hold, Session, SessionGuard, SessionIdentity, SessionKind};
use channel::{Advance, Channel};
pub use listen::Reach;
use observe::Reconciliation;
use presence::PresenceWatch;

/// How many reads of the log go at the same time, so that 500 resuming sockets are not 500 readers.
const LOG_READERS: usize = 8;

/// The longest slot of one session in a drain.
const DRAIN_SLOT: Duration = Duration::from_millis(50);

/// How long a failed read of the log waits before it is tried again.
const READ_RETRY: Duration = Duration::from_millis(250);

/// What a hub is told about its replica.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// The identity of the replica.
    pub instance: InstanceId,
    /// The most sockets of one user, over all replicas.
    pub sockets_per_user: u32,
}

/// The sessions of this replica, under the identity that it has now.
struct Local {
    instance: InstanceId,
    sessions: HashMap<ConnectionId, Arc<Session>>,
    /// How many of them listen without a socket, for each user who has any.
    listeners: HashMap<UserId, u32>,
}

/// The sessions and joined rooms of one replica.
pub struct Hub {
    me: Weak<Self>,
    /// Marks the ephemeral events that were served here already.
    number: i64,
    rooms: Arc<dyn RoomStore>,
    auth_sessions: Arc<dyn AuthSessionStore>,
    calls: Arc<dyn CallStore>,
    sockets: Arc<dyn ConnectionStore>,
    sockets_per_user: u32,
    channels: RwLock<HashMap<RoomName, Arc<Channel>>>,
    local: Mutex<Local>,
    connections: Connections,
    presence: PresenceWatch,
    readers: Semaphore,
    clock: Mutex<Option<(Timestamp, Instant)>>,
    reconciliation: Mutex<Reconciliation>,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Hub {
    /// Makes the hub of a replica; what it does by itself runs on `tracker` until `stop`.
    #[must_use]
    pub fn new(stores: &Stores, options: HubOptions, tracker: TaskTracker, stop: CancellationToken) -> Arc<Self> {
        let (connections, lane) = Connections::new(stores, options.sockets_per_user);
        tracker.spawn(lane.run(stop.clone()));
        let hub = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            number: rand::rng().random_range(1..=i64::MAX),
            rooms: Arc::clone(&stores.rooms),
            auth_sessions: Arc::clone(&stores.auth_sessions),
            calls: Arc::clone(&stores.calls),
            sockets: Arc::clone(&stores.connections),
            sockets_per_user: options.sockets_per_user,
            channels: RwLock::default(),
            local: Mutex::new(Local {
                instance: options.instance,
                sessions: HashMap::new(),
                listeners: HashMap::new(),
            }),
            connections,
            presence: PresenceWatch::new(Arc::clone(&stores.presence)),
            readers: Semaphore::new(LOG_READERS),
            clock: Mutex::default(),
            reconciliation: Mutex::default(),
            tracker: tracker.clone(),
            stop,
        });
        tracker.spawn(Arc::clone(&hub).follow_presence());
        hub
    }

    /// Registers a session, enters it in the database, joins it to the room of its user and says hello. What it hangs
    /// on is to be looked up after that: a revocation acts on registered sessions, so none is missed.
    ///
    /// # Errors
    /// [`ConnectError::TooMany`] when the user has as many sockets as allowed; fails when the database does.
    pub async fn connect(&self, identity: SessionIdentity, hold: Hold) -> Result<SessionGuard, ConnectError> {
        let hub = self.me.upgrade().ok_or(ConnectError::Stopped)?;
        let session = self.register(|instance| Session::new(SessionKind::Socket, (identity, hold), instance, hub));
        let guard = SessionGuard(Arc::clone(&session));
        let listeners = self.listeners_of(&session.identity().user_id);
        let entered = self.connections.connect(session.row().clone(), listeners).await;
        if matches!(entered, Err(ConnectError::TooMany)) {
            session.was_not_entered();
        }
        entered?;
        session.was_entered();
        let failed = |error| ConnectError::Store(Arc::new(error));
        let user = &session.identity().user_id;
        // After the row is there: what is offered to it from now on finds the session, which keeps it for the hello.
        let pending = self.calls.pending(user, session.id()).await.map_err(failed)?;
        session.greet(hello(&session), pending);
        self.enter_at_latest(&session, &user.room()).await.map_err(failed)?;
        Ok(guard)
    }

    /// Makes a session known here, under the identity that the replica has at that moment.
    fn register(&self, make: impl FnOnce(InstanceId) -> Session) -> Arc<Session> {
        let mut local = self.local.lock();
        let session = Arc::new(make(local.instance.clone()));
        local.sessions.insert(session.id(), Arc::clone(&session));
        if session.kind() == SessionKind::Listener {
            *local.listeners.entry(session.identity().user_id.clone()).or_default() += 1;
        }
        set_gauge("switchboard_realtime_sessions", local.sessions.len());
        session
    }

    /// Forgets a session and leaves its rooms.
    pub(crate) fn disconnect(&self, session: &Arc<Session>) {
        let rooms = session.outbox.lock().rooms();
        for room in rooms {
            self.leave(session, &room);
            self.presence.forget(session, &room);
        }
        if session.may_be_entered() {
            self.connections.close(session.id());
        }
        let mut local = self.local.lock();
        local.sessions.remove(&session.id());
        let user = &session.identity().user_id;
        if session.kind() == SessionKind::Listener
            && let Some(count) = local.listeners.get_mut(user)
        {
            *count -= 1;
            if *count == 0 {
                local.listeners.remove(user);
            }
        }
        set_gauge("switchboard_realtime_sessions", local.sessions.len());
    }

    /// Goes on under another identity of the replica: the sockets of the old one have lost their rows.
    pub fn rejoin(&self, instance: InstanceId) {
        self.local.lock().instance = instance;
        self.close_all(CloseCode::Reconnect);
    }

    /// Waits until the rows of sockets that have closed so far are gone, unless the database fails.
    pub async fn settled(&self) {
        self.connections.settled().await;
    }

    /// Counts the sessions.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.local.lock().sessions.len()
    }

    /// Counts those who listen here for a user without a socket.
    fn listeners_of(&self, user: &UserId) -> u32 {
        self.local.lock().listeners.get(user).copied().unwrap_or(0)
    }

    fn session(&self, id: ConnectionId) -> Option<Arc<Session>> {
        self.local.lock().sessions.get(&id).cloned()
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
        self.local.lock().sessions.values().cloned().collect()
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

    /// Takes an event that was just appended, here or elsewhere; the sequencer of its room puts it in order.
    pub(crate) fn appended(&self, room: &RoomName, epoch: &Epoch, event: &StoredEvent) {
        if let Some(channel) = self.channel(room)
            && channel.advance(epoch, event) == Advance::Gap
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
            hub.prune_presence(channel.name());
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
            self.hide(session, &behind.room);
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
            self.hide(session, &behind.room);
            return;
        }
        if !channel.go_live(session) && session.outbox.lock().is_still(&behind) {
            // The log and the channel disagree, so the channel is out of date: it reads, too.
            self.fetch(Arc::clone(&channel));
            self.pause(READ_RETRY).await;
        }
    }
}

fn hello(session: &Session) -> Hello {
    let row = session.row();
    Hello {
        conn_id: row.id,
        user_id: row.user_id.clone(),
        instance: row.instance.clone(),
        heartbeat_ms: HEARTBEAT.as_millis(),
        limits: HelloLimits {
            message_bytes: MESSAGE_BYTES,
            payload_bytes: PAYLOAD_BYTES,
            rooms: ROOMS_PER_SOCKET,
            ops_per_second: OPS_PER_SECOND,
        },
        pending_calls: Vec::new(),
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
