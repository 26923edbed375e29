//! Leases: no two hold one at the same time, beside holders and replicas that stand still for longer than their leases,
//! one of them with a wrong clock.

use std::path::Path;

use switchboard_testkit::{Cluster, LeaseLoad};
use tokio::time::Instant;

const REPLICAS: usize = 3;

/// By how many minutes the clock of one replica is wrong.
const SKEW: i32 = 30;

/// Puts the load on a cluster, prints what it saw, and tells whether every holder was alone.
pub(crate) async fn soak(server: &Path, holds: usize, seed: u64) -> bool {
    println!("seed {seed}");
    let mut cluster = Cluster::start(REPLICAS).binary(server).clock_offset(0, SKEW).await;
    let began = Instant::now();
    match (LeaseLoad { holds, seed }).run(&mut cluster).await {
        Ok(report) => {
            println!(
                "{} holds in {:.1} s, {} of them seized, {} lost; {} writes accepted, none of a holder refused, {} of those that \
                 had lost their lease refused; {} pauses of holders, {} of replicas",
                report.holds,
                began.elapsed().as_secs_f64(),
                report.seized,
                report.lost,
                report.accepted,
                report.refused,
                report.pauses,
                report.stops
            );
            true
        }
        Err(faults) => {
            println!("{faults}");
            false
        }
    }
}
