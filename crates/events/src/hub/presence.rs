//! Presence in joined rooms: who shows themselves is read from the database, and changes are told as events.
//!
//! Each replica watches the rooms in which a session of its own shows itself or has asked who is there. A signal makes
//! it read the room again, and what differs from the last reading is told to those sessions. So no replica tells another
//! what it saw, and lists and events agree everywhere.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchboard_model::feed::{Signal, SignalKind, Tick};
use switchboard_model::identity::{EventName, RoomName, UserId};
use switchboard_model::ids::ConnectionId;
use switchboard_model::json_text::JsonText;
use switchboard_model::presence::{Presence, PresentUser};
use switchboard_model::room::MessageId;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{EventFrame, ReplyError};
use switchboard_store_api::{PresenceStore, StoreResult};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::Hub;
use crate::feed::error_chain;
use crate::outbox::DataFrame;
use crate::session::Session;

/// The shortest time between two readings of one room.
const READ_PERIOD: Duration = Duration::from_millis(250);

/// The most rooms of one reading.
const ROOMS: usize = 500;

/// The most people whose grace is ended in one commit.
const SWEEP: u32 = 500;

/// A session that is told who comes and goes.
struct Watcher {
    session: Arc<Session>,
    /// Whether it shows itself too.
    is_shown: bool,
}

/// A watched room.
struct Watch {
    /// What was read last; `None` until the first watcher has read it.
    known: Option<Presence>,
    /// Whether something changed since.
    is_stale: bool,
    /// When it may be read again.
    next_read: Instant,
    watchers: HashMap<ConnectionId, Watcher>,
}

/// The watched rooms of a replica, and the end of the next grace.
pub(super) struct PresenceWatch {
    store: Arc<dyn PresenceStore>,
    rooms: Mutex<HashMap<RoomName, Watch>>,
    sweep_at: Mutex<Option<Instant>>,
    wake: Notify,
}

impl PresenceWatch {
    pub(super) fn new(store: Arc<dyn PresenceStore>) -> Self {
        Self { store, rooms: Mutex::default(), sweep_at: Mutex::default(), wake: Notify::new() }
    }

    /// Lets a session watch a room.
    fn watch(&self, session: &Arc<Session>, room: &RoomName) {
        let mut rooms = self.rooms.lock();
        let watch = rooms.entry(room.clone()).or_insert_with(|| Watch {
            known: None,
            is_stale: false,
            next_read: Instant::now(),
            watchers: HashMap::new(),
        });
        let watcher = || Watcher { session: Arc::clone(session), is_shown: false };
        watch.watchers.entry(session.id()).or_insert_with(watcher);
    }

    /// Notes that a watching session shows itself.
    fn note_shown(&self, session: &Session, room: &RoomName) {
        let mut rooms = self.rooms.lock();
        if let Some(watcher) = rooms.get_mut(room).and_then(|watch| watch.watchers.get_mut(&session.id())) {
            watcher.is_shown = true;
        }
    }

    /// Forgets that a session watches a room; returns whether it showed itself there.
    pub(super) fn forget(&self, session: &Session, room: &RoomName) -> bool {
        let mut rooms = self.rooms.lock();
        let Some(watch) = rooms.get_mut(room) else { return false };
        let watcher = watch.watchers.remove(&session.id());
        if watch.watchers.is_empty() {
            rooms.remove(room);
        }
        watcher.is_some_and(|watcher| watcher.is_shown)
    }

    /// Returns the sessions that watch a room.
    fn watchers(&self, room: &RoomName) -> Vec<Arc<Session>> {
        let rooms = self.rooms.lock();
        rooms.get(room).into_iter().flat_map(|watch| watch.watchers.values()).map(|one| one.session.clone()).collect()
    }

    fn is_known(&self, room: &RoomName) -> bool {
        self.rooms.lock().get(room).is_some_and(|watch| watch.known.is_some())
    }

    /// Reads a watched room for one of its watchers. Whatever changes after the first reading is told as an event.
    async fn read(&self, room: &RoomName) -> StoreResult<Presence> {
        if !self.is_known(room) {
            let found = self.read_now(room).await?;
            let mut rooms = self.rooms.lock();
            if let Some(watch) = rooms.get_mut(room)
                && watch.known.is_none()
            {
                watch.known = Some(found.clone());
                if watch.is_stale {
                    // It was passed over as long as there was nothing to compare with.
                    self.wake.notify_one();
                }
                return Ok(found);
            }
        }
        // Somebody else's reading may be the base of the events; this one must not be older.
        self.read_now(room).await
    }

    async fn read_now(&self, room: &RoomName) -> StoreResult<Presence> {
        Ok(self.store.read(std::slice::from_ref(room)).await?.pop().unwrap_or_default())
    }

