//! What was handed to the caller, room by room, and so what a new connection must ask for. Pure.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use switchboard_model::identity::RoomName;
use switchboard_model::room::Position;
use switchboard_model::wire::frame::{EventFrame, Joined};
use switchboard_model::wire::op::{Join, Since};

/// What to do with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the next one.
    Deliver,
    /// It was handed over before, or a replay brings it again in its order.
    Drop,
    /// It is new, but others before it are missing.
    Gap,
}

/// What a join means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Continuity {
    /// The first join of the room, or nothing is missing since the last connection.
    Whole,
    /// Events between the last connection and this one are missing.
    Broken,
}

/// The rooms of a socket that outlives its connections.
#[derive(Debug, Default)]
pub(super) struct Positions {
    rooms: BTreeMap<RoomName, Track>,
}

#[derive(Debug)]
struct Track {
    /// What the next join asks for.
    since: Since,
    /// What is complete: everything up to here was handed over or lies before the first join.
    seen: Option<Position>,
    /// The newest offset that was handed over, in the history of `seen`.
    handed: Option<i64>,
    /// The last offset of the running replay, in the history of `seen`.
    replay_end: i64,
    /// Whether a join was answered before.
    was_joined: bool,
    /// Whether a join that asks for a replay is under way: what comes before its answer is brought again.
    is_resuming: bool,
}

impl Positions {
    /// Begins to follow a room; `false` if it is followed already.
    pub(super) fn follow(&mut self, room: RoomName, since: Since) -> bool {
        let Entry::Vacant(entry) = self.rooms.entry(room) else { return false };
        entry.insert(Track { since, seen: None, handed: None, replay_end: 0, was_joined: false, is_resuming: false });
        true
    }

    /// Stops following a room.
    pub(super) fn forget(&mut self, room: &RoomName) {
        self.rooms.remove(room);
    }

    /// Returns the followed rooms.
    pub(super) fn rooms(&self) -> Vec<RoomName> {
        self.rooms.keys().cloned().collect()
    }

    /// Returns the join that a connection must send for a room.
    pub(super) fn join(&mut self, room: &RoomName) -> Option<Join> {
        let track = self.rooms.get_mut(room)?;
        if let Some(seen) = &track.seen {
            track.since = Since::Position(seen.clone());
        }
        track.is_resuming = matches!(track.since, Since::Position(_));
        Some(Join { room: room.clone(), since: track.since.clone(), presence: false })
    }

    /// Takes the answer to the join that [`Positions::join`] gave.
    pub(super) fn joined(&mut self, room: &RoomName, joined: &Joined) -> Continuity {
        let Some(track) = self.rooms.get_mut(room) else { return Continuity::Whole };
        let position = Position { epoch: joined.epoch.clone(), offset: joined.offset };
        let is_resumed = track.is_resuming && joined.recovered;
        let is_broken = track.was_joined && !is_resumed;
        // On the first join of a room that the server joined by itself, events may be here already and others
        // before the answered position still on their way.
        let is_ahead = !is_broken && track.seen.as_ref().is_some_and(|seen| seen.epoch == position.epoch);
        if is_resumed {
            track.handed = Some(joined.offset);
        } else if !is_ahead {
            track.handed = None;
        }
        if is_resumed || !is_ahead {
            track.seen = Some(position);
        }
        track.replay_end = joined.offset + joined.replayed;
        track.was_joined = true;
        track.is_resuming = false;
        if is_broken { Continuity::Broken } else { Continuity::Whole }
    }

    /// Judges an event and remembers it if it is to be handed over.
    pub(super) fn judge(&mut self, event: &EventFrame) -> Verdict {
        let Some(position) = event.position() else { return Verdict::Deliver };
        let Some(track) = self.rooms.get_mut(&event.room) else { return Verdict::Deliver };
        let verdict = track.judge(&position);
        if verdict != Verdict::Drop {
            track.handed = Some(position.offset);
            if track.seen.as_ref().is_none_or(|seen| seen.epoch != position.epoch || seen.offset < position.offset) {
                track.seen = Some(position);
            }
        }
        verdict
    }

    /// Takes the server's word that the position of a room was lost; the next event is a new beginning.
    pub(super) fn lose(&mut self, room: &RoomName) {
        if let Some(track) = self.rooms.get_mut(room) {
            track.seen = None;
            track.handed = None;
            track.since = Since::default();
        }
    }
}

impl Track {
    fn judge(&self, position: &Position) -> Verdict {
        if self.is_resuming {
            return Verdict::Drop;
        }
        let Some(seen) = &self.seen else { return Verdict::Deliver };
        if seen.epoch != position.epoch {
            // Before the first event of a room its history may have no name yet.
            let is_start = seen.offset == 0 && position.offset == 1;
            return if is_start { Verdict::Deliver } else { Verdict::Gap };
        }
        if self.handed.is_some_and(|handed| position.offset <= handed) {
            return Verdict::Drop;
        }
        match position.offset {
            offset if offset <= seen.offset + 1 => Verdict::Deliver,
            // It was queued before the join was answered.
            offset if offset <= self.replay_end => Verdict::Drop,
            _ => Verdict::Gap,
        }
    }
}

#[cfg(test)]
mod tests {
    use switchboard_model::json_text::JsonText;
    use switchboard_model::room::Epoch;

    use super::*;

    fn room() -> RoomName {
        "lobby".parse().unwrap()
    }

