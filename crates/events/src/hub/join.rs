//! Joining and leaving rooms.

use std::sync::Arc;

use switchboard_model::identity::RoomName;
use switchboard_model::room::{Epoch, Position, RoomClass};
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Joined, ReplyError};
use switchboard_model::wire::limits::ROOMS_PER_SOCKET;
use switchboard_model::wire::op::{Join, Since, SinceEnd};
use switchboard_store_api::StoreError;

use super::channel::{Advance, Channel};
use super::{Hub, set_gauge, void_epoch};
use crate::access::may_join;
use crate::feed::error_chain;
use crate::session::{Session, SessionKind};

/// What is known of a room when it is joined.
struct Head {
    epoch: Epoch,
    top: i64,
    first_kept: i64,
}

impl Hub {
    /// Joins a room and answers: the live subscription exists before the position is read, and the
    /// answer is queued before the first event.
    pub(crate) async fn join(&self, session: &Arc<Session>, re: u64, join: Join) -> Result<(), ReplyError> {
        let room = &join.room;
        let is_own = *room == session.identity().user_id.room();
        self.check_join(session, room).await?;
        {
            let mut outbox = session.outbox.lock();
            if outbox.has_joined(room) && !is_own {
                return Err(ReplyError::new(ErrorCode::AlreadyJoined, "the room is joined already; leave it first"));
            }
            // The room of the user comes on top, since the server joined it.
            if !is_own && outbox.room_count() > ROOMS_PER_SOCKET {
                let message = format!("a socket joins at most {ROOMS_PER_SOCKET} rooms; leave one first");
                return Err(ReplyError::new(ErrorCode::TooManyRooms, message));
            }
            outbox.begin(room, void_epoch());
        }
        self.subscribe(session, &join, |joined| session.reply_ok(re, joined)).await
    }

    /// Subscribes to a room that the outbox has begun, and answers before the first event.
    pub(super) async fn subscribe(
        &self,
        session: &Arc<Session>,
        join: &Join,
        answer: impl FnOnce(&Joined),
    ) -> Result<(), ReplyError> {
        let room = &join.room;
        let channel = self.enter(session, room);
        if join.presence
            && let Err(error) = self.show(session, room).await
        {
            self.leave(session, room);
            self.hide(session, room);
            return Err(error);
        }
        let head = self.read_head(room).await.map_err(|error| {
            self.leave(session, room);
            self.hide(session, room);
            tracing::warn!(error = %error_chain(&error), "the position of a room cannot be read");
            ReplyError::new(ErrorCode::Unavailable, "the room cannot be read now; try again")
        })?;
        let is_void = head.epoch == void_epoch() && room.class() == RoomClass::Explicit;
        if is_void && session.kind() == SessionKind::Socket {
            // It was there when the right to join it was checked.
            return Err(self.give_up(session, join));
        }
        if !session.outbox.lock().has_joined(room) {
            return Err(self.give_up(session, join));
        }
        let (joined, cursor) = resume(&join.since, &head);
        answer(&joined);
        self.start(session, &channel, &head, cursor);
        Ok(())
    }

    /// Takes back the join of a room that was deleted meanwhile. That ended the watch that there was then; the user may
    /// have been shown after it.
    fn give_up(&self, session: &Session, join: &Join) -> ReplyError {
        self.leave(session, &join.room);
        if !self.hide(session, &join.room) && join.presence {
            self.connections.leave(join.room.clone(), session.id());
        }
        ReplyError::new(ErrorCode::NotFound, "the room was deleted while it was being joined")
    }

    /// Joins the room of the user at its newest position, without an answer.
    pub(super) async fn enter_at_latest(&self, session: &Arc<Session>, room: &RoomName) -> Result<(), StoreError> {
        session.outbox.lock().begin(room, void_epoch());
        let channel = self.enter(session, room);
        let head = self.read_head(room).await?;
        self.start(session, &channel, &head, head.top);
        Ok(())
    }

    /// Leaves a room; `false` if it was not joined.
    pub(crate) fn leave(&self, session: &Session, room: &RoomName) -> bool {
        let mut channels = self.channels.write();
        if let Some(channel) = channels.get(room)
            && channel.remove(session)
        {
            channels.remove(room);
        }
        set_gauge("switchboard_realtime_rooms_joined", channels.len());
        drop(channels);
        session.outbox.lock().leave(room)
    }

    /// Forgets a channel whose members are all gone, as after the deletion of its room.
    pub(super) fn forget_if_empty(&self, room: &RoomName) {
        let mut channels = self.channels.write();
        if channels.get(room).is_some_and(|channel| channel.is_empty()) {
            channels.remove(room);
        }
        set_gauge("switchboard_realtime_rooms_joined", channels.len());
    }