    /// Notes that rooms must be read again: those for which `is_meant` says so.
    fn mark(&self, is_meant: impl Fn(&RoomName) -> bool) {
        let mut has_marked = false;
        for (room, watch) in self.rooms.lock().iter_mut() {
            if is_meant(room) {
                watch.is_stale = true;
                has_marked = true;
            }
        }
        if has_marked {
            self.wake.notify_one();
        }
    }

    /// Notes when the next grace ends.
    fn sweep_at(&self, at: Option<Instant>) {
        let mut known = self.sweep_at.lock();
        if *known != at {
            *known = at;
            self.wake.notify_one();
        }
    }

    /// Returns when there is something to do.
    fn due(&self) -> Option<Instant> {
        let rooms = self.rooms.lock();
        let stale = rooms.values().filter(|watch| watch.is_stale && watch.known.is_some());
        stale.map(|watch| watch.next_read).chain(*self.sweep_at.lock()).min()
    }

    /// Takes the rooms that are due.
    fn take_due(&self, now: Instant) -> Vec<RoomName> {
        let mut taken = Vec::new();
        for (room, watch) in self.rooms.lock().iter_mut() {
            if taken.len() < ROOMS && watch.is_stale && watch.known.is_some() && watch.next_read <= now {
                watch.is_stale = false;
                watch.next_read = now + READ_PERIOD;
                taken.push(room.clone());
            }
        }
        taken
    }

    /// Takes over what was read and returns what is to be told, and whom.
    fn take_over(&self, room: &RoomName, found: Presence) -> (Vec<Change>, Vec<Arc<Session>>) {
        let mut rooms = self.rooms.lock();
        let nothing = (Vec::new(), Vec::new());
        let Some(watch) = rooms.get_mut(room) else { return nothing };
        let Some(known) = watch.known.replace(found.clone()) else { return nothing };
        (changes(&known, &found), watch.watchers.values().map(|watcher| Arc::clone(&watcher.session)).collect())
    }
}

/// What is told of a room.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Joined(UserId),
    Left(UserId),
    /// The room has, or had, too many people to tell them one by one.
    Count(i64),
}

impl Change {
    const fn event(&self) -> &'static str {
        match self {
            Self::Joined(_) => "presence.joined",
            Self::Left(_) => "presence.left",
            Self::Count(_) => "presence.count",
        }
    }

    fn payload(&self) -> serde_json::Value {
        match self {
            Self::Joined(user_id) | Self::Left(user_id) => serde_json::json!({ "user_id": user_id }),
            Self::Count(count) => serde_json::json!({ "count": count }),
        }
    }
}

/// Compares two readings, whose members are in the order of their ids.
fn changes(before: &Presence, after: &Presence) -> Vec<Change> {
    let (Some(old), Some(new)) = (&before.members, &after.members) else {
        return if before == after { Vec::new() } else { vec![Change::Count(after.count)] };
    };
    let is_in = |user: &PresentUser, list: &[PresentUser]| {
        list.binary_search_by(|other| other.user_id.as_str().cmp(user.user_id.as_str())).is_ok()
    };
    let left = old.iter().filter(|user| !is_in(user, new)).map(|user| Change::Left(user.user_id.clone()));
    let joined = new.iter().filter(|user| !is_in(user, old)).map(|user| Change::Joined(user.user_id.clone()));
    left.chain(joined).collect()
}

impl Hub {
    /// Shows the user of a session in a room that it joins, and lets it watch the room.
    pub(super) async fn show(&self, session: &Arc<Session>, room: &RoomName) -> Result<(), ReplyError> {
        self.presence.watch(session, room);
        self.presence.note_shown(session, room);
        self.connections.enter(room.clone(), session.row().clone()).await.map_err(|error| unavailable(&error))?;
        self.presence.read(room).await.map_err(|error| unavailable(&error))?;
        Ok(())
    }

    /// Reads who is in a joined room; from now on the session is told who comes and goes.
    pub(crate) async fn who_is_in(&self, session: &Arc<Session>, room: &RoomName) -> Result<Presence, ReplyError> {
        if !session.outbox.lock().has_joined(room) {
            return Err(ReplyError::new(ErrorCode::NotJoined, "join the room before asking who is there"));
        }
        self.presence.watch(session, room);
        let found = self.presence.read(room).await.map_err(|error| unavailable(&error));
        if !session.outbox.lock().has_joined(room) {
            // The membership ended meanwhile, perhaps before the watch began, which then nobody else ends.
            self.hide(session, room);
            return Err(ReplyError::new(ErrorCode::NotJoined, "the room was left or deleted meanwhile"));
        }
        found
    }

    /// Ends the watch of a session that is in a room no longer, and shows its user there no longer; returns whether it
    /// showed itself there.
    pub(crate) fn hide(&self, session: &Session, room: &RoomName) -> bool {
        let was_shown = self.presence.forget(session, room);
        if was_shown {
            self.connections.leave(room.clone(), session.id());
        }
        was_shown
    }

