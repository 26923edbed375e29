//! What a run of faults gave, on one page.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use sqlx::postgres::PgPool;

use super::striker::Struck;
use crate::bus_load::percentiles;
use crate::cluster::Cluster;
use crate::work::Ledger;
use crate::work::book::Book;

/// How many violations are printed.
const SHOWN: usize = 30;

/// What must be 0 on every replica afterwards.
const ZEROS: [&str; 2] = ["switchboard_scheduler_unarmed_tasks", "switchboard_feed_missed_total"];

/// What happened, and what must not have.
#[derive(Clone, Debug, Default)]
pub struct ChaosReport {
    /// The seed of the faults.
    pub seed: u64,
    /// How often each fault struck.
    pub faults: BTreeMap<&'static str, u64>,
    /// How many runs without a permit key killed replicas took along that were executed again.
    pub recovered: usize,
    /// The time from the kill until then: median, 99th percentile and longest.
    pub recovery: [Duration; 3],
    /// What happened to the one that took longest.
    pub slowest: String,
    /// How many had a permit key, and the longest that one of them took, waiting for its permit included.
    pub recovered_with_key: (usize, Duration),
    /// What each kind of work did.
    pub done: BTreeMap<&'static str, String>,
    /// What is wrong with the ledgers.
    pub violations: Vec<String>,
}

impl ChaosReport {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    pub(super) fn add(&mut self, name: &'static str, ledger: Ledger) {
        self.done.insert(name, ledger.done);
        self.violations.extend(ledger.violations.into_iter().map(|violation| format!("{name}: {violation}")));
    }

    /// Adds what the database and the replicas themselves say.
    pub(super) async fn sum_up(&mut self, cluster: &mut Cluster, struck: Struck, pool: &PgPool) {
        let recoveries = Book::read(pool).await.recoveries(&struck.orphans);
        let (keyed, free): (Vec<_>, Vec<_>) = recoveries.into_iter().partition(|recovery| recovery.key.is_some());
        self.recovered_with_key = (keyed.len(), keyed.iter().map(|one| one.time).max().unwrap_or_default());
        self.slowest = free.iter().max_by_key(|one| one.time).map(|one| one.history.clone()).unwrap_or_default();
        let mut times: Vec<Duration> = free.iter().map(|one| one.time).collect();
        self.recovered = times.len();
        self.recovery = percentiles(&mut times);
        self.faults = struck.counts;
        for index in 0..cluster.size() {
            if let Some(status) = cluster.has_ended(index) {
                self.violations.push(format!("replica {} ended by itself: {status}", cluster.name(index)));
                continue;
            }
            match cluster.client(index).metrics().await {
                Ok(metrics) => self.violations.extend(nonzero(&metrics)),
                Err(error) => self.violations.push(format!("replica {}: {error}", cluster.name(index))),
            }
        }
    }
}

/// Returns the lines of metrics that must be 0 and are not.
fn nonzero(metrics: &str) -> impl Iterator<Item = String> {
    let lines = metrics.lines().filter(|line| ZEROS.iter().any(|name| line.starts_with(name)));
    lines.filter(|line| !line.ends_with(" 0")).map(str::to_owned)
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "chaos, seed {}", self.seed)?;
        for (fault, count) in &self.faults {
            writeln!(f, "  {count:>4} × {fault}")?;
        }
        let [median, most, longest] = self.recovery.map(|time| time.as_secs_f64());
        writeln!(
            f,
            "  {} runs of killed replicas executed again: p50 {median:.1} s, p99 {most:.1} s, longest {longest:.1} s{}",
            self.recovered, self.slowest
        )?;
        let (keyed, longest) = (self.recovered_with_key.0, self.recovered_with_key.1.as_secs_f64());
        writeln!(f, "  {keyed} more with a permit key, for which they may have to wait: longest {longest:.1} s")?;
        for (name, done) in &self.done {
            writeln!(f, "  {name}: {done}")?;
        }
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "  ! {violation}")?;
        }
        write!(f, "violations: {}", self.violations.len())
    }
}
