//! Who waits on this replica for a change of which shared value.

use switchboard_model::feed::{SignalKind, Tick};
use switchboard_model::state::StateKey;

use crate::feed::FeedObserver;
use crate::waits::Waits;

/// The waiting for changes of shared values.
pub type StateWaits = Waits<StateKey>;

impl FeedObserver for StateWaits {
    fn observe(&self, tick: &Tick) {
        if tick.resync {
            self.wake_all();
        }
        for signal in tick.signals.iter().filter(|signal| signal.kind == SignalKind::StateChanged) {
            if let Ok(key) = signal.key.parse() {
                self.wake(&key);
            }
        }
    }
}
