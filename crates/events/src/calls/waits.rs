//! Who waits on this replica for which call to end. A wake-up may be lost; whoever waits looks now and then.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use switchboard_model::ids::CallId;
use tokio::sync::watch;

/// The waiting for the ends of calls.
#[derive(Clone, Debug, Default)]
pub struct CallWaits(Arc<Mutex<HashMap<CallId, watch::Sender<()>>>>);

impl CallWaits {
    /// Begins to wait for the end of a call; look at the call after this, not before.
    #[must_use]
    pub fn watch(&self, call: CallId) -> CallWatch {
        let ended = self.0.lock().entry(call).or_default().subscribe();
        CallWatch { waits: self.clone(), call, ended }
    }

    pub(crate) fn wake(&self, call: CallId) {
        if let Some(waiting) = self.0.lock().get(&call) {
            waiting.send_replace(());
        }
    }

    pub(crate) fn wake_all(&self) {
        for waiting in self.0.lock().values() {
            waiting.send_replace(());
        }
    }
}

/// One who waits for the end of a call.
#[derive(Debug)]
pub struct CallWatch {
    waits: CallWaits,
    call: CallId,
    ended: watch::Receiver<()>,
}

impl CallWatch {
    /// Waits until the call may have ended since the last time.
    pub async fn changed(&mut self) {
        if self.ended.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for CallWatch {
    fn drop(&mut self) {
        let mut waiting = self.waits.0.lock();
        // This one still counts here.
        if waiting.get(&self.call).is_some_and(|sender| sender.receiver_count() <= 1) {
            waiting.remove(&self.call);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_wake_up_reaches_everybody_who_waits_for_the_call_also_before_they_ask() {
        let waits = CallWaits::default();
        let call = CallId::new();
        let (mut first, mut second) = (waits.watch(call), waits.watch(call));
        let mut other = waits.watch(CallId::new());
        assert!(first.changed().now_or_never().is_none());
        waits.wake(call);
        assert!(first.changed().now_or_never().is_some());
        assert!(second.changed().now_or_never().is_some());
        assert!(first.changed().now_or_never().is_none());
        assert!(other.changed().now_or_never().is_none());
        waits.wake_all();
        assert!(first.changed().now_or_never().is_some() && other.changed().now_or_never().is_some());
    }

    #[test]
    fn nothing_is_left_of_those_who_went_away() {
        let waits = CallWaits::default();
        let call = CallId::new();
        let (first, second) = (waits.watch(call), waits.watch(call));
        drop(first);
        assert_eq!(waits.0.lock().len(), 1);
        drop(second);
        assert!(waits.0.lock().is_empty());
    }
}