    pub(super) async fn check_join(&self, session: &Session, room: &RoomName) -> Result<(), ReplyError> {
        let kind = if room.class() == RoomClass::Explicit {
            let found = self.rooms.find(room).await.map_err(|error| {
                tracing::warn!(error = %error_chain(&error), "a room cannot be read");
                ReplyError::new(ErrorCode::Unavailable, "the room cannot be read now; try again")
            })?;
            found.map(|room| room.kind)
        } else {
            None
        };
        let identity = session.identity();
        may_join(room, kind, &identity.user_id, &identity.grants).map_err(|code| match code {
            ErrorCode::RoomNameInvalid => ReplyError::new(code, "the name of a user or pair room is malformed"),
            code => ReplyError::new(code, "there is no such room, or the ticket does not allow joining it"),
        })
    }

    fn enter(&self, session: &Arc<Session>, room: &RoomName) -> Arc<Channel> {
        let mut channels = self.channels.write();
        let channel = channels.entry(room.clone()).or_insert_with(|| Arc::new(Channel::new(room.clone())));
        channel.add(session);
        let channel = Arc::clone(channel);
        set_gauge("switchboard_realtime_rooms_joined", channels.len());
        channel
    }

    async fn read_head(&self, room: &RoomName) -> Result<Head, StoreError> {
        if room.class() == RoomClass::Ephemeral {
            return Ok(Head { epoch: void_epoch(), top: 0, first_kept: 1 });
        }
        let _permit = self.readers.acquire().await;
        // No event follows the end of all offsets, so this reads the position alone.
        let page = self.rooms.history(room, i64::MAX, 1).await?;
        Ok(page.map_or(Head { epoch: void_epoch(), top: 0, first_kept: 1 }, |page| Head {
            epoch: page.epoch,
            top: page.top,
            first_kept: page.first_kept,
        }))
    }

    fn start(&self, session: &Arc<Session>, channel: &Arc<Channel>, head: &Head, cursor: i64) {
        session.outbox.lock().start(channel.name(), head.epoch.clone(), cursor);
        if channel.settle(&head.epoch, head.top) == Advance::Gap {
            self.fetch(Arc::clone(channel));
        }
        channel.go_live(session);
        session.wake();
    }
}

/// Decides where a join starts: recovery is all or nothing.
fn resume(since: &Since, head: &Head) -> (Joined, i64) {
    let asked = match since {
        Since::End(SinceEnd::Latest) => Some(head.top),
        Since::End(SinceEnd::Earliest) => Some(head.first_kept - 1),
        Since::Position(position) => recoverable(position, head),
    };
    let cursor = asked.unwrap_or(head.top);
    let joined =
        Joined { epoch: head.epoch.clone(), offset: cursor, recovered: asked.is_some(), replayed: head.top - cursor };
    (joined, cursor)
}

/// Returns the offset after which everything can be replayed, if it is the one that was asked for.
fn recoverable(position: &Position, head: &Head) -> Option<i64> {
    // Who saw the room before its first event has missed nothing that is not kept.
    let is_same = position.epoch == head.epoch || (position.epoch == void_epoch() && position.offset == 0);
    (is_same && (head.first_kept - 1..=head.top).contains(&position.offset)).then_some(position.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(since: Since) -> (bool, i64, i64) {
        let head = Head { epoch: Epoch::new("e", "1"), top: 9, first_kept: 4 };
        let (joined, _) = resume(&since, &head);
        (joined.recovered, joined.offset, joined.replayed)
    }

    fn position(epoch: &str, offset: i64) -> Since {
        Since::Position(Position { epoch: Epoch::new(epoch, "1"), offset })
    }

    #[test]
    fn recovery_is_all_or_nothing() {
        assert_eq!(joined(Since::default()), (true, 9, 0));
        assert_eq!(joined(Since::End(SinceEnd::Earliest)), (true, 3, 6));
        assert_eq!(joined(position("e", 9)), (true, 9, 0));
        assert_eq!(joined(position("e", 3)), (true, 3, 6));
        assert_eq!(joined(position("e", 2)), (false, 9, 0), "pruned");
        assert_eq!(joined(position("e", 10)), (false, 9, 0), "future");
        assert_eq!(joined(position("f", 9)), (false, 9, 0), "another history");
    }

    #[test]
    fn a_room_joined_before_its_first_event_is_recovered_whole() {
        let head = Head { epoch: Epoch::new("e", "1"), top: 2, first_kept: 1 };
        let since = Since::Position(Position { epoch: void_epoch(), offset: 0 });
        assert_eq!(resume(&since, &head).0.replayed, 2);
    }
}
