//! Who waits on this replica for a change of which thing. A wake-up may be lost; whoever waits looks now and then.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use switchboard_model::ids::CallId;
use tokio::sync::watch;

/// The waiting for the ends of calls.
pub type CallWaits = Waits<CallId>;

/// The waiting for changes of things that a `K` names.
#[derive(Clone, Debug)]
pub struct Waits<K: Clone + Eq + Hash>(Arc<Mutex<HashMap<K, watch::Sender<()>>>>);

impl<K: Clone + Eq + Hash> Default for Waits<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> Waits<K> {
    /// Begins to wait for a change; look at the thing after this, not before.
    #[must_use]
    pub fn watch(&self, key: K) -> Watch<K> {
        let changed = self.0.lock().entry(key.clone()).or_default().subscribe();
        Watch { waits: self.clone(), key, changed }
    }

    pub(crate) fn wake(&self, key: &K) {
        if let Some(waiting) = self.0.lock().get(key) {
            waiting.send_replace(());
        }
    }

    pub(crate) fn wake_all(&self) {
        for waiting in self.0.lock().values() {
            waiting.send_replace(());
        }
    }
}

/// One who waits for a change.
#[derive(Debug)]
pub struct Watch<K: Clone + Eq + Hash> {
    waits: Waits<K>,
    key: K,
    changed: watch::Receiver<()>,
}

impl<K: Clone + Eq + Hash> Watch<K> {
    /// Waits until the thing may have changed since the last time.
    pub async fn changed(&mut self) {
        if self.changed.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl<K: Clone + Eq + Hash> Drop for Watch<K> {
    fn drop(&mut self) {
        let mut waiting = self.waits.0.lock();
        // This one still counts here.
        if waiting.get(&self.key).is_some_and(|sender| sender.receiver_count() <= 1) {
            waiting.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_wake_up_reaches_everybody_who_waits_also_before_they_ask() {
        let waits = CallWaits::default();
        let call = CallId::new();
        let (mut first, mut second) = (waits.watch(call), waits.watch(call));
        let mut other = waits.watch(CallId::new());
        assert!(first.changed().now_or_never().is_none());
        waits.wake(&call);
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
