//! Which calls were handed over, and which are claimed here: whoever executes on offers executes once. Pure.

use std::collections::VecDeque;

use switchboard_model::ids::CallId;

/// How many calls are remembered; they live for minutes at most.
const REMEMBERED: usize = 1024;

/// The calls of the last while.
#[derive(Debug, Default)]
pub(super) struct RecentCalls(VecDeque<CallId>);

impl RecentCalls {
    /// Notes a call; `false` if it is known.
    pub(super) fn insert(&mut self, call: CallId) -> bool {
        if self.contains(call) {
            return false;
        }
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(call);
        true
    }

    /// Tells whether a call is known.
    pub(super) fn contains(&self, call: CallId) -> bool {
        self.0.contains(&call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_calls_are_known() {
        let mut recent = RecentCalls::default();
        let first = CallId::new();
        assert!(recent.insert(first));
        assert!(!recent.insert(first));
        let mut last = first;
        for _ in 0..REMEMBERED {
            last = CallId::new();
            assert!(recent.insert(last));
        }
        assert!(recent.contains(last) && !recent.contains(first));
    }
}
