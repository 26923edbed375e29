//! Counts what passes a proxy, and decides where a connection is cut. Pure but for its lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Cut, Direction, Ending, Unit};

/// The one place that everything passes.
#[derive(Debug, Default)]
pub(super) struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    to_server: Counts,
    to_client: Counts,
    /// The cut that has not struck.
    armed: Option<Armed>,
    has_struck: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bytes: u64,
    messages: u64,
    exchanges: u64,
}

/// A cut, and the count at which it strikes.
#[derive(Clone, Copy, Debug)]
struct Armed {
    cut: Cut,
    last: u64,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It passes.
    Pass,
    /// So many of its bytes pass, and the connection ends.
    Cut(usize, Ending),
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn arm(&self, cut: Cut) {
        let mut state = self.state();
        let last = state.counts(cut.direction).of(cut.unit) + cut.after;
        state.armed = Some(Armed { cut, last });
        state.has_struck = false;
    }

    pub(super) fn has_struck(&self) -> bool {
        self.state().has_struck
    }

    pub(super) fn disarm(&self) -> bool {
        let mut state = self.state();
        state.armed = None;
        state.has_struck
    }

    pub(super) fn passed(&self, direction: Direction, unit: Unit) -> u64 {
        self.state().counts(direction).of(unit)
    }

    /// Counts a message of so many bytes, unless the connection that carries it is to die of it.
    pub(super) fn pass(&self, direction: Direction, bytes: usize, is_exchange: bool) -> Verdict {
        let mut state = self.state();
        let counts = state.counts(direction);
        let bytes = bytes as u64;
        *counts = Counts {
            bytes: counts.bytes + bytes,
            messages: counts.messages + 1,
            exchanges: counts.exchanges + u64::from(is_exchange),
        };
        let counts = *counts;
        let Some(Armed { cut, last }) = state.armed.filter(|armed| armed.cut.direction == direction) else {
            return Verdict::Pass;
        };
        let excess = counts.of(cut.unit).saturating_sub(last);
        if excess == 0 {
            return Verdict::Pass;
        }
        state.armed = None;
        state.has_struck = true;
        let passing = if cut.unit == Unit::Byte { bytes.saturating_sub(excess) } else { 0 };
        Verdict::Cut(usize::try_from(passing).unwrap_or_default(), cut.ending)
    }
}

impl State {
    const fn counts(&mut self, direction: Direction) -> &mut Counts {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

impl Counts {
    const fn of(self, unit: Unit) -> u64 {
        match unit {
            Unit::Byte => self.bytes,
            Unit::Message => self.messages,
            Unit::Exchange => self.exchanges,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTION: Direction = Direction::ToServer;

    fn cut(unit: Unit, after: u64) -> Cut {
        Cut { direction: DIRECTION, unit, after, ending: Ending::Reset }
    }

    #[test]
    fn a_cut_strikes_once_and_exactly_where_it_was_put() {
        let gate = Gate::default();
        assert_eq!(gate.pass(DIRECTION, 10, true), Verdict::Pass);
        gate.arm(cut(Unit::Message, 1));
        assert_eq!(gate.pass(Direction::ToClient, 10, true), Verdict::Pass);
        assert_eq!(gate.pass(DIRECTION, 10, false), Verdict::Pass);
        assert_eq!(gate.pass(DIRECTION, 10, false), Verdict::Cut(0, Ending::Reset));
        assert_eq!(gate.pass(DIRECTION, 10, true), Verdict::Pass);
        assert!(gate.disarm());
        assert_eq!(gate.passed(DIRECTION, Unit::Exchange), 2);

        gate.arm(cut(Unit::Exchange, 0));
        assert_eq!(gate.pass(DIRECTION, 10, false), Verdict::Pass);
        assert_eq!(gate.pass(DIRECTION, 10, true), Verdict::Cut(0, Ending::Reset));

        gate.arm(cut(Unit::Byte, 13));
        assert_eq!(gate.pass(DIRECTION, 10, true), Verdict::Pass);
        assert_eq!(gate.pass(DIRECTION, 10, true), Verdict::Cut(3, Ending::Reset));

        gate.arm(cut(Unit::Message, 5));
        assert!(!gate.disarm());
    }
}
