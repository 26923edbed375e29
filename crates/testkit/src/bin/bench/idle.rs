//! `idle`: what 100,000 scheduled tasks cost while none is due, and how fast a replica boots on SQLite.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::postgres::PgPool;
use switchboard_testkit::Cluster;

use crate::Bench;
use crate::report::{Report, median};

const TASKS: i64 = 100_000;
/// How long each sample is watched.
const WATCH: Duration = Duration::from_secs(60);

pub(crate) async fn measure(bench: &Bench) -> Report {
    let mut boots = Vec::new();
    for _ in 0..bench.repeats {
        let began = Instant::now();
        let cluster = Cluster::start(1).binary(&bench.server).sqlite().await;
        boots.push(began.elapsed().as_secs_f64() * 1e3);
        drop(cluster);
    }
    let cluster = bench.cluster(1).await;
    let pool = cluster.database().pool();
    sqlx::query(
        r#"INSERT INTO switchboard.tasks (id, name, spec, has_schedule, is_active, next_run_at, created_at, updated_at)
           SELECT gen_random_uuid(), 'bench-' || n,
                  '{"name":"bench-' || n || '","schedule":{"cron":{"expression":"0 3 1 1 *"}},"action":{"system":{"function":"noop"}}}',
                  true, true, clock_timestamp() + interval '90 days' + n * interval '1 second', clock_timestamp(),
                  clock_timestamp()
           FROM generate_series(1, $1) AS n"#,
    )
    .bind(TASKS)
    .execute(pool)
    .await
    .unwrap();
    crate::table::settle(pool).await;
    let (mut statements, mut wal) = (Vec::new(), Vec::new());
    for _ in 0..bench.repeats {
        let before = usage(pool).await;
        let began = Instant::now();
        // The time is what is measured: how much happens while nothing is due.
        tokio::time::sleep(WATCH).await;
        let (after, seconds) = (usage(pool).await, began.elapsed().as_secs_f64());
        statements.push((after.0 - before.0) / seconds);
        wal.push((after.1 - before.1) / seconds * 600.0 / 1024.0);
    }
    let details = json!({
        "tasks": TASKS, "watched_seconds": WATCH.as_secs(),
        "wal_kib_in_10_minutes": {"median": median(&wal), "samples": wal},
        "resident_mib": resident_kib(cluster.process_id(0).unwrap()) / 1024.0,
        "boot_to_ready_on_sqlite_ms": {"median": median(&boots), "samples": boots},
        "yardstick": "one statement a second",
    });
    let yardstick = vec![1.0; statements.len()];
    Report { bench: "idle", unit: "transactions/s of one replica", ours: statements, yardstick, details }
}

/// Returns the transactions and the bytes of WAL so far; what asking costs is in it.
async fn usage(pool: &PgPool) -> (f64, f64) {
    sqlx::query_as(
        "SELECT (xact_commit + xact_rollback)::float8, (pg_current_wal_lsn() - '0/0'::pg_lsn)::float8
         FROM pg_stat_database WHERE datname = current_database()",
    )
    .fetch_one(pool)
    .await
    .unwrap()
}

/// Returns the memory that a process has resident, in KiB.
pub(crate) fn resident_kib(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
