//! `fire`: how late runs start when 1,000 tasks are due within one second, and how long 10,000 at one instant take, on
//! three replicas.

use serde_json::json;
use sqlx::postgres::PgPool;
use switchboard_testkit::{Cluster, Eventually};

use crate::report::{Report, median, quantile};
use crate::{Bench, table};

const SPREAD: i64 = 1_000;
const AT_ONCE: i64 = 10_000;

pub(crate) async fn measure(bench: &Bench) -> Report {
    let (mut lags, mut all_started, mut yardstick) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.repeats {
        let cluster = bench.cluster(3).env("SWITCHBOARD_SCHEDULER__PERMITS", "200").await;
        let pool = cluster.database().pool();
        table::make_yardstick(pool).await;
        lags.push(quantile(&fired(&cluster, SPREAD, "1 millisecond").await, 0.99) * 1e3);
        let at_once = fired(&cluster, AT_ONCE, "0 seconds").await;
        all_started.push(at_once.iter().copied().fold(0.0, f64::max));
        yardstick.push(insert_and_lease(pool).await * 1e3);
    }
    let details = json!({
        "replicas": 3, "tasks_in_one_second": SPREAD, "tasks_at_one_instant": AT_ONCE,
        "seconds_until_all_of_them_started": {"median": median(&all_started), "samples": all_started},
        "yardstick": "inserts and leases 1,000 rows by two batched statements, in all",
    });
    Report { bench: "fire", unit: "ms start lag, p99", ours: lags, yardstick, details }
}

/// Arms `count` tasks that are due `spacing` apart, beginning in three seconds; returns how late each run started, in
/// seconds.
async fn fired(cluster: &Cluster, count: i64, spacing: &str) -> Vec<f64> {
    let pool = cluster.database().pool();
    sqlx::query("DELETE FROM switchboard.tasks WHERE name LIKE 'bench-%'").execute(pool).await.unwrap();
    sqlx::query("DELETE FROM switchboard.runs").execute(pool).await.unwrap();
    sqlx::query(
        r#"INSERT INTO switchboard.tasks
               (id, name, spec, has_schedule, is_active, next_run_at, created_at, updated_at)
           SELECT gen_random_uuid(), 'bench-' || n,
                  json_build_object('name', 'bench-' || n, 'schedule', json_build_object('at', to_json(at)),
                                    'action', json_build_object('system', json_build_object('function', 'noop')))::text,
                  true, true, at, at, at
           FROM (SELECT clock_timestamp() + interval '3 seconds' AS start) AS t, generate_series(1, $1) AS n,
                LATERAL (SELECT start + n * $2::text::interval AS at) AS due"#,
    )
    .bind(count)
    .bind(spacing)
    .execute(pool)
    .await
    .unwrap();
    sqlx::query("ANALYZE switchboard.tasks").execute(pool).await.unwrap();
    let ended = "every run to have ended";
    Eventually::new(ended)
        .holds(async || {
            let ended: i64 = sqlx::query_scalar("SELECT count(*) FROM switchboard.runs WHERE state = 'succeeded' AND task_id IN (SELECT id FROM switchboard.tasks WHERE name LIKE 'bench-%')")
                .fetch_one(pool)
                .await?;
            anyhow::ensure!(ended == count, "{ended} of {count}");
            Ok(())
        })
        .await;
    sqlx::query_scalar(
        "SELECT extract(epoch FROM started_at - scheduled_for)::float8 FROM switchboard.runs
         WHERE task_id IN (SELECT id FROM switchboard.tasks WHERE name LIKE 'bench-%')",
    )
    .fetch_all(pool)
    .await
    .unwrap()
}

/// Inserts and leases as many rows as are due in the second; returns the seconds that it took.
async fn insert_and_lease(pool: &PgPool) -> f64 {
    let began = std::time::Instant::now();
    table::queue_yardstick(pool, SPREAD).await;
    sqlx::query("UPDATE public.yardstick SET state = 'running', started_at = clock_timestamp() WHERE state = 'queued'")
        .execute(pool)
        .await
        .unwrap();
    began.elapsed().as_secs_f64()
}
