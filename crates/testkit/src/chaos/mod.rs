//! Everything at once: mixed faults every few seconds over a live load of all kinds of work, and afterwards the ledgers of
//! each kind, which must balance.

mod faults;
mod report;
mod striker;

use std::path::Path;
use std::time::Duration;

use switchboard_model::span::Span;

use crate::cluster::Cluster;
use crate::work::{self, Fleet, Works, book};
pub use report::ChaosReport;
use striker::Striker;

/// How many replicas there are.
const REPLICAS: usize = 3;

/// How long a leased run is safe without renewal: short, so that faults outlast it.
const LEASE: Span = Span::from_secs(3);

/// How long faults strike, and from which seed they are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    /// How long.
    pub duration: Duration,
    /// The seed.
    pub seed: u64,
}

impl Chaos {
    /// Boots a cluster of the server binary on a database server of its own, lets faults strike while all kinds of work
    /// go on, and checks the ledgers.
    ///
    /// # Panics
    /// Panics when the cluster cannot be used at all, such as when a replica does not come back.
    pub async fn run(&self, server: &Path) -> ChaosReport {
        let mut cluster = Cluster::start(REPLICAS)
            .binary(server)
            .own_server()
            .through_proxies()
            .fronted()
            .lease(LEASE)
            .env("SWITCHBOARD_DRAIN__TIMEOUT", "5s")
            .await;
        let pool = cluster.database().pool().clone();
        book::open(&pool).await;
        let replicas = (0..REPLICAS).map(|index| cluster.outside(index)).collect();
        let works = Works::start(Fleet::new(replicas, &pool, self.seed), work::all()).await;
        let mut striker = Striker::new(self.seed);
        striker.strike(&mut cluster, self.duration).await;
        let (struck, stopped) = tokio::join!(striker.heal(&mut cluster), works.stop());
        let mut report = ChaosReport::new(self.seed);
        for (name, ledger) in stopped.check(&struck.crashes).await {
            report.add(name, ledger);
        }
        report.sum_up(&mut cluster, struck, &pool).await;
        report
    }
}
