//! `streams`: chunks of 200 producers on one replica, and readers that resume on another.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use sqlx::postgres::PgPool;
use switchboard_model::wire::stream::{StreamOpened, StreamRequest};
use switchboard_testkit::Cluster;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use crate::Bench;
use crate::report::{Report, median, quantile};

const PRODUCERS: u32 = 200;
const CHUNKS_PER_SECOND: u64 = 25;
/// How often each producer has a chunk.
const PERIOD: Duration = Duration::from_millis(1_000 / CHUNKS_PER_SECOND);
/// How many chunks each of them writes.
const CHUNKS: u32 = 250;
/// What 40 ms of a model give.
const CHUNK_BYTES: usize = 64;
/// How many readers come back, one after the other, while all of that goes on.
const RESUMES: u32 = 100;
/// What each chunk begins with for a reader.
const CHUNK_EVENT: &[u8] = b"event: chunk";
/// How many chunks a reader has missed: those of a second.
const MISSED: i64 = 25;

pub(crate) async fn measure(bench: &Bench) -> Report {
    let (mut ours, mut yardstick) = (Vec::new(), Vec::new());
    let (mut p50, mut resumed_p50, mut resumed_p99) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.repeats {
        let cluster = bench.cluster(2).await;
        yardstick.push(quantile(&insert(cluster.database().pool()).await, 0.99));
        let (stored, resumed) = load(&cluster).await;
        ours.push(quantile(&stored, 0.99));
        p50.push(median(&stored));
        resumed_p50.push(median(&resumed));
        resumed_p99.push(quantile(&resumed, 0.99));
    }
    let details = json!({
        "producers": PRODUCERS, "chunks_per_second_each": CHUNKS_PER_SECOND, "chunks_each": CHUNKS,
        "chunk_bytes": CHUNK_BYTES, "resumes": RESUMES, "chunks_missed": MISSED,
        "append_p50_ms": {"median": median(&p50), "samples": p50},
        "resume_on_the_other_replica_p50_ms": {"median": median(&resumed_p50), "samples": resumed_p50},
        "resume_on_the_other_replica_p99_ms": {"median": median(&resumed_p99), "samples": resumed_p99},
        "yardstick": "inserting the same chunks at the same rate on one connection, in each statement those that have come",
    });
    Report { bench: "streams", unit: "ms from a chunk to its answer, p99", ours, yardstick, details }
}

/// When a chunk of a producer comes; the producers take turns within a period.
fn due(began: Instant, producer: u32, chunk: u32) -> Instant {
    began + PERIOD * chunk + PERIOD * producer / PRODUCERS
}

fn milliseconds_since(instant: Instant) -> f64 {
    instant.elapsed().as_secs_f64() * 1e3
}

/// Appends on one replica and resumes on the other; returns the times of both in milliseconds.
async fn load(cluster: &Cluster) -> (Vec<f64>, Vec<f64>) {
    let mut streams = Vec::new();
    for _ in 0..PRODUCERS {
        streams.push((cluster.client(0).open_stream(&StreamRequest::default()).await.unwrap(), AtomicI64::new(0)));
    }
    let (here, there) = (address(cluster, 0), address(cluster, 1));
    let key = cluster.key().expose();
    let began = Instant::now() + PERIOD;
    let producers = (0..PRODUCERS).zip(&streams).map(|(number, (stream, stored))| {
        let connection = Connection { host: &here, key };
        produce(connection, stream, stored, (began, number))
    });
    let readers = async {
        let mut times = Vec::new();
        // From the second second on, so that each reader has missed one.
        let first = CHUNKS / 10;
        for resume in 0..RESUMES {
            sleep_until(began + PERIOD * first + PERIOD * (CHUNKS - first) * resume / RESUMES).await;
            let (stream, stored) = &streams[(resume * 7 % PRODUCERS) as usize];
            let after = (stored.load(Ordering::Relaxed) - MISSED).max(0);
            times.push(Connection { host: &there, key }.first_byte(stream, after).await);
        }
        times
    };
    let (stored, resumed) = tokio::join!(join_all(producers), readers);
    (stored.concat(), resumed)
}