    /// Ends the watches of sessions whose membership of a room the server has ended.
    pub(super) fn prune_presence(&self, room: &RoomName) {
        for session in self.presence.watchers(room) {
            if !session.outbox.lock().has_joined(room) {
                self.hide(&session, room);
            }
        }
    }

    /// Notes what a tick says about presence.
    pub(super) fn observe_presence(&self, tick: &Tick) {
        let is_meant = |signal: &&Signal| signal.kind == SignalKind::PresenceChanged;
        let changed: HashSet<&str> = tick.signals.iter().filter(is_meant).map(|signal| signal.key.as_str()).collect();
        if tick.resync {
            self.presence.mark(|_| true);
        } else if !changed.is_empty() {
            self.presence.mark(|room| changed.contains(room.as_str()));
        }
        let next = tick.next.presence.map(|at| Instant::now() + (at - tick.now).to_std().unwrap_or_default());
        self.presence.sweep_at(next);
    }

    /// Reads rooms again as they change and ends what grace is over, until the replica stops.
    pub(super) async fn follow_presence(self: Arc<Self>) {
        loop {
            let due = self.presence.due();
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.presence.wake.notified() => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            let now = Instant::now();
            if self.presence.sweep_at.lock().take_if(|at| *at <= now).is_some() {
                self.end_grace().await;
            }
            let rooms = self.presence.take_due(now);
            if !rooms.is_empty() {
                self.read_again(&rooms).await;
            }
        }
    }

    /// Deletes those whose grace is over; every replica tries, and one does.
    async fn end_grace(&self) {
        loop {
            match self.presence.store.sweep(SWEEP).await {
                Ok(count) if count == u64::from(SWEEP) => {}
                Ok(_) => return,
                // The next tick says again that something is due.
                Err(error) => return tracing::debug!(error = %error_chain(&error), "presence cannot be swept"),
            }
        }
    }

    async fn read_again(&self, rooms: &[RoomName]) {
        let found = match self.presence.store.read(rooms).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(error = %error_chain(&error), "presence cannot be read");
                return self.presence.mark(|room| rooms.contains(room));
            }
        };
        for (room, found) in rooms.iter().zip(found) {
            let (changes, watchers) = self.presence.take_over(room, found);
            for change in changes {
                self.tell(room, &change, &watchers);
            }
        }
    }

    /// Tells a change to sessions, as an event that is not stored.
    fn tell(&self, room: &RoomName, change: &Change, watchers: &[Arc<Session>]) {
        let Some(frame) = self.frame(room, change) else { return };
        for session in watchers {
            if session.outbox.lock().offer(&frame) {
                session.wake();
            }
        }
    }

    fn frame(&self, room: &RoomName, change: &Change) -> Option<Arc<DataFrame>> {
        let frame = EventFrame {
            event: change.event().parse::<EventName>().ok()?,
            room: room.clone(),
            payload: JsonText::encode(&change.payload()).ok()?,
            ts: self.now().map_or(0, |now| now.timestamp_millis()),
            msg_id: MessageId::given_or_new(None).to_string(),
            offset: None,
            epoch: None,
        };
        let text = serde_json::to_vec(&frame).ok()?.into();
        Some(Arc::new(DataFrame { text, room: room.clone(), offset: None, epoch: None }))
    }
}

fn unavailable(error: &(dyn std::error::Error + 'static)) -> ReplyError {
    tracing::warn!(error = %error_chain(error), "the presence of a room cannot be read or written");
    ReplyError::new(ErrorCode::Unavailable, "the presence of the room cannot be read now; try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(names: &[&str]) -> Presence {
        let member = |name: &&str| PresentUser { user_id: name.parse().unwrap(), since: Default::default() };
        let members: Vec<_> = names.iter().map(member).collect();
        Presence { count: i64::try_from(members.len()).unwrap(), members: Some(members) }
    }

    #[test]
    fn two_readings_tell_who_came_and_who_went() {
        let user = |name: &str| name.parse::<UserId>().unwrap();
        let found = changes(&presence(&["ann", "bob"]), &presence(&["ann", "cyd"]));
        assert_eq!(found, [Change::Left(user("bob")), Change::Joined(user("cyd"))]);
        assert_eq!(changes(&presence(&["ann"]), &presence(&["ann"])), []);
    }

    #[test]
    fn a_room_too_large_tells_its_number_when_it_changes() {
        let large = |count| Presence { count, members: None };
        assert_eq!(changes(&large(1_001), &large(1_002)), [Change::Count(1_002)]);
        assert_eq!(changes(&large(1_001), &large(1_001)), []);
        assert_eq!(changes(&presence(&["ann"]), &large(1_001)), [Change::Count(1_001)]);
        assert_eq!(changes(&large(1_001), &presence(&["ann"])), [Change::Count(1)]);
    }
}
