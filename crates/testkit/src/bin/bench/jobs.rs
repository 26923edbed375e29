//! `jobs`: one replica drains 100,000 queued runs that do nothing, and keeps their history.

use std::time::Duration;

use serde_json::json;
use switchboard_model::setting::{FleetSettings, Versioned};
use switchboard_testkit::{Cluster, wait_until};

use crate::report::Report;
use crate::{Bench, table};

const JOBS: i64 = 100_000;
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
const JOBS_F: f64 = JOBS as f64;

pub(crate) async fn measure(bench: &Bench) -> Report {
    let (mut ours, mut yardstick) = (Vec::new(), Vec::new());
    for _ in 0..bench.repeats {
        // A database of its own for each repeat, so that none inherits the dead rows of another.
        let cluster = bench.cluster(1).env("SWITCHBOARD_SCHEDULER__PERMITS", "1000").await;
        let pool = cluster.database().pool();
        set_paused(&cluster, true).await;
        table::make_yardstick(pool).await;
        table::queue_yardstick(pool, JOBS).await;
        let task = table::idle_task(cluster.client(0)).await;
        table::queue(pool, task, JOBS).await;
        table::settle(pool).await;
        yardstick.push(JOBS_F / table::drain_yardstick(pool).await);
        table::settle(pool).await;
        ours.push(JOBS_F / drain(&cluster).await);
    }
    Report {
        bench: "jobs",
        unit: "jobs/s",
        ours,
        yardstick,
        details: json!({"jobs": JOBS, "replicas": 1, "permits": 1000}),
    }
}

async fn set_paused(cluster: &Cluster, pause_all: bool) {
    let client = cluster.client(0);
    let version = client.fleet_settings().await.unwrap().version;
    let value = FleetSettings { pause_all, ..FleetSettings::default() };
    client.put_fleet_settings(&Versioned { version, value }).await.unwrap();
}

/// Lets the replica work; returns the seconds between its first lease and its last end.
async fn drain(cluster: &Cluster) -> f64 {
    let pool = cluster.database().pool();
    set_paused(cluster, false).await;
    wait_until("the runs to be drained", async || {
        // Looking costs the server milliseconds, and how late it is seen does not count.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let left: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT FROM switchboard.runs WHERE state IN ('queued', 'running') LIMIT 1) AS left_over",
        )
        .fetch_one(pool)
        .await?;
        anyhow::ensure!(left == 0, "not yet");
        Ok(())
    })
    .await;
    let (succeeded, seconds): (i64, f64) = sqlx::query_as(
        "SELECT count(*) FILTER (WHERE state = 'succeeded'),
                extract(epoch FROM max(finished_at) - min(started_at))::float8
         FROM switchboard.runs WHERE trigger = 'manual'",
    )
    .fetch_one(pool)
    .await
    .unwrap();
    assert_eq!(succeeded, JOBS, "every run succeeded once");
    seconds
}
