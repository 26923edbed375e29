//! `bus`: durable events from 64 publishers on one replica to a socket on another, and one event at a time when idle.

use serde_json::json;
use sqlx::postgres::PgPool;
use switchboard_client::Client;
use switchboard_model::identity::RoomName;
use switchboard_testkit::raw_socket::RawSocket;
use tokio::time::Instant;

use crate::Bench;
use crate::flood::{Flood, PAYLOAD_BYTES, create_rooms, event};
use crate::report::{Report, median, quantile};
use crate::start::commits;

const ROOMS: usize = 8;
const FLOOD: Flood = Flood { publishers: 64, requests: 50, events_per_request: 16 };
/// How many rows one statement of the yardstick inserts.
const ROWS: usize = 512;
/// How many events are timed while nothing else happens.
const IDLE_EVENTS: usize = 200;

pub(crate) async fn measure(bench: &Bench) -> Report {
    let (mut ours, mut yardstick) = (Vec::new(), Vec::new());
    let (mut single, mut p50, mut p99, mut above) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.repeats {
        let cluster = bench.cluster(2).await;
        let (here, there) = (cluster.client(0), cluster.client(1));
        let rooms = create_rooms(here, ROOMS).await;
        let mut socket = RawSocket::open(there, "reader", &rooms).await;
        let mut idle = Vec::new();
        for _ in 0..IDLE_EVENTS {
            let began = Instant::now();
            let publish = async { here.publish(&rooms[0], &event()).await.unwrap() };
            let arrive = async {
                socket.arrivals().await;
                began.elapsed().as_secs_f64() * 1e3
            };
            idle.push(tokio::join!(publish, arrive).1);
        }
        p50.push(median(&idle));
        p99.push(quantile(&idle, 0.99));
        above.push(median(&idle) - commits(cluster.database().pool(), 1).await);
        yardstick.push(insert(cluster.database().pool(), FLOOD.events()).await);
        ours.push(flood(here, &rooms, &mut socket, FLOOD).await);
        single.push(flood(here, &rooms, &mut socket, Flood { events_per_request: 1, ..FLOOD }).await);
    }
    let details = json!({
        "publishers": FLOOD.publishers, "events_per_request": FLOOD.events_per_request, "rooms": ROOMS,
        "payload_bytes": PAYLOAD_BYTES, "events": FLOOD.events(),
        "one_event_a_request_per_second": {"median": median(&single), "samples": single},
        "idle_p50_ms": {"median": median(&p50), "samples": p50},
        "idle_p99_ms": {"median": median(&p99), "samples": p99},
        "idle_p50_above_one_commit_ms": {"median": median(&above), "samples": above},
        "yardstick": format!("inserting {ROWS} rows of the same width by each statement, on one connection"),
    });
    Report { bench: "bus", unit: "events/s from replica to replica", ours, yardstick, details }
}

/// Publishes on one replica and returns how many events a second arrive on the other.
async fn flood(client: &Client, rooms: &[RoomName], socket: &mut RawSocket, flood: Flood) -> f64 {
    let began = Instant::now();
    let arrive = async {
        let mut left = flood.events();
        while left > 0 {
            left = left.saturating_sub(socket.arrivals().await);
        }
    };
    tokio::join!(flood.publish(client, rooms), arrive);
    per_second(flood.events(), began)
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) fn per_second(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

/// Inserts as many events into a table with the same columns, and returns how many a second.
async fn insert(pool: &PgPool, events: usize) -> f64 {
    for statement in [
        "DROP TABLE IF EXISTS public.yardstick",
        "CREATE TABLE public.yardstick (LIKE switchboard.room_events INCLUDING ALL)",
    ] {
        sqlx::query(statement).execute(pool).await.unwrap();
    }
    let payload = event().payload.as_str().to_owned();
    let mut connection = pool.acquire().await.unwrap();
    let began = Instant::now();
    for first in (0..events).step_by(ROWS) {
        let rows = ROWS.min(events - first);
        sqlx::query(
            "INSERT INTO public.yardstick (room_id, pos, msg_id, event, payload, sender, bytes_total, at)
             SELECT '01900000-0000-7000-8000-000000000000', pos, gen_random_uuid()::text, 'bench', $3, 'key:bench', pos,
                    clock_timestamp()
             FROM generate_series($1, $2) AS pos",
        )
        .bind(i64::try_from(first).unwrap())
        .bind(i64::try_from(first + rows - 1).unwrap())
        .bind(&payload)
        .execute(&mut *connection)
        .await
        .unwrap();
    }
    per_second(events, began)
}
