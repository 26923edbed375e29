//! The outbox of a session: a control lane that goes first, a bounded data lane, and for each joined
//! room how far its events were queued.
//!
//! A room is *live* while its events are queued as they come. When the lane is full, or history is to be
//! replayed, the room falls *behind*: nothing is queued for it until the lane is empty, then its events
//! are read from the log. So a slow reader costs bounded memory and loses nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use switchboard_model::identity::RoomName;
use switchboard_model::room::Epoch;
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::frame::{Desync, Lag, LagState, NoticeFrame};
use switchboard_model::wire::limits::{OUTBOX_BYTES, OUTBOX_FRAMES};

/// The most bytes handed to the socket at once.
const BURST_BYTES: usize = 64 * 1024;

/// The most control frames that wait; a client that never reads its replies is closed as slow.
const CONTROL_FRAMES: usize = 2 * 1024;

/// What the socket does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// Sends these text frames, in order; each is valid UTF-8.
    Frames(Vec<Bytes>),
    /// Sends a close frame and ends.
    Close(CloseCode),
}

/// An encoded event, shared by all sessions that receive it.
#[derive(Debug)]
pub(crate) struct DataFrame {
    pub(crate) text: Bytes,
    pub(crate) room: RoomName,
    /// The number of a stored event; `None` for an ephemeral one.
    pub(crate) offset: Option<i64>,
    /// The history that the offset counts in.
    pub(crate) epoch: Option<Epoch>,
}

/// How far a room was queued.
#[derive(Debug)]
struct Subscription {
    state: SubscriptionState,
    epoch: Epoch,
    /// The last offset that was queued, or that the client had before it joined.
    cursor: i64,
    /// Whether the client was told that it lags.
    is_lagging: bool,
    /// Ephemeral events dropped since the client was last told.
    dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubscriptionState {
    /// The starting position is being read.
    Joining,
    /// Events are queued as they come.
    Live,
    /// Events are read from the log when the lane is empty.
    Behind,
}

/// A room to be read from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BehindRoom {
    pub(crate) room: RoomName,
    pub(crate) epoch: Epoch,
    pub(crate) cursor: i64,
}

/// The next step of the session's writer.
#[derive(Debug)]
pub(crate) enum Step {
    Send(Vec<Bytes>),
    Close(CloseCode),
    CatchUp(BehindRoom),
    Wait,
}

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    control: VecDeque<Bytes>,
    data: VecDeque<Arc<DataFrame>>,
    data_bytes: usize,
    subscriptions: HashMap<RoomName, Subscription>,
    closing: Option<CloseCode>,
}

impl Outbox {
    /// Queues a frame that goes before all data.
    pub(crate) fn control(&mut self, text: Bytes) {
        if self.control.len() >= CONTROL_FRAMES {
            self.close(CloseCode::Slow);
        } else {
            self.control.push_back(text);
        }
    }

    fn notice(&mut self, notice: &NoticeFrame) {
        if let Ok(text) = serde_json::to_vec(notice) {
            self.control(text.into());
        }
    }

    /// Ends the session after what is in the control lane; the first reason stays.
    pub(crate) fn close(&mut self, code: CloseCode) {
        self.closing.get_or_insert(code);
    }

    /// Counts the joined rooms.
    pub(crate) fn room_count(&self) -> usize {
        self.subscriptions.len()
    }

    /// Tells whether a room is joined.
    pub(crate) fn has_joined(&self, room: &RoomName) -> bool {
        self.subscriptions.contains_key(room)
    }

    /// Notes that a room is being joined; its events are ignored until [`Outbox::start`].
    pub(crate) fn begin(&mut self, room: &RoomName, unknown: Epoch) {
        let subscription = Subscription {
            state: SubscriptionState::Joining,
            epoch: unknown,
            cursor: 0,
            is_lagging: false,
            dropped: 0,
        };
        self.subscriptions.insert(room.clone(), subscription);
    }

