//! The bus: the change feed reader, the publisher, and the hub of local sessions.
//!
//! The log in the database is the truth; hints only say when to read it. This crate knows no HTTP and
//! no socket: sessions take text in and give frames out.

mod access;
mod calls;
mod connections;
mod feed;
mod hub;
mod lane;
mod operations;
mod outbox;
mod publisher;
mod rate;
mod session;
mod state;
mod streams;
mod waits;

pub use access::{may_join, may_publish};
pub use calls::Calls;
pub use connections::ConnectError;
pub use feed::{Feed, FeedObserver, FeedStatus, error_chain};
pub use hub::{Hub, HubOptions, Reach};
pub use operations::{Authenticator, Operations, Proven, refusal};
pub use outbox::Outgoing;
pub use publisher::{EphemeralEvent, PublishError, Publisher, PublisherLanes};
pub use session::{Hold, Session, SessionGuard, SessionIdentity};
pub use state::StateWaits;
pub use streams::{OutputWait, StreamLanes, StreamReader, StreamWriter, Streams, WriteError};
pub use waits::{CallWaits, Waits, Watch};

/// Registers every metric of this crate at zero, so that dashboards see them from the start.
pub fn describe_metrics() {
    metrics::gauge!("switchboard_realtime_sessions").set(0.0);
    metrics::gauge!("switchboard_realtime_rooms_joined").set(0.0);
    metrics::counter!("switchboard_feed_ticks_total", "outcome" => "ok").absolute(0);
    metrics::counter!("switchboard_feed_ticks_total", "outcome" => "failed").absolute(0);
    metrics::counter!("switchboard_feed_resyncs_total").absolute(0);
    metrics::counter!("switchboard_feed_signals_total").absolute(0);
    metrics::counter!("switchboard_feed_missed_total").absolute(0);
    metrics::counter!("switchboard_realtime_events_appended_total").absolute(0);
    metrics::counter!("switchboard_realtime_rooms_busy_total").absolute(0);
    metrics::counter!("switchboard_realtime_events_delivered_total").absolute(0);
    metrics::counter!("switchboard_realtime_ephemeral_dropped_total").absolute(0);
    metrics::counter!("switchboard_realtime_catch_ups_total").absolute(0);
    metrics::counter!("switchboard_realtime_desyncs_total").absolute(0);
    metrics::gauge!("switchboard_streams_produced").set(0.0);
    metrics::counter!("switchboard_streams_chunks_total").absolute(0);
    metrics::counter!("switchboard_streams_interrupted_total").absolute(0);
    metrics::counter!("switchboard_calls_offered_total").absolute(0);
    metrics::counter!("switchboard_calls_moved_total").absolute(0);
    metrics::counter!("switchboard_calls_unanswered_total").absolute(0);
}
