//! Rooms: publishers that repeat themselves until they are heard, clients that resume by hand, and the client that resumes
//! by itself.

use std::time::Duration;

use async_trait::async_trait;
use switchboard_model::identity::RoomName;
use switchboard_model::room::{Retention, RoomKind};
use switchboard_model::wire::rest::RoomRequest;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::fleet::{Fleet, LONG};
use super::{Ledger, Workload};
use crate::bus_load::{Followed, Follower, Resumer, Tops, Writer, judge_log};
use crate::ledger::Loss;
use crate::must::Must as _;

/// How many publishers there are, and how often each publishes.
const WRITERS: u32 = 3;
const PERIOD: Duration = Duration::from_millis(120);

/// How many take part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoomsSize {
    /// Rooms.
    pub(crate) rooms: usize,
    /// How many of them each client joins.
    pub(crate) rooms_per_client: usize,
    /// Clients that resume by hand and cut their sockets.
    pub(crate) followers: usize,
    /// Clients that leave it to the product to resume.
    pub(crate) resumers: usize,
}

/// The clients, and what the publishers were told.
pub(crate) struct Rooms {
    size: RoomsSize,
    rooms: Vec<RoomName>,
    clients: JoinSet<Followed>,
    tops: watch::Sender<Option<Tops>>,
    acknowledged: Vec<(usize, i64)>,
}

impl Rooms {
    pub(crate) fn new(size: RoomsSize) -> Self {
        let rooms = (0..size.rooms).map(|n| format!("chaos:{n}").parse().must("a name")).collect();
        Self { size, rooms, clients: JoinSet::new(), tops: watch::Sender::default(), acknowledged: Vec::new() }
    }

    /// Returns the rooms that a client joins.
    fn rooms_of(&self, client: usize) -> Vec<RoomName> {
        let steps = 0..self.size.rooms_per_client;
        steps.map(|step| self.rooms[(client + step) % self.rooms.len()].clone()).collect()
    }
}

impl Default for Rooms {
    fn default() -> Self {
        Self::new(RoomsSize { rooms: 6, rooms_per_client: 2, followers: 6, resumers: 6 })
    }
}

/// Creates a room that keeps everything.
pub(crate) async fn create_room(fleet: &Fleet, name: &str) {
    let retention = Retention { max_count: 1_000_000, ..Retention::default() };
    let request = RoomRequest { name: name.parse().must("a name"), kind: RoomKind::Public, retention };
    fleet.replicas()[0].create_room(&request).await.map(drop).must("creating a room");
}

#[async_trait]
impl Workload for Rooms {
    fn name(&self) -> &'static str {
        "rooms"
    }

    async fn start(&mut self, fleet: &Fleet) {
        for room in &self.rooms {
            create_room(fleet, room.as_str()).await;
        }
        let began = Instant::now();
        for n in 0..self.size.followers {
            let follower = Follower::new(n, self.rooms_of(n), fleet.replicas().to_vec(), began, fleet.seed());
            self.clients.spawn(follower.follow(self.tops.subscribe()));
        }
        for n in 0..self.size.resumers {
            let (name, rooms) = (format!("resumer{n}"), self.rooms_of(n));
            let resumer =
                Resumer::join(&fleet.replicas()[n % fleet.replicas().len()], fleet.urls(), &name, rooms).await;
            self.clients.spawn(resumer.follow(self.tops.subscribe()));
        }
    }

    async fn drive(&mut self, fleet: &Fleet, end: &CancellationToken) {
        let mut writers = JoinSet::new();
        for n in 0..WRITERS {
            let replicas = fleet.replicas().to_vec();
            let writer = Writer::new(n, self.rooms.clone(), replicas, Instant::now(), fleet.seed());
            writers.spawn(writer.write(PERIOD, end.clone()));
        }
        self.acknowledged = writers.join_all().await.into_iter().flatten().collect();
    }

    async fn check(&mut self, _: &Fleet, _: &[Loss]) -> Ledger {
        let published = self.acknowledged.len();
        let (tops, mut violations) = judge_log(&self.rooms, std::mem::take(&mut self.acknowledged));
        self.tops.send_replace(Some(tops));
        let clients = std::mem::take(&mut self.clients);
        let Ok(followed) = timeout(LONG, clients.join_all()).await else {
            violations.push(format!("some client did not see the last event within {LONG:?}"));
            return Ledger { done: format!("{published} events"), violations };
        };
        let delivered: u64 = followed.iter().map(|one| one.delivered).sum();
        let cuts: u64 = followed.iter().map(|one| one.cuts).sum();
        let clients = followed.len();
        violations.extend(followed.into_iter().flat_map(|one| one.faults));
        let done =
            format!("{published} events published, {delivered} delivered to {clients} clients; {cuts} sockets lost");
        Ledger { done, violations }
    }
}