    /// Ends a join: events after `cursor` follow, from the log until the room is found live.
    pub(crate) fn start(&mut self, room: &RoomName, epoch: Epoch, cursor: i64) {
        if let Some(subscription) = self.subscriptions.get_mut(room) {
            *subscription = Subscription {
                state: SubscriptionState::Behind,
                epoch,
                cursor,
                is_lagging: subscription.is_lagging,
                dropped: subscription.dropped,
            };
        }
    }

    /// Forgets a room; frames of it that wait in the lane still go out. `false` if it was not joined.
    pub(crate) fn leave(&mut self, room: &RoomName) -> bool {
        self.subscriptions.remove(room).is_some()
    }

    /// Returns the rooms that are joined.
    pub(crate) fn rooms(&self) -> Vec<RoomName> {
        self.subscriptions.keys().cloned().collect()
    }

    /// Takes an event as it comes; returns whether the writer has something new to do.
    pub(crate) fn offer(&mut self, frame: &Arc<DataFrame>) -> bool {
        let fits = self.fits(frame);
        let Some(subscription) = self.subscriptions.get_mut(&frame.room) else { return false };
        match frame.offset {
            None => self.offer_ephemeral(frame),
            Some(_) if subscription.state != SubscriptionState::Live => false,
            Some(offset) if offset <= subscription.cursor => false,
            Some(offset) if offset == subscription.cursor + 1 && fits => {
                subscription.cursor = offset;
                if let Some(epoch) = &frame.epoch
                    && subscription.epoch != *epoch
                {
                    // The first event of an implicit room starts its history.
                    subscription.epoch = epoch.clone();
                }
                self.push(frame);
                true
            }
            Some(_) => {
                subscription.state = SubscriptionState::Behind;
                if !fits && !std::mem::replace(&mut subscription.is_lagging, true) {
                    let dropped = std::mem::take(&mut subscription.dropped);
                    self.notice(&NoticeFrame::Lag(Lag {
                        room: frame.room.clone(),
                        state: LagState::CatchingUp,
                        dropped,
                    }));
                }
                true
            }
        }
    }

    /// Queues an ephemeral event; a full lane loses its oldest ephemeral one first.
    fn offer_ephemeral(&mut self, frame: &Arc<DataFrame>) -> bool {
        if !self.fits(frame) {
            metrics::counter!("switchboard_realtime_ephemeral_dropped_total").increment(1);
            let oldest = self.data.iter().position(|queued| queued.offset.is_none());
            let victim = oldest.and_then(|index| self.data.remove(index));
            let room = victim.as_ref().map_or(&frame.room, |victim| &victim.room).clone();
            if let Some(victim) = &victim {
                self.data_bytes -= victim.text.len();
            }
            self.note_drop(&room);
            if victim.is_none() || !self.fits(frame) {
                return true;
            }
        }
        self.push(frame);
        true
    }

    /// Counts a dropped event and tells the client at the first of a row.
    fn note_drop(&mut self, room: &RoomName) {
        let Some(subscription) = self.subscriptions.get_mut(room) else { return };
        subscription.dropped += 1;
        if !std::mem::replace(&mut subscription.is_lagging, true) {
            let notice = NoticeFrame::Lag(Lag { room: room.clone(), state: LagState::Dropping, dropped: 1 });
            self.notice(&notice);
        }
    }

    fn fits(&self, frame: &DataFrame) -> bool {
        self.data.len() < OUTBOX_FRAMES && self.data_bytes + frame.text.len() <= OUTBOX_BYTES
    }

    fn push(&mut self, frame: &Arc<DataFrame>) {
        self.data_bytes += frame.text.len();
        self.data.push_back(Arc::clone(frame));
    }

    /// Queues a page that was read from the log for a room that is behind. The lane was empty when the
    /// page was asked for, so a page, which is itself bounded, always goes in whole.
    pub(crate) fn extend(&mut self, behind: &BehindRoom, frames: &[Arc<DataFrame>]) {
        // The client may have left and joined again at another position meanwhile.
        if !self.is_still(behind) {
            return;
        }
        let Some(subscription) = self.subscriptions.get_mut(&behind.room) else { return };
        if let Some(last) = frames.last().and_then(|frame| frame.offset) {
            subscription.cursor = last;
        }
        for frame in frames {
            self.push(frame);
        }
    }

