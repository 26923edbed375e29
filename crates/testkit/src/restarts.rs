//! A database that crashes and comes back, again and again: every replica recovers by itself and stays alive meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use switchboard_client::Client;
use switchboard_model::page::PageRequest;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, interval, sleep, timeout};

use crate::bus_load::percentiles;
use crate::cluster::Cluster;
use crate::eventually::wait_until;

/// How often each replica is asked whether it lives, and how long it may take to say so.
const PERIOD: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(10);

/// How often the database crashes, and how long it works in between.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    /// How often.
    pub count: usize,
    /// How long from one crash to the next, at least.
    pub period: Duration,
}

/// What happened, and what must not have.
#[derive(Clone, Debug, Default)]
pub struct RestartReport {
    /// How often the database crashed.
    pub restarts: usize,
    /// How often a replica said that it lives.
    pub alive: usize,
    /// The time from the database's return until every replica was ready and answered: median, 99th percentile, longest.
    pub recovery: [Duration; 3],
    /// Replicas that ended, or did not say that they live.
    pub violations: Vec<String>,
}

impl Restarts {
    /// Crashes the database of a cluster on a server of its own.
    ///
    /// # Panics
    /// Panics when a replica does not recover.
    pub async fn run(&self, cluster: &mut Cluster) -> RestartReport {
        let mut report = RestartReport::default();
        let processes: Vec<_> = (0..cluster.size()).map(|index| cluster.process_id(index)).collect();
        let alive = Arc::new(AtomicUsize::new(0));
        let mut probing = JoinSet::new();
        for index in 0..cluster.size() {
            probing.spawn(probe(cluster.client(index).clone(), Arc::clone(&alive)));
        }
        let mut recoveries = Vec::new();
        for _ in 0..self.count {
            let next = Instant::now() + self.period;
            block_in_place(|| cluster.database_mut().restart_server());
            let returned = Instant::now();
            for index in 0..cluster.size() {
                let client = cluster.client(index);
                wait_until("a replica to be ready", async || client.ready().await).await;
                wait_until("a replica to answer", async || client.list_tasks(PageRequest::default()).await).await;
            }
            recoveries.push(returned.elapsed());
            report.restarts += 1;
            // The pause is the fault model, not a wait for anything.
            sleep(next.saturating_duration_since(Instant::now())).await;
        }
        probing.abort_all();
        while let Some(probed) = probing.join_next().await {
            report.violations.extend(probed.ok());
        }
        for (index, process) in processes.into_iter().enumerate() {
            if cluster.has_ended(index).is_some() || cluster.process_id(index) != process {
                report.violations.push(format!("replica {} is not the process that it was", cluster.name(index)));
            }
        }
        report.alive = alive.load(Ordering::SeqCst);
        report.recovery = percentiles(&mut recoveries);
        report
    }
}

/// Asks a replica whether it lives, until it does not say so.
async fn probe(client: Client, alive: Arc<AtomicUsize>) -> String {
    let mut clock = interval(PERIOD);
    loop {
        clock.tick().await;
        match timeout(PATIENCE, client.live()).await {
            Ok(Ok(())) => _ = alive.fetch_add(1, Ordering::SeqCst),
            Ok(Err(error)) => return format!("{} did not say that it lives: {error}", client.base_url()),
            Err(_) => return format!("{} did not say within {PATIENCE:?} that it lives", client.base_url()),
        }
    }
}

impl fmt::Display for RestartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, most, longest] = self.recovery.map(|time| time.as_secs_f64());
        writeln!(
            f,
            "{} restarts of the database; all replicas ready again after p50 {median:.2} s, p99 {most:.2} s, longest \
             {longest:.2} s; {} probes of life passed",
            self.restarts, self.alive
        )?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "  ! {violation}"))?;
        write!(f, "violations: {}", self.violations.len())
    }
}
