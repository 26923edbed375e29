//! What the hub makes of the change feed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use switchboard_model::auth_session::Credential;
use switchboard_model::feed::{Signal, SignalKind, Tick};
use switchboard_model::identity::RoomName;
use switchboard_model::json_text::JsonText;
use switchboard_model::wire::close::CloseCode;
use switchboard_store_api::{News, RoomTop};
use tokio::time::Instant;

use super::Hub;
use super::channel::{Advance, Channel};
use super::revocation::revoked_by;
use crate::feed::{FeedObserver, error_chain};
use crate::outbox::DataFrame;

/// How often the tops of joined rooms are compared with the log, as a guard over the feed.
const RECONCILE_PERIOD: Duration = Duration::from_secs(60);

/// How many ticks must pass before a top that was read beside the feed must be known from it: the
/// tick that was under way may be older, the one after it is not.
const TICKS_TO_KNOW: u32 = 2;

/// The guard over the feed: tops that the feed must have announced by now.
#[derive(Default)]
pub(super) struct Reconciliation {
    last: Option<Instant>,
    tops: Vec<RoomTop>,
    ticks_left: u32,
}

impl FeedObserver for Hub {
    fn hear(&self, news: &News) {
        match news {
            News::Appended { room, epoch, event } => self.appended(room, epoch, event),
            News::Signal(signal) => self.take(signal),
        }
    }

    fn observe(&self, tick: &Tick) {
        *self.clock.lock() = Some((tick.now, Instant::now()));
        for signal in &tick.signals {
            self.take(signal);
        }
        self.observe_presence(tick);
        let revoked: HashSet<_> = tick.signals.iter().filter_map(revoked_by).collect();
        if !revoked.is_empty() {
            self.revoke(&revoked);
        }
        if revoked.iter().any(|credential| matches!(credential, Credential::User(_))) {
            // The sessions of the user ended too, and sockets of others may hang on them.
            self.check_credentials();
        }
        self.check_tops();
        let is_due = {
            let mut reconciliation = self.reconciliation.lock();
            let last = *reconciliation.last.get_or_insert_with(Instant::now);
            let is_due = tick.resync || last.elapsed() >= RECONCILE_PERIOD;
            if is_due {
                reconciliation.last = Some(Instant::now());
            }
            is_due
        };
        if is_due {
            self.reconcile(tick.resync);
            self.check_credentials();
        }
        if tick.resync {
            self.check_kicks();
        }
    }
}

impl Hub {
    fn take(&self, signal: &Signal) {
        if signal.kind == SignalKind::Kicked {
            if let Some(session) = signal.key.parse().ok().and_then(|id| self.session(id)) {
                session.close(CloseCode::Kicked);
            }
            return;
        }
        if signal.kind == SignalKind::StateChanged {
            self.tell_of_state(signal);
            return;
        }
        let Some(channel) = signal.key.parse::<RoomName>().ok().and_then(|room| self.channel(&room)) else { return };
        match (signal.kind, &signal.body) {
            (SignalKind::RoomEvents, _) if channel.note_top(signal.pos) == Advance::Gap => self.fetch(channel),
            // The row is gone or new: reading it finds out which.
            (SignalKind::RoomChanged, _) => self.fetch(channel),
            (SignalKind::Ephemeral, Some(body)) if signal.pos != self.number => deliver_ephemeral(&channel, body),
            _ => {}
        }
    }

    /// Delivers an event that is not stored to the sessions of this replica, and returns the signal for the others.
    pub(crate) fn serve_ephemeral(&self, room: &RoomName, frame: JsonText) -> Signal {
        if let Some(channel) = self.channel(room) {
            deliver_ephemeral(&channel, &frame);
        }
        let key = room.as_str().to_owned();
        Signal { kind: SignalKind::Ephemeral, key, pos: self.number, body: Some(frame) }
    }

    /// Counts the tops that the feed should have announced and did not; that number stays 0.
    fn check_tops(&self) {
        let tops = {
            let mut reconciliation = self.reconciliation.lock();
            if reconciliation.ticks_left > 0 {
                reconciliation.ticks_left -= 1;
            }
            if reconciliation.ticks_left > 0 { return } else { std::mem::take(&mut reconciliation.tops) }
        };
        for top in tops {
            if let Some(channel) = self.channel(&top.room)
                && !channel.knows_of(&top.epoch, top.top)
            {
                metrics::counter!("switchboard_feed_missed_total").increment(1);
                tracing::error!(room = %top.room, top = top.top, "the change feed did not announce an event");
                self.fetch(channel);
            }
        }
    }

    /// Reads the tops of all joined rooms beside the feed. After a loss of the feed they are taken
    /// over at once; otherwise they are compared with what the feed says in the next ticks.
    fn reconcile(&self, is_resync: bool) {
        let Some(hub) = self.me.upgrade() else { return };
        let names: Vec<RoomName> = self.channels.read().keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        self.tracker.spawn(async move {
            while !hub.stop.is_cancelled() {
                match hub.rooms.tops(&names).await {
                    Ok(tops) if is_resync => return hub.take_over(tops),
                    Ok(tops) => {
                        let mut reconciliation = hub.reconciliation.lock();
                        reconciliation.tops = tops;
                        reconciliation.ticks_left = TICKS_TO_KNOW;
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(error = %error_chain(&error), "tops cannot be read");
                        hub.pause_after(&error).await;
                    }
                }
            }
        });
    }

    fn take_over(&self, tops: Vec<RoomTop>) {
        for top in tops {
            if let Some(channel) = self.channel(&top.room)
                && !channel.is_at(&top.epoch, top.top)
            {
                channel.note_top(top.top);
                self.fetch(channel);
            }
        }
    }
}

pub(super) fn deliver_ephemeral(channel: &Channel, frame: &JsonText) {
    let text = Bytes::copy_from_slice(frame.as_str().as_bytes());
    let room = channel.name().clone();
    channel.deliver_ephemeral(&Arc::new(DataFrame { text, room, offset: None, epoch: None }));
}
