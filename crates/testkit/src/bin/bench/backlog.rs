//! `backlog`: what a lease costs beside five million ended and one million future runs, and beside none.

use std::time::Instant;

use serde_json::{Map, Value, json};
use sqlx::postgres::PgPool;
use switchboard_model::fire::{MISFIRE_GRACE, plan};
use switchboard_model::identity::PoolName;
use switchboard_model::ids::{InstanceId, TaskId};
use switchboard_model::run::{Ending, Finish};
use switchboard_model::span::Span;
use switchboard_model::task::TaskSpec;
use switchboard_store_api::{LeaseRequest, ScheduleClock, Stores, WorkerKind, WriteContext};
use switchboard_store_pg::{HintTransport, PgOptions};
use switchboard_testkit::{TestDatabase, wait_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::report::{Report, median};
use crate::{Bench, plans, table};

const ENDED: i64 = 5_000_000;
const FUTURE: i64 = 1_000_000;
/// How many leases of one run are timed in each repeat.
const LEASES: usize = 200;

pub(crate) async fn measure(bench: &Bench) -> Report {
    let database = TestDatabase::empty_durable().await;
    let pool = database.pool();
    plans::log_plans(pool).await;
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let options = PgOptions {
        url: database.url().to_owned(),
        direct_url: None,
        pool_size: 4,
        pooled: false,
        notify: HintTransport::Off,
        instance: InstanceId::boot("bench"),
        schedule_clock: ScheduleClock::default(),
    };
    let stores = switchboard_store_pg::open(&options, &tracker, stop.clone()).await.unwrap();
    let task = TaskId::new();
    let spec: TaskSpec =
        serde_json::from_str(r#"{"name": "bench", "action": {"system": {"function": "noop"}}}"#).unwrap();
    stores.tasks.create(&WriteContext::system("bench"), task, &spec).await.unwrap();

    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..bench.repeats {
        alone.push(lease_time(pool, &stores, task).await);
    }
    fill(pool, task).await;
    for _ in 0..bench.repeats {
        beside.push(lease_time(pool, &stores, task).await);
    }
    let details = plans_of(pool, &stores).await;
    stop.cancel();
    tracker.close();
    tracker.wait().await;
    Report { bench: "backlog", unit: "µs/lease", ours: beside, yardstick: alone, details }
}

/// Makes the history and the future.
async fn fill(pool: &PgPool, task: TaskId) {
    sqlx::query(
        "INSERT INTO switchboard.runs
             (id, task_id, state, trigger, pool, priority, run_at, scheduled_for, attempt, max_attempts, fence, leased_by,
              created_at, started_at, finished_at)
         SELECT gen_random_uuid(), $1, 'succeeded', 'schedule', 'default', 0, at, at, 1, 3, n, 'bench', at, at, at
         FROM generate_series(1, $2) AS n, LATERAL (SELECT clock_timestamp() - n * interval '100 milliseconds' AS at) AS t",
    )
    .bind(task.as_uuid())
    .bind(ENDED)
    .execute(pool)
    .await
    .unwrap();
    sqlx::query(
        "INSERT INTO switchboard.runs (id, task_id, state, trigger, pool, priority, run_at, max_attempts, created_at)
         SELECT gen_random_uuid(), $1, 'scheduled', 'manual', 'default', 0,
                clock_timestamp() + interval '1 day' + n * interval '1 second', 3, clock_timestamp()
         FROM generate_series(1, $2) AS n",
    )
    .bind(task.as_uuid())
    .bind(FUTURE)
    .execute(pool)
    .await
    .unwrap();
}

/// Queues runs and leases them one by one; returns the median time of a lease in microseconds.
async fn lease_time(pool: &PgPool, stores: &Stores, task: TaskId) -> f64 {
    sqlx::query("DELETE FROM switchboard.runs WHERE state IN ('queued', 'running')").execute(pool).await.unwrap();
    table::queue(pool, task, i64::try_from(LEASES).unwrap() * 2).await;
    table::settle(pool).await;
    let mut times = Vec::new();
    for _ in 0..LEASES {
        let began = Instant::now();
        let batch = stores.runs.lease(&request(1)).await.unwrap();
        times.push(began.elapsed().as_secs_f64() * 1e6);
        assert_eq!(batch.runs.len(), 1);
    }
    median(&times)
}

fn request(limit: u32) -> LeaseRequest {
    LeaseRequest {
        holder: InstanceId::boot("bench"),
        kind: WorkerKind::Replica,
        pools: vec![PoolName::default_pool()],
        limit,
        lease: Span::from_secs(600),
        request: None,
    }
}

/// The statements of the hot paths.
const STATEMENTS: [&str; 8] = [
    "tasks.due",
    "tasks.lock_due",
    "runs.insert",
    "tasks.advance",
    "runs.lease",
    "runs.finish",
    "runs.lock_expired",
    "runs.promote_due",
];

/// Fires, leases, finishes and recovers once more, and returns the plans.
async fn plans_of(pool: &PgPool, stores: &Stores) -> Value {
    fire_one(stores).await;
    let leased = stores.runs.lease(&request(1)).await.unwrap().runs.remove(0);
    let finish = Finish { id: leased.id, fence: leased.fence, ending: Ending::Succeeded(None) };
    stores.runs.finish(&[finish]).await.unwrap();
    stores.runs.lease(&LeaseRequest { lease: Span::from_millis(1), ..request(1) }).await.unwrap();
    wait_until("a lease to be recovered", async || {
        (stores.runs.recover(500).await.unwrap().requeued > 0).then_some(())
    })
    .await;
    stores.runs.promote(500).await.unwrap();
    let mut found = Map::new();
    for statement in STATEMENTS {
        let plan = plans::latest(pool, statement).await.unwrap_or_default();
        let lines: Vec<&str> = plan.lines().collect();
        found.insert(statement.to_owned(), json!({"buffers": plans::buffers(&plan), "plan": lines}));
    }
    json!({"ended": ENDED, "future": FUTURE, "statements": found})
}

/// Fires a task that is due every second, once.
async fn fire_one(stores: &Stores) {
    let every =
        r#"{"name": "due", "schedule": {"every": {"interval": "1s"}}, "action": {"system": {"function": "noop"}}}"#;
    let spec: TaskSpec = serde_json::from_str(every).unwrap();
    stores.tasks.create(&WriteContext::system("bench"), TaskId::new(), &spec).await.unwrap();
    let due = wait_until("the task to be due", async || {
        let due = stores.tasks.due(500).await.unwrap();
        (!due.tasks.is_empty()).then_some(due)
    })
    .await;
    let plans: Vec<_> = due.tasks.into_iter().map(|task| plan(task, due.now, MISFIRE_GRACE)).collect();
    assert_eq!(stores.tasks.fire(&plans).await.unwrap().fired, 1);
}
