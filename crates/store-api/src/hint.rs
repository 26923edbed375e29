//! Wake-up hints: "something changed, tick now". A hint may be lost; re-reading the feed is the truth.

use switchboard_model::feed::ListenerMode;
use tokio::sync::watch;

/// The newest hint and the way in which hints arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintState {
    /// Grows with every hint.
    pub count: u64,
    /// How hints arrive now.
    pub mode: ListenerMode,
}

/// Makes a channel of hints; only the newest one counts, so it never fills.
#[must_use]
pub fn hint_channel(mode: ListenerMode) -> (HintSender, HintReceiver) {
    let (sender, receiver) = watch::channel(HintState { count: 0, mode });
    (HintSender(sender), HintReceiver(receiver))
}

/// The side of a backend.
#[derive(Clone, Debug)]
pub struct HintSender(watch::Sender<HintState>);

impl HintSender {
    /// Says that something changed.
    pub fn raise(&self) {
        self.0.send_modify(|state| state.count = state.count.wrapping_add(1));
    }

    /// Says how hints arrive from now on, which is itself a reason to tick.
    pub fn set_mode(&self, mode: ListenerMode) {
        self.0.send_modify(|state| {
            state.mode = mode;
            state.count = state.count.wrapping_add(1);
        });
    }

    /// Makes another receiver.
    #[must_use]
    pub fn subscribe(&self) -> HintReceiver {
        HintReceiver(self.0.subscribe())
    }
}

/// The side of a reader.
#[derive(Clone, Debug)]
pub struct HintReceiver(watch::Receiver<HintState>);

impl HintReceiver {
    /// Waits for a hint that came after the last call. Pending for ever once the backend is gone.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Tells how hints arrive now.
    #[must_use]
    pub fn mode(&self) -> ListenerMode {
        self.0.borrow().mode
    }
}
