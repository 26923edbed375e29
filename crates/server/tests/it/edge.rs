//! The listener of a real process: what a connection may cost, and how connections end when a replica stops.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use switchboard_testkit::{Cluster, Signal, wait_until};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::fixtures::cluster;

/// Long enough for anything that happens at all.
const LONG: Duration = Duration::from_secs(60);

const PROBE: &str = "GET /healthz/live HTTP/1.1\r\nhost: a\r\n\r\n";

/// A connection without the second tries of an HTTP client.
struct Connection(BufReader<TcpStream>);

/// What came back.
#[derive(Debug)]
struct Answer {
    status: u16,
    /// Whether the server ends the connection after this.
    is_last: bool,
}

impl Connection {
    async fn open(cluster: &Cluster, index: usize) -> Self {
        let urls = cluster.base_urls();
        let address = urls[index].trim_start_matches("http://").trim_end_matches('/');
        Self(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    async fn send(&mut self, text: &str) -> io::Result<()> {
        self.0.get_mut().write_all(text.as_bytes()).await
    }

    /// Reads one answer; the end of the connection instead of one is an error.
    async fn answer(&mut self) -> io::Result<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if self.0.read_until(b'\n', &mut head).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let length = header("content-length: ").map_or(0, |length| length.parse().unwrap());
        self.0.read_exact(&mut vec![0; length]).await?;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ok(Answer { status, is_last: header("connection: ") == Some("close") })
    }

    async fn ask(&mut self, text: &str) -> io::Result<Answer> {
        self.send(text).await?;
        self.answer().await
    }

    /// Waits for the end of the connection and tells whether it was a peaceful one.
    async fn end(&mut self) -> io::Result<()> {
        let mut rest = Vec::new();
        timeout(LONG, self.0.read_to_end(&mut rest)).await.unwrap().map(drop)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_its_head_slowly_is_cut_off() {
    // A head that comes at once has many times as long as it needs.
    let cluster = cluster(1).sqlite().env("SWITCHBOARD_SERVER__HEADER_TIMEOUT", "5s").await;
    let mut silent = Connection::open(&cluster, 0).await;
    let mut slow = Connection::open(&cluster, 0).await;
    let trickle = async {
        // A head that never ends.
        for byte in PROBE.trim_end().bytes().chain(std::iter::repeat(b'a')) {
            // A byte a second would do; this one is faster and too slow all the same.
            sleep(Duration::from_millis(100)).await;
            if slow.0.get_mut().write_all(&[byte]).await.is_err() || matches!(slow.0.read_u8().now(), Some(Err(_))) {
                return;
            }
        }
    };
    timeout(LONG, trickle).await.unwrap();
    let _ = silent.end().await;
    assert_eq!(Connection::open(&cluster, 0).await.ask(PROBE).await.unwrap().status, 200);
}

/// Looks at a future once.
trait Now: Future + Sized {
    fn now(self) -> Option<Self::Output> {
        futures_util::FutureExt::now_or_never(self)
    }
}

impl<F: Future> Now for F {}

#[tokio::test(flavor = "multi_thread")]
async fn heads_and_addresses_are_bounded() {
    let cluster = cluster(1).sqlite().await;
    let many: String = (0..101).map(|n| format!("x-{n}: 1\r\n")).collect();
    let cases = [
        (format!("GET /healthz/live HTTP/1.1\r\nhost: a\r\n{many}\r\n"), 431),
        (format!("GET /healthz/live HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(32 * 1024)), 431),
        (format!("GET /healthz/live?{} HTTP/1.1\r\nhost: a\r\n\r\n", "x".repeat(9 * 1024)), 414),
        ("GET /healthz/live\r\n\r\n".to_owned(), 400),
    ];
    for (request, status) in cases {
        let mut connection = Connection::open(&cluster, 0).await;
        assert_eq!(connection.ask(&request).await.unwrap().status, status, "{:.60}", request);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_answered_with_a_timeout() {
    let cluster = cluster(1).sqlite().env("SWITCHBOARD_SERVER__REQUEST_TIMEOUT", "3s").await;
    let mut connection = Connection::open(&cluster, 0).await;
    let head = "POST /api/v1/rooms HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 100\r\n";
    let request = format!("{head}authorization: Bearer {}\r\n\r\n{{", cluster.key().expose());
    let answer = timeout(LONG, connection.ask(&request)).await.unwrap().unwrap();
    assert_eq!(answer.status, 408);
    let _ = connection.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_above_the_limit_wait_for_their_turn() {
    // The client that waited for the boot may hold one.
    let cluster = cluster(1).sqlite().env("SWITCHBOARD_SERVER__MAX_CONNECTIONS", "2").await;
    let held = [Connection::open(&cluster, 0).await, Connection::open(&cluster, 0).await];
    let mut surplus = Connection::open(&cluster, 0).await;
    wait_until("the warning", async || cluster.logs(0).contains("new connections wait").then_some(())).await;
    drop(held);
    assert_eq!(timeout(LONG, surplus.ask(PROBE)).await.unwrap().unwrap().status, 200);
    drop(surplus);
    let ask = async || {
        let mut connection = Connection::open(&cluster, 0).await;
        let last = PROBE.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
        timeout(LONG, connection.ask(&last)).await.unwrap().unwrap()
    };
    for answer in join_all((0..20).map(|_| ask())).await {
        assert_eq!(answer.status, 200);
    }
}

/// Asks over one connection again and again until the server ends it, and counts the answers.
///
/// # Errors
/// Fails when a request that was sent is not answered.
async fn load(mut connection: Connection, pause: Duration, answers: Arc<AtomicUsize>) -> io::Result<()> {
    loop {
        let answer = connection.ask(PROBE).await?;
        assert_eq!(answer.status, 200);
        answers.fetch_add(1, Ordering::SeqCst);
        if answer.is_last {
            return connection.end().await;
        }
        sleep(pause).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_on_a_kept_connection_fails_when_a_replica_stops() {
    let mut cluster = cluster(1).sqlite().await;
    let mut idle = Connection::open(&cluster, 0).await;
    assert!(!idle.ask(PROBE).await.unwrap().is_last);
    let (mut busy, mut answers) = (Vec::new(), Vec::new());
    for pause in 0..40 {
        let counted = Arc::new(AtomicUsize::new(0));
        answers.push(Arc::clone(&counted));
        busy.push(load(Connection::open(&cluster, 0).await, Duration::from_millis(pause), counted));
    }
    let busy = tokio_util::task::TaskTracker::new().spawn(join_all(busy));
    wait_until("load on every connection", async || {
        let counts: Vec<_> = answers.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        if counts.iter().all(|count| *count > 10) { Ok(()) } else { Err(counts) }
    })
    .await;
    cluster.kill(0, Signal::SIGTERM);
    for answered in timeout(LONG, busy).await.unwrap().unwrap() {
        answered.expect("every request is answered");
    }
    idle.end().await.expect("an idle connection is not reset");
    assert!(cluster.ended(0).await.success());
}
