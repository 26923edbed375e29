//! The short forms of chaos, of rollouts and of crashes of the database; `cargo xtask chaos` and `soak` run the long ones.

use std::path::Path;
use std::time::Duration;

use switchboard_testkit::{Chaos, Restarts, Rolling};

use crate::fixtures::cluster;

#[tokio::test(flavor = "multi_thread")]
async fn all_ledgers_balance_after_mixed_faults() {
    let chaos = Chaos { duration: Duration::from_secs(25), seed: 7 };
    let report = chaos.run(Path::new(env!("CARGO_BIN_EXE_switchboard"))).await;
    assert!(report.violations.is_empty(), "{report}");
    assert!(report.faults.values().sum::<u64>() > 0, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_notices_a_rolling_replace() {
    let mut cluster = Rolling::cluster(cluster(3)).await;
    let report = Rolling { sockets: 100, streams: 10, rounds: 1 }.run(&mut cluster).await;
    assert!(report.violations.is_empty(), "{report}");
    assert!(report.answered > 0, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_outlive_crashes_of_their_database() {
    let mut cluster = cluster(3).own_server().await;
    let report = Restarts { count: 2, period: Duration::ZERO }.run(&mut cluster).await;
    assert!(report.violations.is_empty(), "{report}");
    assert!(report.alive > 0, "{report}");
}
