//! Rooms, events of 200 bytes, and many publishers at once.

use std::time::Duration;

use futures_util::future::join_all;
use switchboard_client::Client;
use switchboard_model::identity::RoomName;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{Retention, RoomKind};
use switchboard_model::wire::rest::{PublishRequest, RoomRequest};
use tokio::time::{Instant, interval};

/// How many bytes each payload has.
pub(crate) const PAYLOAD_BYTES: usize = 200;

pub(crate) fn event() -> PublishRequest {
    let payload = JsonText::parse(format!("\"{}\"", "x".repeat(PAYLOAD_BYTES - 2))).unwrap();
    PublishRequest { event: "bench".parse().unwrap(), payload, msg_id: None, ephemeral: false }
}

pub(crate) async fn create_rooms(client: &Client, count: usize) -> Vec<RoomName> {
    let mut rooms = Vec::new();
    for n in 0..count {
        let name: RoomName = format!("bench:{n}").parse().unwrap();
        let retention = Retention { max_count: 10_000_000, ..Retention::default() };
        let request = RoomRequest { name: name.clone(), kind: RoomKind::Public, retention };
        client.create_room(&request).await.unwrap();
        rooms.push(name);
    }
    rooms
}

/// What each of many publishers sends.
#[derive(Clone, Copy)]
pub(crate) struct Flood {
    pub(crate) publishers: usize,
    pub(crate) requests: usize,
    pub(crate) events_per_request: usize,
}

impl Flood {
    pub(crate) const fn events(self) -> usize {
        self.publishers * self.requests * self.events_per_request
    }

    /// Publishes everything; each publisher has one request on its way at a time.
    pub(crate) async fn publish(self, client: &Client, rooms: &[RoomName]) {
        let batch = vec![event(); self.events_per_request];
        let publishers = (0..self.publishers).map(|publisher| {
            let (batch, room) = (&batch, &rooms[publisher % rooms.len()]);
            async move {
                for _ in 0..self.requests {
                    client.publish_batch(room, batch.clone()).await.unwrap();
                }
            }
        });
        join_all(publishers).await;
    }
}

/// Publishes batches of 50 at a steady rate until `end`; one that is late is caught up with.
pub(crate) async fn publish_steadily(client: &Client, rooms: &[RoomName], events_per_second: u32, end: Instant) {
    const BATCH: u32 = 50;
    const PUBLISHERS: u32 = 8;
    let batch = vec![event(); BATCH as usize];
    let publishers = (0..PUBLISHERS).map(|publisher| {
        let (batch, room) = (&batch, &rooms[publisher as usize % rooms.len()]);
        async move {
            let mut clock = interval(Duration::from_secs(1) * BATCH * PUBLISHERS / events_per_second);
            while Instant::now() < end {
                clock.tick().await;
                client.publish_batch(room, batch.clone()).await.unwrap();
            }
        }
    });
    join_all(publishers).await;
}
