//! The faults: what each does to a cluster, and how a lasting one ends.

use std::time::Duration;

use rand::Rng as _;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use super::striker::Striker;
use crate::cluster::Cluster;
use crate::ledger::Loss;
use crate::proxy::{Cut, Direction, Ending, Traffic, Unit};
use crate::work::book::{insist, orphans};
use nix::sys::signal::Signal;

/// How long the database stands still: longer than a lease.
const STANDSTILL: Duration = Duration::from_millis(3_500);

/// How long a killed replica is down at most, in milliseconds.
const DOWN_MS: std::ops::Range<u64> = 0..1_500;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A replica is killed and booted again.
    Kill,
    /// A replica stands still past its leases, and goes on.
    Pause,
    /// The database crashes and starts again.
    RestartDatabase,
    /// The database stands still past all leases, and goes on.
    PauseDatabase,
    /// All listening connections are ended.
    EndListeners,
    /// The connections of a replica to its database are reset.
    ResetDatabase,
    /// A connection of a replica to its database ends after one of the next exchanges.
    CutDatabase,
    /// Nothing passes between a replica and its database.
    PartitionDatabase,
    /// The connections of clients to a replica end.
    CutClients,
    /// Nothing passes between clients and a replica, or one way only.
    PartitionClients,
    /// What passes between clients and a replica is late or slow.
    SlowClients,
    /// All replicas are replaced in turn.
    Roll,
}

/// What a lasting fault has done to its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasting {
    /// It stands still.
    Paused,
    /// The way to its database is out of order.
    Database,
    /// The way to its clients is out of order.
    Clients,
}

impl Lasting {
    /// Ends the fault.
    pub(super) fn end(self, cluster: &mut Cluster, victim: usize) {
        match self {
            Self::Paused => cluster.resume(victim),
            Self::Database => cluster.proxy(victim).set(Traffic::Flows),
            Self::Clients => cluster.front(victim).set(Traffic::Flows),
        }
    }
}

impl Fault {
    /// One round: every kind, and the kill, which costs the most, twice.
    pub(super) const ROUND: [Self; 13] = [
        Self::Kill,
        Self::Kill,
        Self::Pause,
        Self::RestartDatabase,
        Self::PauseDatabase,
        Self::EndListeners,
        Self::ResetDatabase,
        Self::CutDatabase,
        Self::PartitionDatabase,
        Self::CutClients,
        Self::PartitionClients,
        Self::SlowClients,
        Self::Roll,
    ];

    /// Returns what it is called in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "replica killed",
            Self::Pause => "replica stood still",
            Self::RestartDatabase => "database crashed",
            Self::PauseDatabase => "database stood still",
            Self::EndListeners => "listeners ended",
            Self::ResetDatabase => "database connections reset",
            Self::CutDatabase => "database connection cut at an exchange",
            Self::PartitionDatabase => "replica without database",
            Self::CutClients => "client connections ended",
            Self::PartitionClients => "replica without clients, or half",
            Self::SlowClients => "clients slow",
            Self::Roll => "rolling replace",
        }
    }

    /// Tells whether it lasts while others strike.
    pub(super) const fn lasts(self) -> bool {
        matches!(self, Self::Pause | Self::PartitionDatabase | Self::PartitionClients | Self::SlowClients)
    }

    /// Tells whether it asks something of every replica, so that lasting faults must be over.
    pub(super) const fn needs_all(self) -> bool {
        matches!(self, Self::Roll)
    }

    /// Strikes one replica, or all.
    pub(super) async fn strike(self, striker: &mut Striker, cluster: &mut Cluster, victim: usize) -> Option<Lasting> {
        match self {
            Self::Kill => kill(striker, cluster, victim).await,
            Self::Pause => {
                cluster.pause(victim);
                return Some(Lasting::Paused);
            }
            Self::RestartDatabase => {
                let began = Instant::now();
                block_in_place(|| cluster.database_mut().restart_server());
                striker.struck.crashes.push(Loss { began, ended: Instant::now() });
            }
            Self::PauseDatabase => {
                block_in_place(|| cluster.database_mut().pause_server());
                // How long it stands still is the fault, not a wait for anything.
                sleep(STANDSTILL).await;
                block_in_place(|| cluster.database_mut().resume_server());
            }
            Self::EndListeners => end_listeners(cluster).await,
            Self::ResetDatabase => cluster.proxy(victim).end_all(Ending::Reset),
            Self::CutDatabase => {
                let direction = if striker.rng.random() { Direction::ToServer } else { Direction::ToClient };
                let after = striker.rng.random_range(0..20);
                cluster.proxy(victim).cut(Cut { direction, unit: Unit::Exchange, after, ending: Ending::Reset });
            }
            Self::PartitionDatabase => {
                cluster.proxy(victim).set(lost(striker));
                return Some(Lasting::Database);
            }
            Self::CutClients => {
                let ending = if striker.rng.random() { Ending::Close } else { Ending::Reset };
                cluster.front(victim).end_all(ending);
            }
            Self::PartitionClients => {
                cluster.front(victim).set(lost(striker));
                return Some(Lasting::Clients);
            }
            Self::SlowClients => {
                let is_late: bool = striker.rng.random();
                let late = Traffic::Delayed(Duration::from_millis(300));
                cluster.front(victim).set(if is_late { late } else { Traffic::Throttled(20_000) });
                return Some(Lasting::Clients);
            }
            Self::Roll => {
                (0..cluster.size()).for_each(|index| _ = cluster.proxy(index).disarm());
                cluster.roll().await;
            }
        }
        None
    }
}

/// Draws what is lost: everything, or what goes one way.
fn lost(striker: &mut Striker) -> Traffic {
    let kinds = [Traffic::Swallowed, Traffic::Dropped(Direction::ToServer), Traffic::Dropped(Direction::ToClient)];
    kinds[striker.rng.random_range(0..kinds.len())]
}

async fn kill(striker: &mut Striker, cluster: &mut Cluster, victim: usize) {
    cluster.kill(victim, Signal::SIGKILL);
    let prefix = format!("{}-", cluster.name(victim));
    let held = orphans(cluster.database().pool(), &prefix).await;
    striker.struck.orphans.push(held);
    // How long it is down is the fault, not a wait for anything.
    sleep(Duration::from_millis(striker.rng.random_range(DOWN_MS))).await;
    // A boot that a cut strikes ends, and nobody would try it again.
    cluster.proxy(victim).disarm();
    cluster.restart(victim).await;
}

async fn end_listeners(cluster: &Cluster) {
    insist("ending listeners", || {
        sqlx::query_scalar::<_, i64>(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE '% listener'",
        )
        .fetch_one(cluster.database().pool())
    })
    .await;
}
