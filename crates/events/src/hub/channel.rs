//! A channel: one joined room of this replica, and the sequencer that delivers its events in order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::ConnectionId;
use switchboard_model::room::{Epoch, HistoryPage, RoomClass, StoredEvent};
use switchboard_model::wire::frame::EventFrame;

use super::void_epoch;
use crate::outbox::{BehindRoom, DataFrame};
use crate::session::Session;

/// How many recent events a channel keeps for sessions that are a little behind.
const RECENT_FRAMES: usize = 256;

/// How many bytes of recent events a channel keeps.
const RECENT_BYTES: usize = 256 * 1024;

/// What became of an event that was offered to the sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// It was the next one and is delivered, or it was delivered before.
    Done,
    /// Something before it is missing; the log must be read.
    Gap,
}

pub(crate) struct Channel {
    name: RoomName,
    state: Mutex<State>,
}

struct State {
    /// The last delivered position; `None` until the first join has read one.
    head: Option<(Epoch, i64)>,
    /// The highest offset known to exist.
    target: i64,
    /// Whether a reader is under way.
    is_fetching: bool,
    /// Whether something happened since the reader last asked, so that it must ask again.
    is_stale: bool,
    members: HashMap<ConnectionId, Arc<Session>>,
    recent: VecDeque<Arc<DataFrame>>,
    recent_bytes: usize,
}

impl Channel {
    pub(super) fn new(name: RoomName) -> Self {
        let state = State {
            head: None,
            target: 0,
            is_fetching: false,
            is_stale: false,
            members: HashMap::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
        };
        Self { name, state: Mutex::new(state) }
    }

    pub(super) fn name(&self) -> &RoomName {
        &self.name
    }

    pub(super) fn add(&self, session: &Arc<Session>) {
        self.state.lock().members.insert(session.id(), Arc::clone(session));
    }

    /// Removes a member; returns whether the channel is empty now.
    pub(super) fn remove(&self, session: &Session) -> bool {
        let mut state = self.state.lock();
        state.members.remove(&session.id());
        state.members.is_empty()
    }

    /// Tells whether everything up to `top` of `epoch` is delivered or on its way.
    pub(super) fn knows_of(&self, epoch: &Epoch, top: i64) -> bool {
        let state = self.state.lock();
        state.head.as_ref().is_none_or(|(known, offset)| known == epoch && (*offset).max(state.target) >= top)
    }

    /// Tells whether nobody is here.
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().members.is_empty()
    }

    /// Tells whether exactly this is the last delivered position.
    pub(super) fn is_at(&self, epoch: &Epoch, top: i64) -> bool {
        self.state.lock().head.as_ref().is_some_and(|(known, offset)| known == epoch && *offset == top)
    }

    /// Takes the position that a join has read, unless the channel has one.
    pub(super) fn settle(&self, epoch: &Epoch, top: i64) -> Advance {
        let mut state = self.state.lock();
        let (target, is_stale) = (state.target, state.is_stale);
        let head = state.head.get_or_insert_with(|| (epoch.clone(), top));
        if is_stale || head.0 != *epoch || head.1 < target { Advance::Gap } else { Advance::Done }
    }

    /// Delivers an event if it is the next one.
    pub(super) fn advance(&self, epoch: &Epoch, event: &StoredEvent) -> Advance {
        let mut state = self.state.lock();
        // Of another history only the log knows how far it goes: until it is read, this is enough to have it read.
        state.target = state.target.max(event.offset);
        let Some((known, offset)) = &state.head else { return Advance::Done };
        let starts_history = *known == void_epoch() && event.offset == 1;
        if !starts_history && (known != epoch || event.offset > offset + 1) {
            return Advance::Gap;
        }
        if event.offset == offset + 1 {
            state.deliver(&self.name, epoch, event);
        }
        Advance::Done
    }

    /// Notes that events up to `top` exist.
    pub(super) fn note_top(&self, top: i64) -> Advance {
        let mut state = self.state.lock();
        state.target = state.target.max(top);
        match &state.head {
            Some((_, offset)) if *offset < state.target => Advance::Gap,
            _ => Advance::Done,
        }
    }

    /// Delivers an event that is not stored.
    pub(super) fn deliver_ephemeral(&self, frame: &Arc<DataFrame>) {
        self.state.lock().offer(frame);
    }

    /// Marks the channel as being read; `false` if it is already, and then its reader asks once more.
    pub(super) fn start_fetching(&self) -> bool {
        let mut state = self.state.lock();
        state.is_stale = true;
        !std::mem::replace(&mut state.is_fetching, true)
    }

    /// Returns after which offset the reader reads next; `None` ends the reading.
    pub(super) fn next_read(&self) -> Option<i64> {
        let mut state = self.state.lock();
        if state.head.is_none() {
            // What happened is not forgotten: the first position is read again when it is there.
            state.is_fetching = false;
            return None;
        }
        state.is_fetching = state.is_stale || state.offset() < state.target;
        state.is_stale = false;
        state.is_fetching.then(|| state.offset())
    }

    /// Delivers a page of the log that was read after an offset. The channel may have moved on meanwhile.
    pub(super) fn apply(&self, after: i64, page: Option<HistoryPage>) {
        let mut state = self.state.lock();
        let Some((known, _)) = state.head.clone() else { return };
        let Some(page) = page else {
            // Either deleted, or an implicit room before its first event.
            if known != void_epoch() {
                state.end_memberships(&self.name, "room_deleted");
                state.move_to(&self.name, "room_deleted", void_epoch(), 0);
            }
            state.target = state.offset();
            return;
        };
        let starts_history = known == void_epoch() && page.first_kept == 1;
        if is_another_room(&self.name, &known, &page.epoch) {
            state.end_memberships(&self.name, "room_replaced");
            state.move_to(&self.name, "room_replaced", page.epoch, page.top);
        } else if known != page.epoch && !starts_history {
            state.move_to(&self.name, "epoch_changed", page.epoch, page.top);
        } else if page.top < after {
            state.move_to(&self.name, "history_lost", page.epoch, page.top);
        } else {
            for event in &page.events {
                if event.offset == state.offset() + 1 {
                    state.deliver(&self.name, &page.epoch, event);
                }
            }
            if state.offset() < page.events.last().map_or(page.top, |last| last.offset) {
                state.move_to(&self.name, "history_pruned", page.epoch, page.top);
            }
            // What was announced before the read is in it, or belongs to a history that is over.
            if !state.is_stale {
                state.target = page.top;
            }
        }
    }

    /// Returns recent events after a cursor, if all of them are kept here.
    pub(super) fn recent_after(&self, epoch: &Epoch, cursor: i64) -> Option<Vec<Arc<DataFrame>>> {
        let state = self.state.lock();
        let is_current = state.head.as_ref().is_some_and(|(known, _)| known == epoch);
        let first = state.recent.front()?.offset?;
        (is_current && first <= cursor + 1)
            .then(|| state.recent.iter().filter(|frame| frame.offset > Some(cursor)).cloned().collect())
            .filter(|frames: &Vec<_>| !frames.is_empty())
    }

    /// Hands a page of the log to a session that is behind, or tells it that its position is gone.
    pub(super) fn catch_up(&self, session: &Session, behind: &BehindRoom, page: Option<HistoryPage>) {
        let Some(page) = page else {
            if behind.epoch != void_epoch() {
                session.outbox.lock().end(&self.name, "room_deleted");
            }
            return;
        };
        if is_another_room(&self.name, &behind.epoch, &page.epoch) {
            session.outbox.lock().end(&self.name, "room_replaced");
            return;
        }
        let starts_history = behind.epoch == void_epoch() && page.first_kept == 1;
        let reason = if page.epoch != behind.epoch && !starts_history {
            "epoch_changed"
        } else if page.top < behind.cursor {
            "history_lost"
        } else if page.events.first().map_or(page.top > behind.cursor, |first| first.offset > behind.cursor + 1) {
            "history_pruned"
        } else {
            let frames: Vec<_> = page.events.iter().map(|event| encode(&self.name, &page.epoch, event)).collect();
            let mut outbox = session.outbox.lock();
            if starts_history {
                outbox.start(&self.name, page.epoch.clone(), behind.cursor);
            }
            let behind = BehindRoom { epoch: page.epoch, ..behind.clone() };
            outbox.extend(&behind, &frames);
            return;
        };
        session.outbox.lock().desync(&self.name, reason, page.epoch, page.top);
    }

    /// Makes a session live if it has everything that was delivered here; returns whether nothing is
    /// left to be read for it.
    pub(super) fn go_live(&self, session: &Session) -> bool {
        let state = self.state.lock();
        let Some((epoch, offset)) = &state.head else { return false };
        session.outbox.lock().go_live(&self.name, epoch, *offset)
    }
}

