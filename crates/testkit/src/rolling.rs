//! A rollout under load: every replica is replaced in turn, and nobody notices who asks a balancer, follows a room or reads
//! a stream.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use switchboard_model::page::PageRequest;
use tokio::task::JoinSet;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use crate::balancer::Balancer;
use crate::cluster::{Cluster, ClusterBuilder};
use crate::work::{Fleet, Ledger, Rooms, RoomsSize, Streams, Workload, Works};

/// How many programs ask, and how often each does.
const ASKERS: usize = 4;
const PERIOD: Duration = Duration::from_millis(40);

/// How many faults of requests are told.
const TOLD: usize = 10;

/// How much goes on during the rollout.
#[derive(Clone, Copy, Debug)]
pub struct Rolling {
    /// How many sockets follow rooms.
    pub sockets: usize,
    /// How many streams are written at a time, each with two readers.
    pub streams: u64,
    /// How often all replicas are replaced.
    pub rounds: usize,
}

/// What happened, and what must not have.
#[derive(Clone, Debug, Default)]
pub struct RollingReport {
    /// Plain requests that were answered.
    pub answered: usize,
    /// Replicas that were replaced.
    pub replaced: usize,
    /// What the rooms and the streams did.
    pub done: Vec<String>,
    /// Plain requests that failed, events that were lost, streams without an honest end.
    pub violations: Vec<String>,
}

impl Rolling {
    /// Describes the cluster for a rollout: a stopping replica goes on accepting until a balancer has noticed.
    pub fn cluster(builder: ClusterBuilder) -> ClusterBuilder {
        builder.env("SWITCHBOARD_DRAIN__DELAY", "3s").env("SWITCHBOARD_DRAIN__TIMEOUT", "10s")
    }

    /// Replaces all replicas of a cluster under load.
    ///
    /// # Panics
    /// Panics when a replica does not stop in order or does not come back.
    pub async fn run(&self, cluster: &mut Cluster) -> RollingReport {
        let replicas: Vec<_> = (0..cluster.size()).map(|index| cluster.client(index).clone()).collect();
        let rooms =
            RoomsSize { rooms: (self.sockets / 10).max(1), rooms_per_client: 1, followers: 0, resumers: self.sockets };
        let work: Vec<Box<dyn Workload>> = vec![Box::new(Rooms::new(rooms)), Box::new(Streams::new(self.streams))];
        let works = Works::start(Fleet::new(replicas.clone(), cluster.database().pool(), 0), work).await;
        let balancer = Arc::new(Balancer::over(replicas));
        let end = CancellationToken::new();
        let mut probing = JoinSet::new();
        let probed = Arc::clone(&balancer);
        probing.spawn(async move { probed.probe().await });
        let mut asking = JoinSet::new();
        for _ in 0..ASKERS {
            asking.spawn(ask(Arc::clone(&balancer), end.clone()));
        }
        for _ in 0..self.rounds {
            cluster.roll().await;
        }
        end.cancel();
        let mut report = RollingReport { replaced: self.rounds * cluster.size(), ..RollingReport::default() };
        for (answered, failed) in asking.join_all().await {
            report.answered += answered;
            report.violations.extend(failed);
        }
        for (name, Ledger { done, violations }) in works.stop().await.check(&[]).await {
            report.done.push(format!("{name}: {done}"));
            report.violations.extend(violations);
        }
        report
    }
}

/// Asks whatever replica the balancer names, once for each request.
async fn ask(balancer: Arc<Balancer>, end: CancellationToken) -> (usize, Vec<String>) {
    let mut clock = interval(PERIOD);
    let (mut answered, mut failed) = (0, Vec::new());
    while end.run_until_cancelled(clock.tick()).await.is_some() && failed.len() < TOLD {
        let replica = balancer.next();
        match replica.list_tasks(PageRequest::default()).await {
            Ok(_) => answered += 1,
            Err(error) => failed.push(format!("a request to {}: {:#}", replica.base_url(), anyhow::Error::new(error))),
        }
    }
    (answered, failed)
}

impl fmt::Display for RollingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} replicas replaced, {} plain requests answered", self.replaced, self.answered)?;
        self.done.iter().try_for_each(|done| writeln!(f, "  {done}"))?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "  ! {violation}"))?;
        write!(f, "violations: {}", self.violations.len())
    }
}
