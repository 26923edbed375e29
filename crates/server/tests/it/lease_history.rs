//! A history of leases over replicas that stand still, one of them with a wrong clock: two never hold one at a time.

use switchboard_testkit::{Cluster, LeaseLoad};

use crate::fixtures::cluster;

async fn judge(mut cluster: Cluster, holds: usize) {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let report = LeaseLoad { holds, seed }.run(&mut cluster).await.unwrap();
    println!("{report:?}");
    assert!(report.holds >= holds && report.accepted >= holds, "{report:?}");
    assert!(report.lost > 0 && report.stops > 0 && report.pauses > 0, "faults struck: {report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_never_hold_a_lease_over_three_replicas_and_a_wrong_clock() {
    judge(cluster(3).clock_offset(0, 30).await, 1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_never_hold_a_lease_of_one_process_on_a_file() {
    judge(cluster(1).sqlite().await, 300).await;
}