impl State {
    /// Returns the last delivered offset.
    fn offset(&self) -> i64 {
        self.head.as_ref().map_or(0, |(_, offset)| *offset)
    }

    /// Delivers the next event to every member.
    fn deliver(&mut self, room: &RoomName, epoch: &Epoch, event: &StoredEvent) {
        let frame = encode(room, epoch, event);
        self.head = Some((epoch.clone(), event.offset));
        self.offer(&frame);
        self.recent_bytes += frame.text.len();
        self.recent.push_back(frame);
        while self.recent.len() > RECENT_FRAMES || self.recent_bytes > RECENT_BYTES {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.recent_bytes -= oldest.text.len();
        }
    }

    fn offer(&self, frame: &Arc<DataFrame>) {
        for session in self.members.values() {
            if session.outbox.lock().offer(frame) {
                session.wake();
            }
        }
    }

    /// Ends every membership: who may join a room is decided anew for the room that comes after it.
    fn end_memberships(&mut self, room: &RoomName, reason: &'static str) {
        for (_, session) in self.members.drain() {
            session.outbox.lock().end(room, reason);
            session.wake();
        }
    }

    /// Goes on at another position and tells the members that theirs cannot be continued.
    fn move_to(&mut self, room: &RoomName, reason: &'static str, epoch: Epoch, top: i64) {
        tracing::warn!(room = %room, reason, "the history of a joined room cannot be continued");
        for session in self.members.values() {
            session.outbox.lock().desync(room, reason, epoch.clone(), top);
            session.wake();
        }
        self.head = Some((epoch, top));
        self.target = top;
        self.recent.clear();
        self.recent_bytes = 0;
    }
}

/// Tells whether a name stands for another room than before. The rooms of a user and of a pair are theirs
/// whoever makes the row; any other room that was deleted may have come back for other people.
fn is_another_room(name: &RoomName, before: &Epoch, now: &Epoch) -> bool {
    let row = |epoch: &Epoch| epoch.as_str().split('-').next().map(str::to_owned);
    name.class() == RoomClass::Explicit && row(before) != row(now)
}

/// Encodes an event once for all its receivers.
fn encode(room: &RoomName, epoch: &Epoch, event: &StoredEvent) -> Arc<DataFrame> {
    let frame = EventFrame::stored(room, epoch, event);
    // Every field of the frame has a JSON form, so encoding cannot fail; an empty frame would only be
    // seen by a client that is then resynchronised by the next offset.
    let text = serde_json::to_vec(&frame).unwrap_or_default();
    Arc::new(DataFrame {
        text: text.into(),
        room: room.clone(),
        offset: Some(event.offset),
        epoch: Some(epoch.clone()),
    })
}
