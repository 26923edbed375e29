//! A publisher that tries each event again, with the same message id, until a replica has taken it.

use std::time::Duration;

use anyhow::Context as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use switchboard_client::Client;
use switchboard_model::identity::RoomName;
use switchboard_model::json_text::JsonText;
use switchboard_model::wire::rest::PublishRequest;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::must::Must as _;

/// How often an event is tried before the load gives up; many times what an outage of one replica takes.
const TRIES: u32 = 2_000;

/// How long one try may take; a replica that is silent is as good as down.
const PATIENCE: Duration = Duration::from_secs(4);

pub(crate) struct Writer {
    number: u32,
    rooms: Vec<RoomName>,
    replicas: Vec<Client>,
    began: Instant,
    rng: StdRng,
}

impl Writer {
    pub(crate) fn new(number: u32, rooms: Vec<RoomName>, replicas: Vec<Client>, began: Instant, seed: u64) -> Self {
        Self { number, rooms, replicas, began, rng: StdRng::seed_from_u64(seed ^ (u64::from(number) << 32)) }
    }

    /// Publishes one event each `period` until `end`, and returns the room and the offset of each.
    pub(crate) async fn write(mut self, period: Duration, end: CancellationToken) -> Vec<(usize, i64)> {
        let mut taken = Vec::new();
        let mut clock = interval(period);
        while end.run_until_cancelled(clock.tick()).await.is_some() {
            let room = self.rng.random_range(0..self.rooms.len());
            // Most are small enough for a hint, some are not: both must keep one order.
            let filling = if self.rng.random_ratio(1, 20) { 9_000 } else { self.rng.random_range(0..200) };
            let payload =
                format!(r#"{{"at":{},"filling":"{}"}}"#, self.began.elapsed().as_millis(), "é".repeat(filling));
            let event = PublishRequest {
                event: "note".parse().must("a name"),
                payload: JsonText::parse(payload).must("a payload"),
                msg_id: Some(format!("{}-{}", self.number, taken.len()).parse().must("a message id")),
                ephemeral: false,
            };
            taken.push((room, self.publish(room, &event).await));
        }
        taken
    }

    async fn publish(&mut self, room: usize, event: &PublishRequest) -> i64 {
        for _ in 0..TRIES {
            let Some(replica) = self.replicas.choose(&mut self.rng) else { continue };
            match timeout(PATIENCE, replica.publish(&self.rooms[room], event)).await {
                Ok(Ok(published)) => return published.position.context("no position").must("publishing").offset,
                // It is down, or its answer was lost: whether the event is stored the next try finds out.
                Ok(Err(_)) | Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
        panic!("no replica took an event of writer {}", self.number);
    }
}