    /// Tells whether a room is behind at exactly this position.
    pub(crate) fn is_still(&self, behind: &BehindRoom) -> bool {
        self.subscriptions.get(&behind.room).is_some_and(|subscription| {
            subscription.state == SubscriptionState::Behind
                && subscription.epoch == behind.epoch
                && subscription.cursor == behind.cursor
        })
    }

    /// Makes a room that is behind live if everything up to `top` of `epoch` is queued; returns whether
    /// nothing is left to be read.
    pub(crate) fn go_live(&mut self, room: &RoomName, epoch: &Epoch, top: i64) -> bool {
        let Some(subscription) = self.subscriptions.get_mut(room) else { return true };
        if subscription.state != SubscriptionState::Behind {
            return true;
        }
        if subscription.epoch != *epoch || subscription.cursor < top {
            return false;
        }
        subscription.state = SubscriptionState::Live;
        if std::mem::take(&mut subscription.is_lagging) {
            let dropped = std::mem::take(&mut subscription.dropped);
            self.notice(&NoticeFrame::Lag(Lag { room: room.clone(), state: LagState::Live, dropped }));
        }
        true
    }

    /// Tells the client that a room is gone, and forgets it: nothing more of it is sent.
    pub(crate) fn end(&mut self, room: &RoomName, reason: &str) {
        if self.leave(room) {
            metrics::counter!("switchboard_realtime_desyncs_total").increment(1);
            self.notice(&NoticeFrame::Desync(Desync { room: room.clone(), reason: reason.to_owned() }));
        }
    }

    /// Tells the client that a room goes on elsewhere, and goes on there.
    pub(crate) fn desync(&mut self, room: &RoomName, reason: &str, epoch: Epoch, cursor: i64) {
        if self.subscriptions.contains_key(room) {
            metrics::counter!("switchboard_realtime_desyncs_total").increment(1);
            self.notice(&NoticeFrame::Desync(Desync { room: room.clone(), reason: reason.to_owned() }));
            self.start(room, epoch, cursor);
        }
    }

    /// Says what the writer does next.
    pub(crate) fn step(&mut self) -> Step {
        if !self.control.is_empty() {
            return Step::Send(self.control.drain(..).collect());
        }
        if let Some(code) = self.closing {
            return Step::Close(code);
        }
        let mut burst = Vec::new();
        let mut bytes = 0;
        while bytes < BURST_BYTES
            && let Some(frame) = self.data.pop_front()
        {
            self.data_bytes -= frame.text.len();
            bytes += frame.text.len();
            burst.push(frame.text.clone());
        }
        if !burst.is_empty() {
            metrics::counter!("switchboard_realtime_events_delivered_total").increment(burst.len() as u64);
            return Step::Send(burst);
        }
        let is_behind = |subscription: &Subscription| subscription.state == SubscriptionState::Behind;
        if let Some((room, subscription)) = self.subscriptions.iter().find(|(_, found)| is_behind(found)) {
            return Step::CatchUp(BehindRoom {
                room: room.clone(),
                epoch: subscription.epoch.clone(),
                cursor: subscription.cursor,
            });
        }
        self.tell_recovered();
        if self.control.is_empty() { Step::Wait } else { Step::Send(self.control.drain(..).collect()) }
    }