fn address(cluster: &Cluster, index: usize) -> String {
    cluster.client(index).base_url().trim_start_matches("http://").to_owned()
}

/// Writes the chunks of one stream as they come, and returns the time from then to the answer of each.
async fn produce(
    connection: Connection<'_>,
    opened: &StreamOpened,
    stored: &AtomicI64,
    (began, number): (Instant, u32),
) -> Vec<f64> {
    let mut stream = connection.open().await;
    let mut times = Vec::new();
    for chunk in 0..CHUNKS {
        let due = due(began, number, chunk);
        sleep_until(due).await;
        let body =
            format!(r#"{{"fence":{},"first":{},"chunks":["{}"]}}"#, opened.fence.0, chunk + 1, "x".repeat(CHUNK_BYTES));
        connection.post(&mut stream, &format!("/api/v1/streams/{}/chunks", opened.stream.id), &body).await;
        stored.store(i64::from(chunk) + 1, Ordering::Relaxed);
        times.push(milliseconds_since(due));
    }
    times
}

/// Requests that cost next to nothing beside those that they measure.
#[derive(Clone, Copy)]
struct Connection<'a> {
    host: &'a str,
    key: &'a str,
}

impl Connection<'_> {
    async fn open(self) -> TcpStream {
        let stream = TcpStream::connect(self.host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends a request that must be answered 200, and reads the answer.
    async fn post(self, stream: &mut TcpStream, path: &str, body: &str) {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.host,
            self.key,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !is_whole(&answer) {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "the server closed a connection");
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
    }

    /// Connects, resumes a stream as events, and returns the milliseconds to its first chunk.
    async fn first_byte(self, opened: &StreamOpened, after: i64) -> f64 {
        let began = Instant::now();
        let mut stream = self.open().await;
        let request = format!(
            "GET /api/v1/streams/{}/chunks HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Accept: text/event-stream\r\nLast-Event-ID: {after}\r\n\r\n",
            opened.stream.id, self.host, self.key
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.windows(CHUNK_EVENT.len()).any(|part| part == CHUNK_EVENT) {
            let count = stream.read_buf(&mut answer).await.unwrap();
            assert!(count > 0, "refused: {}", String::from_utf8_lossy(&answer));
        }
        milliseconds_since(began)
    }
}

/// Tells whether an answer with a length is there to its last byte.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// Inserts the same chunks as they come into a table with the same columns, and returns the time of each in milliseconds.
async fn insert(pool: &PgPool) -> Vec<f64> {
    for statement in [
        "DROP TABLE IF EXISTS public.yardstick",
        "CREATE TABLE public.yardstick (LIKE switchboard.stream_chunks INCLUDING ALL)",
    ] {
        sqlx::query(statement).execute(pool).await.unwrap();
    }
    let streams: Vec<Uuid> = (0..PRODUCERS).map(|_| Uuid::new_v4()).collect();
    let mut connection = pool.acquire().await.unwrap();
    let began = Instant::now() + PERIOD;
    let mut coming = (0..CHUNKS).flat_map(|chunk| (0..PRODUCERS).map(move |producer| (producer, chunk))).peekable();
    let mut times = Vec::new();
    while let Some((producer, chunk)) = coming.peek() {
        sleep_until(due(began, *producer, *chunk)).await;
        let now = Instant::now();
        let (mut ids, mut seqs, mut dues) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((producer, chunk)) = coming.next_if(|(producer, chunk)| due(began, *producer, *chunk) <= now) {
            ids.push(streams[producer as usize]);
            seqs.push(i64::from(chunk) + 1);
            dues.push(due(began, producer, chunk));
        }
        sqlx::query(
            "INSERT INTO public.yardstick (stream_id, seq, data)
             SELECT stream, seq, $3 FROM unnest($1::uuid[], $2::bigint[]) AS given (stream, seq)",
        )
        .bind(ids)
        .bind(seqs)
        .bind(vec![b'x'; CHUNK_BYTES])
        .execute(&mut *connection)
        .await
        .unwrap();
        times.extend(dues.into_iter().map(milliseconds_since));
    }
    times
}
