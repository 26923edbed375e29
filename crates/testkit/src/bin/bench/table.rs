//! Rows by the hundred thousand: filling the tables of the product and of the yardstick, and settling them.

use sqlx::postgres::PgPool;
use switchboard_client::Client;
use switchboard_model::ids::TaskId;
use switchboard_model::task::TaskSpec;

/// Creates a task that does nothing when it is triggered.
pub(crate) async fn idle_task(client: &Client) -> TaskId {
    let spec: TaskSpec =
        serde_json::from_str(r#"{"name": "bench", "action": {"system": {"function": "noop"}}}"#).unwrap();
    client.create_task(&spec).await.unwrap().id
}

/// Queues `count` runs of a task, as triggers would, with increasing identities.
pub(crate) async fn queue(pool: &PgPool, task: TaskId, count: i64) {
    sqlx::query(
        "INSERT INTO switchboard.runs
             (id, task_id, state, trigger, pool, priority, run_at, max_attempts, created_at)
         SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, $1, 'queued', 'manual', 'default', 0,
                clock_timestamp(), 3, clock_timestamp()
         FROM generate_series(1, $2) AS n",
    )
    .bind(task.as_uuid())
    .bind(count)
    .execute(pool)
    .await
    .unwrap();
}

/// Makes the table of the yardstick: the columns of runs, and only the indexes that the work needs.
pub(crate) async fn make_yardstick(pool: &PgPool) {
    for statement in [
        "CREATE TABLE public.yardstick (LIKE switchboard.runs INCLUDING DEFAULTS INCLUDING STORAGE) WITH (fillfactor = 80)",
        "ALTER TABLE public.yardstick ADD PRIMARY KEY (id)",
        "CREATE INDEX yardstick_ready ON public.yardstick (pool, priority, run_at, id) WHERE state = 'queued'",
    ] {
        sqlx::query(statement).execute(pool).await.unwrap();
    }
}

/// Fills the table of the yardstick with as many queued rows.
pub(crate) async fn queue_yardstick(pool: &PgPool, count: i64) {
    for statement in ["TRUNCATE public.yardstick"] {
        sqlx::query(statement).execute(pool).await.unwrap();
    }
    sqlx::query(
        "INSERT INTO public.yardstick
             (id, task_id, state, trigger, pool, priority, run_at, max_attempts, created_at)
         SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
                '01900000-0000-7000-8000-000000000000', 'queued', 'manual', 'default', 0, clock_timestamp(), 3,
                clock_timestamp()
         FROM generate_series(1, $1) AS n",
    )
    .bind(count)
    .execute(pool)
    .await
    .unwrap();
}

/// Brings the statistics up to date and the pages to the disk, so that neither disturbs what is measured.
pub(crate) async fn settle(pool: &PgPool) {
    sqlx::query("VACUUM ANALYZE").execute(pool).await.unwrap();
    sqlx::query("CHECKPOINT").execute(pool).await.unwrap();
}

/// Leases and finishes all rows of the yardstick, 500 a round, and returns the seconds that it took.
pub(crate) async fn drain_yardstick(pool: &PgPool) -> f64 {
    let mut connection = pool.acquire().await.unwrap();
    let began = std::time::Instant::now();
    loop {
        let leased: Vec<uuid::Uuid> = sqlx::query_scalar(
            "WITH picked AS MATERIALIZED (
                 SELECT id FROM public.yardstick WHERE state = 'queued' AND pool = 'default'
                 ORDER BY priority, run_at, id LIMIT 500 FOR UPDATE SKIP LOCKED
             )
             UPDATE public.yardstick
             SET state = 'running', attempt = attempt + 1, leased_by = 'bench', started_at = clock_timestamp(),
                 lease_until = clock_timestamp() + interval '15 seconds'
             WHERE id = ANY (ARRAY (SELECT id FROM picked)) RETURNING id",
        )
        .fetch_all(&mut *connection)
        .await
        .unwrap();
        if leased.is_empty() {
            return began.elapsed().as_secs_f64();
        }
        sqlx::query(
            "UPDATE public.yardstick SET state = 'succeeded', finished_at = clock_timestamp(), lease_until = NULL
             WHERE id = ANY ($1)",
        )
        .bind(leased)
        .execute(&mut *connection)
        .await
        .unwrap();
    }
}