    fn event(epoch: &str, offset: i64) -> EventFrame {
        EventFrame {
            event: "tick".parse().unwrap(),
            room: room(),
            payload: JsonText::null(),
            ts: 0,
            msg_id: offset.to_string(),
            offset: Some(offset),
            epoch: Some(Epoch::new(epoch, "1")),
        }
    }

    fn joined(epoch: &str, offset: i64, recovered: bool, replayed: i64) -> Joined {
        Joined { epoch: Epoch::new(epoch, "1"), offset, recovered, replayed }
    }

    fn position(epoch: &str, offset: i64) -> Since {
        Since::Position(Position { epoch: Epoch::new(epoch, "1"), offset })
    }

    /// Follows the room and has it joined at the newest offset.
    fn joined_at(offset: i64) -> Positions {
        let mut positions = Positions::default();
        positions.follow(room(), Since::default());
        assert_eq!(positions.join(&room()).unwrap().since, Since::default());
        assert_eq!(positions.joined(&room(), &joined("e", offset, true, 0)), Continuity::Whole);
        positions
    }

    fn verdicts(positions: &mut Positions, offsets: &[i64]) -> Vec<Verdict> {
        offsets.iter().map(|offset| positions.judge(&event("e", *offset))).collect()
    }

    #[test]
    fn a_resumed_room_goes_on_after_the_last_event_and_drops_doubles() {
        let mut positions = joined_at(5);
        assert_eq!(verdicts(&mut positions, &[6, 7, 7]), [Verdict::Deliver, Verdict::Deliver, Verdict::Drop]);
        assert_eq!(positions.join(&room()).unwrap().since, position("e", 7));
        assert_eq!(positions.joined(&room(), &joined("e", 7, true, 1)), Continuity::Whole);
        assert_eq!(verdicts(&mut positions, &[7, 8, 9]), [Verdict::Drop, Verdict::Deliver, Verdict::Deliver]);
    }

    #[test]
    fn a_room_without_any_event_resumes_where_it_was_joined() {
        let mut positions = joined_at(5);
        assert_eq!(positions.join(&room()).unwrap().since, position("e", 5));
    }

    #[test]
    fn events_around_the_answer_of_a_resuming_join_come_once_and_in_order() {
        let mut positions = joined_at(5);
        positions.join(&room());
        assert_eq!(verdicts(&mut positions, &[9]), [Verdict::Drop], "before the answer");
        positions.joined(&room(), &joined("e", 5, true, 5));
        assert_eq!(verdicts(&mut positions, &[10]), [Verdict::Drop], "queued before the answer");
        assert_eq!(verdicts(&mut positions, &[6, 7, 8, 9, 10, 11]), [Verdict::Deliver; 6]);
    }

    #[test]
    fn events_that_come_before_the_first_answer_are_handed_over_once() {
        let mut positions = Positions::default();
        positions.follow(room(), Since::default());
        positions.join(&room());
        assert_eq!(verdicts(&mut positions, &[4]), [Verdict::Deliver]);
        assert_eq!(positions.joined(&room(), &joined("e", 6, true, 0)), Continuity::Whole);
        assert_eq!(
            verdicts(&mut positions, &[5, 6, 6, 7]),
            [Verdict::Deliver, Verdict::Deliver, Verdict::Drop, Verdict::Deliver]
        );
    }

    #[test]
    fn missing_events_are_said() {
        let mut positions = joined_at(5);
        assert_eq!(verdicts(&mut positions, &[8, 9]), [Verdict::Gap, Verdict::Deliver]);
        positions.join(&room());
        assert_eq!(positions.joined(&room(), &joined("f", 2, false, 0)), Continuity::Broken);
        assert_eq!(positions.judge(&event("f", 3)), Verdict::Deliver);
    }

    #[test]
    fn the_first_event_names_the_history() {
        let mut positions = Positions::default();
        positions.follow(room(), Since::default());
        positions.join(&room());
        positions.joined(&room(), &joined("none", 0, true, 0));
        assert_eq!(positions.join(&room()).unwrap().since, position("none", 0));
        positions.joined(&room(), &joined("none", 0, true, 0));
        assert_eq!(verdicts(&mut positions, &[1, 2]), [Verdict::Deliver; 2]);
        assert_eq!(positions.judge(&event("f", 2)), Verdict::Gap);
    }

    #[test]
    fn a_position_that_the_server_lost_is_not_hidden_by_a_reconnect() {
        let mut positions = joined_at(5);
        positions.lose(&room());
        assert_eq!(positions.join(&room()).unwrap().since, Since::default());
        assert_eq!(positions.joined(&room(), &joined("e", 9, true, 0)), Continuity::Broken);
        positions.lose(&room());
        assert_eq!(verdicts(&mut positions, &[30, 31, 33]), [Verdict::Deliver, Verdict::Deliver, Verdict::Gap]);
    }

    #[test]
    fn a_callers_own_position_is_resumed_at_the_first_join() {
        let mut positions = Positions::default();
        positions.follow(room(), position("e", 3));
        assert_eq!(positions.join(&room()).unwrap().since, position("e", 3));
        assert_eq!(positions.joined(&room(), &joined("e", 3, true, 2)), Continuity::Whole);
        assert_eq!(verdicts(&mut positions, &[3, 4, 5]), [Verdict::Drop, Verdict::Deliver, Verdict::Deliver]);
    }
}
