//! `tax`: what the hints of the bus cost the commits of another application on the same server.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use sqlx::postgres::PgPool;
use switchboard_testkit::ClusterBuilder;
use switchboard_testkit::raw_socket::RawSocket;
use tokio::time::{Instant, interval};

use crate::Bench;
use crate::flood::{create_rooms, publish_steadily};
use crate::report::{Report, median, quantile};

/// How many events travel each second.
const EVENTS_PER_SECOND: u32 = 5_000;
/// How many rows the application inserts each second, over its connections.
const INSERTS_PER_SECOND: u32 = 400;
const CONNECTIONS: u32 = 4;
const ROOMS: usize = 8;
/// How long each sample is watched.
const WATCH: Duration = Duration::from_secs(20);

pub(crate) async fn measure(bench: &Bench) -> Report {
    let (mut ours, mut yardstick, mut medians) = (Vec::new(), Vec::new(), Vec::new());
    let mut usage = Vec::new();
    for _ in 0..bench.repeats {
        let (with, queue) = watch(bench.cluster(2)).await;
        let (without, _) = watch(bench.cluster(2).polling()).await;
        ours.push(quantile(&with, 0.99));
        yardstick.push(quantile(&without, 0.99));
        medians.push(median(&with) / median(&without));
        usage.push(queue);
    }
    let details = json!({
        "events_per_second": EVENTS_PER_SECOND, "inserts_per_second": INSERTS_PER_SECOND, "watched_seconds": WATCH.as_secs(),
        "ratio_of_medians": {"median": median(&medians), "samples": medians},
        "notification_queue_usage": {"median": median(&usage), "samples": usage},
        "yardstick": "the same with realtime.hints = off",
    });
    Report { bench: "tax", unit: "ms of a commit of another application, p99", ours, yardstick, details }
}

/// Times the commits of the application beside the bus; returns how full the queue of notifications was, too.
async fn watch(cluster: ClusterBuilder) -> (Vec<f64>, f64) {
    let cluster = cluster.await;
    let pool = cluster.database().pool();
    let rooms = create_rooms(cluster.client(0), ROOMS).await;
    let mut socket = RawSocket::open(cluster.client(1), "reader", &rooms).await;
    sqlx::query("CREATE TABLE public.application (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz)")
        .execute(pool)
        .await
        .unwrap();
    let end = Instant::now() + WATCH;
    let application = join_all((0..CONNECTIONS).map(|_| insert(pool, end)));
    let bus = publish_steadily(cluster.client(0), &rooms, EVENTS_PER_SECOND, end);
    let read = async {
        // What is left when the time is over is not waited for.
        let reading = async {
            loop {
                socket.arrivals().await;
            }
        };
        let _: Result<(), _> = tokio::time::timeout_at(end, reading).await;
    };
    let (times, (), ()) = tokio::join!(application, bus, read);
    let usage = sqlx::query_scalar("SELECT pg_notification_queue_usage()").fetch_one(pool).await.unwrap();
    (times.concat(), usage)
}

/// Inserts rows at a steady rate until `end`, and returns the time of each commit in milliseconds.
async fn insert(pool: &PgPool, end: Instant) -> Vec<f64> {
    let mut connection = pool.acquire().await.unwrap();
    let mut clock = interval(Duration::from_secs(1) * CONNECTIONS / INSERTS_PER_SECOND);
    let mut times = Vec::new();
    while Instant::now() < end {
        clock.tick().await;
        let began = Instant::now();
        sqlx::query("INSERT INTO public.application (at) VALUES (clock_timestamp())")
            .execute(&mut *connection)
            .await
            .unwrap();
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times
}
