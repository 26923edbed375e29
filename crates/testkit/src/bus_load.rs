//! A load on the bus beside cut sockets, killed replicas and lost listeners, and the check that every client has seen
//! every event of its rooms once and in order.

mod follower;
mod resumer;
mod writer;

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use switchboard_client::Client;
use switchboard_model::identity::RoomName;
use switchboard_model::room::{Retention, RoomKind};
use switchboard_model::wire::rest::RoomRequest;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::ledger::{Faults, judged};
use crate::must::Must as _;
use nix::sys::signal::Signal;

pub(crate) use follower::{Followed, Follower};
pub(crate) use resumer::Resumer;
pub(crate) use writer::Writer;

/// How many publishers share the rate.
const WRITERS: u32 = 8;

/// How long clients may take to see the last event.
const PATIENCE: Duration = Duration::from_secs(120);

/// How much travels, how long, and which faults strike.
#[derive(Clone, Copy, Debug)]
pub struct BusLoad {
    /// How many clients there are, each of a user of its own.
    pub clients: usize,
    /// How many rooms there are.
    pub rooms: usize,
    /// How many of them each client joins.
    pub rooms_per_client: usize,
    /// Publishes a second, over all rooms.
    pub rate: u32,
    /// How long is published, and how long faults strike.
    pub duration: Duration,
    /// From which the faults are drawn.
    pub seed: u64,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub struct BusReport {
    /// Events that were published.
    pub published: usize,
    /// Events that arrived, over all clients.
    pub delivered: u64,
    /// Sockets that were cut by their clients.
    pub cuts: u64,
    /// Replicas that were killed.
    pub kills: u64,
    /// Listening connections that were ended.
    pub lost_listeners: u64,
    /// The time from publish to arrival, replays included: median, 99th percentile and longest.
    pub delays: [Duration; 3],
}

/// The last offset of each room.
pub(crate) type Tops = BTreeMap<RoomName, i64>;

impl BusLoad {
    /// Puts the load on a cluster on PostgreSQL, with faults, and checks what every client has seen.
    ///
    /// # Errors
    /// Names what was missing, doubled or out of order.
    ///
    /// # Panics
    /// Panics when the cluster cannot be used at all.
    pub async fn run(&self, cluster: &mut Cluster) -> Result<BusReport, Faults> {
        let rooms: Vec<RoomName> = (0..self.rooms).map(|n| format!("room:{n}").parse().must("a name")).collect();
        for name in &rooms {
            let request = RoomRequest {
                name: name.clone(),
                kind: RoomKind::Public,
                retention: Retention { max_count: 1_000_000, ..Retention::default() },
            };
            cluster.any().create_room(&request).await.must("creating a room");
        }
        let replicas: Vec<Client> = (0..cluster.size()).map(|index| cluster.client(index).clone()).collect();
        let (tell, tops) = watch::channel(None);
        let began = Instant::now();
        let mut followers = JoinSet::new();
        for n in 0..self.clients {
            let own: Vec<RoomName> =
                (0..self.rooms_per_client).map(|step| rooms[(n + step * 7) % rooms.len()].clone()).collect();
            let follower = Follower::new(n, own, replicas.clone(), began, self.seed);
            followers.spawn(follower.follow(tops.clone()));
        }
        let end = CancellationToken::new();
        let mut writers = JoinSet::new();
        for n in 0..WRITERS {
            let period = Duration::from_secs(1) * WRITERS / self.rate;
            let writer = Writer::new(n, rooms.clone(), replicas.clone(), began, self.seed);
            writers.spawn(writer.write(period, end.clone()));
        }
        let mut report = BusReport::default();
        self.strike(cluster, began + self.duration, &mut report).await;
        end.cancel();

        let acknowledged = writers.join_all().await.into_iter().flatten().collect::<Vec<_>>();
        report.published = acknowledged.len();
        let (tops, mut faults) = judge_log(&rooms, acknowledged);
        tell.send_replace(Some(tops));
        let followed = timeout(PATIENCE, followers.join_all()).await;
        let Ok(followed) = followed else {
            faults.push(format!("some client did not see the last event within {PATIENCE:?}"));
            return judged(faults).map(|()| report);
        };
        self.sum_up(&mut report, followed, &mut faults);
        judged(faults).map(|()| report)
    }

    /// Kills replicas and ends listening connections until the end; at least one of each.
    async fn strike(&self, cluster: &mut Cluster, end: Instant, report: &mut BusReport) {
        let mut rng = StdRng::seed_from_u64(self.seed);
        while Instant::now() < end {
            // The pause is the fault model, not a wait for anything.
            tokio::time::sleep(Duration::from_millis(rng.random_range(300..1200))).await;
            let ended: i64 = sqlx::query_scalar(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name LIKE '% listener'",
            )
            .fetch_one(cluster.database().pool())
            .await
            .must("ending listeners");
            report.lost_listeners += ended.unsigned_abs();
            if report.kills == 0 || rng.random_ratio(1, 3) {
                let victim = rng.random_range(0..cluster.size());
                cluster.kill(victim, Signal::SIGKILL);
                report.kills += 1;
                tokio::time::sleep(Duration::from_millis(rng.random_range(0..700))).await;
                cluster.restart(victim).await;
            }
        }
    }

    fn sum_up(&self, report: &mut BusReport, followed: Vec<Followed>, faults: &mut Vec<String>) {
        let mut delays = Vec::new();
        for one in followed {
            faults.extend(one.faults);
            delays.extend(one.delays_ms);
            report.delivered += one.delivered;
            report.cuts += one.cuts;
        }
        report.delays = percentiles(&mut delays).map(|delay| Duration::from_millis(delay.into()));
    }
}

/// Sorts samples and returns their median, their 99th percentile and the largest.
pub(crate) fn percentiles<T: Copy + Default + Ord>(samples: &mut [T]) -> [T; 3] {
    samples.sort_unstable();
    let last = samples.len().saturating_sub(1);
    let rank = |share: usize| samples.get((samples.len() * share / 1000).min(last));
    [500, 990, 1000].map(|share| rank(share).copied().unwrap_or_default())
}

/// Checks that the positions that the publishers were told are 1 to N in each room, and returns the tops.
pub(crate) fn judge_log(rooms: &[RoomName], acknowledged: Vec<(usize, i64)>) -> (Tops, Vec<String>) {
    let mut offsets = vec![Vec::new(); rooms.len()];
    for (room, offset) in acknowledged {
        offsets[room].push(offset);
    }
    let (mut tops, mut faults) = (Tops::new(), Vec::new());
    for (room, mut offsets) in rooms.iter().zip(offsets) {
        offsets.sort_unstable();
        let top = offsets.last().copied().unwrap_or(0);
        if !offsets.iter().copied().eq(1..=top) {
            faults.push(format!("the publishers to {room} were told of {} positions up to {top}", offsets.len()));
        }
        tops.insert(room.clone(), top);
    }
    (tops, faults)
}
