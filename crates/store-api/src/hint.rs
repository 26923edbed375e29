//! Wake-up hints: "something changed, tick now", and news that a hint may carry. Both may be lost; re-reading the feed
//! is the truth.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use switchboard_model::feed::{ListenerMode, Signal};
use switchboard_model::identity::RoomName;
use switchboard_model::room::{Epoch, StoredEvent};
use tokio::sync::{broadcast, watch};

/// How many news wait for a slow reader; beyond that it is told to tick.
const WAITING_NEWS: usize = 1024;

/// The newest hint and the way in which hints arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintState {
    /// Grows with every hint.
    pub count: u64,
    /// How hints arrive now.
    pub mode: ListenerMode,
}

/// What a hint carries, or a commit of this replica has brought, so that nothing has to be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// An event that was appended to a room.
    Appended {
        /// The room.
        room: RoomName,
        /// The history that its offset counts in.
        epoch: Epoch,
        /// The event.
        event: StoredEvent,
    },
    /// A signal; whether it is in the table, too, depends on its kind.
    Signal(Signal),
}

/// Makes a channel of hints; only the newest one counts, so it never fills.
#[must_use]
pub fn hint_channel(mode: ListenerMode) -> (HintSender, HintReceiver) {
    let sender = HintSender { state: watch::Sender::new(HintState { count: 0, mode }), news: news_channel() };
    let receiver = sender.subscribe();
    (sender, receiver)
}

fn news_channel() -> broadcast::Sender<Arc<News>> {
    broadcast::Sender::new(WAITING_NEWS)
}

/// The side of a backend.
#[derive(Clone, Debug)]
pub struct HintSender {
    state: watch::Sender<HintState>,
    news: broadcast::Sender<Arc<News>>,
}

impl HintSender {
    /// Says that something changed.
    pub fn raise(&self) {
        self.state.send_modify(|state| state.count = state.count.wrapping_add(1));
    }

    /// Passes news on; a reader that has too many waiting, or none that asks for news, is told to tick instead.
    pub fn tell(&self, news: News) {
        if self.news.len() >= WAITING_NEWS || self.news.send(Arc::new(news)).is_err() {
            self.raise();
        }
    }

    /// Says how hints arrive from now on, which is itself a reason to tick.
    pub fn set_mode(&self, mode: ListenerMode) {
        self.state.send_modify(|state| {
            state.mode = mode;
            state.count = state.count.wrapping_add(1);
        });
    }

    /// Tells how hints arrive now.
    #[must_use]
    pub fn mode(&self) -> ListenerMode {
        self.state.borrow().mode
    }

    /// Makes another receiver.
    #[must_use]
    pub fn subscribe(&self) -> HintReceiver {
        HintReceiver { state: self.state.subscribe(), news: self.news.downgrade() }
    }
}

/// The side of a reader.
#[derive(Clone, Debug)]
pub struct HintReceiver {
    state: watch::Receiver<HintState>,
    news: broadcast::WeakSender<Arc<News>>,
}

impl HintReceiver {
    /// Waits for a hint that came after the last call. Pending for ever once the backend is gone.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Tells how hints arrive now.
    #[must_use]
    pub fn mode(&self) -> ListenerMode {
        self.state.borrow().mode
    }

    /// Begins to collect the news that come from now on; what they carry is no longer said by [`Self::changed`].
    #[must_use]
    pub fn news(&self) -> NewsReceiver {
        NewsReceiver(self.news.upgrade().map(|sender| sender.subscribe()))
    }
}

/// The news that a reader has asked for.
#[derive(Debug)]
pub struct NewsReceiver(Option<broadcast::Receiver<Arc<News>>>);

impl NewsReceiver {
    /// Waits for the next news. Pending for ever once the backend is gone.
    pub async fn next(&mut self) -> Arc<News> {
        loop {
            match &mut self.0 {
                None => std::future::pending().await,
                Some(receiver) => match receiver.recv().await {
                    Ok(news) => return news,
                    // Cannot happen to one that was never told more than it holds; the feed has it all the same.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => self.0 = None,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use switchboard_model::feed::SignalKind;

    use super::*;

    fn news(pos: i64) -> News {
        News::Signal(Signal { kind: SignalKind::Ephemeral, key: "lobby".to_owned(), pos, body: None })
    }

    #[tokio::test]
    async fn news_come_in_order_and_nobody_who_asks_for_none_is_left_out() {
        let (sender, mut hints) = hint_channel(ListenerMode::Listening);
        sender.tell(news(0));
        hints.changed().await;
        let mut reader = hints.news();
        for pos in 1..=3 {
            sender.tell(news(pos));
        }
        for pos in 1..=3 {
            assert_eq!(*reader.next().await, news(pos));
        }
    }

    #[tokio::test]
    async fn a_reader_that_is_too_slow_is_told_to_tick() {
        let (sender, mut hints) = hint_channel(ListenerMode::Listening);
        let mut reader = hints.news();
        let most = i64::try_from(WAITING_NEWS).unwrap();
        for pos in 0..=most {
            sender.tell(news(pos));
        }
        hints.changed().await;
        for pos in 0..most {
            assert_eq!(*reader.next().await, news(pos));
        }
    }
}