    /// Tells the client of live rooms whose events were dropped that the lane has emptied.
    fn tell_recovered(&mut self) {
        let mut notices = Vec::new();
        for (room, subscription) in &mut self.subscriptions {
            if subscription.state == SubscriptionState::Live && std::mem::take(&mut subscription.is_lagging) {
                let dropped = std::mem::take(&mut subscription.dropped);
                notices.push(NoticeFrame::Lag(Lag { room: room.clone(), state: LagState::Live, dropped }));
            }
        }
        for notice in &notices {
            self.notice(notice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch() -> Epoch {
        Epoch::new("e", "1")
    }

    fn room() -> RoomName {
        "lobby".parse().unwrap()
    }

    fn frame(offset: Option<i64>, size: usize) -> Arc<DataFrame> {
        Arc::new(DataFrame { text: vec![b'x'; size].into(), room: room(), offset, epoch: offset.map(|_| epoch()) })
    }

    fn live(cursor: i64) -> Outbox {
        let mut outbox = Outbox::default();
        outbox.begin(&room(), epoch());
        outbox.start(&room(), epoch(), cursor);
        outbox.go_live(&room(), &epoch(), cursor);
        outbox
    }

    fn sent(outbox: &mut Outbox) -> usize {
        let mut count = 0;
        while let Step::Send(frames) = outbox.step() {
            count += frames.len();
        }
        count
    }

    #[test]
    fn live_events_are_queued_once_and_in_order() {
        let mut outbox = live(4);
        for offset in [4, 5, 5, 6] {
            outbox.offer(&frame(Some(offset), 10));
        }
        assert_eq!(sent(&mut outbox), 2);
        assert!(matches!(outbox.step(), Step::Wait));
    }

    #[test]
    fn a_hole_and_a_full_lane_both_fall_behind_at_the_last_queued_offset() {
        let mut outbox = live(0);
        outbox.offer(&frame(Some(2), 10));
        let Step::CatchUp(behind) = outbox.step() else { panic!("behind expected") };
        assert_eq!(behind.cursor, 0);

        let mut outbox = live(0);
        for offset in 1..=OUTBOX_FRAMES as i64 + 5 {
            outbox.offer(&frame(Some(offset), 10));
        }
        assert_eq!(sent(&mut outbox), OUTBOX_FRAMES + 1, "all queued events and one lag notice");
        let Step::CatchUp(behind) = outbox.step() else { panic!("behind expected") };
        assert_eq!(behind.cursor, OUTBOX_FRAMES as i64);
        outbox.extend(&behind, &[frame(Some(behind.cursor + 1), 10)]);
        outbox.go_live(&room(), &epoch(), behind.cursor + 2);
        assert_eq!(sent(&mut outbox), 1);
        assert!(matches!(outbox.step(), Step::CatchUp(_)), "one event is still missing");
    }

    #[test]
    fn the_data_lane_is_bounded_in_bytes() {
        let mut outbox = live(0);
        for offset in 1..=40 {
            outbox.offer(&frame(Some(offset), 60 * 1024));
        }
        assert!(outbox.data_bytes <= OUTBOX_BYTES);
    }

    #[test]
    fn ephemeral_events_make_room_for_newer_ones() {
        let mut outbox = live(0);
        for _ in 0..OUTBOX_FRAMES + 3 {
            outbox.offer(&frame(None, 10));
        }
        assert_eq!(outbox.data.len(), OUTBOX_FRAMES);
        assert_eq!(outbox.subscriptions[&room()].dropped, 3);
        let Step::Send(first) = outbox.step() else { panic!("the notice of the first drop expected") };
        assert!(String::from_utf8_lossy(&first[0]).contains("\"dropping\",\"dropped\":1"));
        // What is left of the lane, and then the notice that it is empty.
        assert_eq!(sent(&mut outbox), OUTBOX_FRAMES + 1);
        assert!(!outbox.subscriptions[&room()].is_lagging);
    }

    #[test]
    fn a_page_for_an_older_position_is_ignored() {
        let mut outbox = live(0);
        outbox.offer(&frame(Some(9), 10));
        let Step::CatchUp(behind) = outbox.step() else { panic!("behind expected") };
        outbox.leave(&room());
        outbox.begin(&room(), epoch());
        outbox.start(&room(), epoch(), 8);
        outbox.extend(&behind, &[frame(Some(1), 10)]);
        assert_eq!(outbox.data.len(), 0);
    }

    #[test]
    fn control_goes_first_and_a_close_ends_the_data() {
        let mut outbox = live(0);
        outbox.offer(&frame(Some(1), 10));
        outbox.control(Bytes::from_static(b"reply"));
        let Step::Send(frames) = outbox.step() else { panic!("frames expected") };
        assert_eq!(frames, [Bytes::from_static(b"reply")]);
        outbox.close(CloseCode::Drain);
        outbox.close(CloseCode::Slow);
        assert!(matches!(outbox.step(), Step::Close(CloseCode::Drain)));
    }
}
