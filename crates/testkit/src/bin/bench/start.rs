//! `start`: how long after a trigger over HTTP the action begins, on an idle replica.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::postgres::PgPool;
use switchboard_model::task::TaskSpec;
use switchboard_model::wire::rest::TriggerRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::Bench;
use crate::report::{Report, median, quantile};

/// How many triggers are timed in each repeat.
const TRIGGERS: usize = 100;

pub(crate) async fn measure(bench: &Bench) -> Report {
    let (mut p50, mut p99, mut two_commits) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.repeats {
        let cluster = bench.cluster(1).env("SWITCHBOARD_OUTBOUND__ALLOW", "127.0.0.1/32").await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let spec: TaskSpec =
            serde_json::from_value(json!({"name": "bench", "action": {"http": {"url": url}}})).unwrap();
        let client = cluster.client(0);
        let task = client.create_task(&spec).await.unwrap().id;
        let request = TriggerRequest::default();
        let mut times = Vec::new();
        for _ in 0..TRIGGERS {
            let began = Instant::now();
            let (triggered, begun) = tokio::join!(client.trigger_task(task, &request), begin(&listener, began));
            triggered.unwrap();
            times.push(begun.as_secs_f64() * 1e3);
        }
        p50.push(median(&times));
        p99.push(quantile(&times, 0.99));
        two_commits.push(commits(cluster.database().pool(), 2).await);
    }
    let above: Vec<f64> = p50.iter().zip(&two_commits).map(|(ours, commits)| ours - commits).collect();
    let details = json!({
        "triggers": TRIGGERS,
        "p99_ms": {"median": median(&p99), "samples": p99},
        "p50_above_two_commits_ms": {"median": median(&above), "samples": above},
        "yardstick": "the median time of two one-row commits, one after the other, on one connection",
    });
    Report { bench: "start", unit: "ms from request to action, p50", ours: p50, yardstick: two_commits, details }
}

/// Takes one request, tells how long after `began` it came, and answers it.
async fn begin(listener: &TcpListener, began: Instant) -> Duration {
    let (mut stream, _) = listener.accept().await.unwrap();
    let took = began.elapsed();
    let mut head = [0_u8; 4096];
    let _ = stream.read(&mut head).await.unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await.unwrap();
    took
}

/// Returns the median time of so many commits of one row each, one after the other, in milliseconds.
pub(crate) async fn commits(pool: &PgPool, count: usize) -> f64 {
    sqlx::query("CREATE TABLE IF NOT EXISTS public.commits (id bigint GENERATED ALWAYS AS IDENTITY, at timestamptz)")
        .execute(pool)
        .await
        .unwrap();
    let mut connection = pool.acquire().await.unwrap();
    let mut times = Vec::new();
    for _ in 0..TRIGGERS {
        let began = Instant::now();
        for _ in 0..count {
            sqlx::query("INSERT INTO public.commits (at) VALUES (clock_timestamp())")
                .execute(&mut *connection)
                .await
                .unwrap();
        }
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    median(&times)
}
