//! Realtime: every client sees every event of its rooms once and in order, for minutes, beside cut sockets, killed
//! replicas and lost listeners; with NOTIFY and without.

use std::path::Path;
use std::time::Duration;

use switchboard_testkit::{BusLoad, Cluster};

use crate::milliseconds;

const REPLICAS: usize = 3;

/// Puts the load on two clusters, one after the other, prints what it saw, and tells whether nothing was lost.
pub(crate) async fn soak(server: &Path, minutes: u64, seed: u64) -> bool {
    println!("seed {seed}");
    let load = BusLoad {
        clients: 200,
        rooms: 50,
        rooms_per_client: 5,
        rate: 500,
        duration: Duration::from_secs(minutes * 60),
        seed,
    };
    let mut is_whole = true;
    for (name, is_polling) in [("with NOTIFY", false), ("without NOTIFY", true)] {
        let unlimited = "1000000/1s";
        let cluster = Cluster::start(REPLICAS).binary(server).env("SWITCHBOARD_LIMITS__REQUESTS", unlimited);
        let mut cluster = if is_polling { cluster.polling().await } else { cluster.await };
        match load.run(&mut cluster).await {
            Ok(report) => {
                let [median, most, longest] = report.delays.map(milliseconds);
                println!(
                    "{name}: {} published, {} delivered, nothing lost, doubled or out of order; {} sockets cut, {} replicas \
                     killed, {} listeners ended; delay with replays: median {median} ms, p99 {most} ms, longest {longest} ms",
                    report.published, report.delivered, report.cuts, report.kills, report.lost_listeners
                );
            }
            Err(faults) => {
                println!("{name}: {faults}");
                is_whole = false;
            }
        }
    }
    is_whole
}
