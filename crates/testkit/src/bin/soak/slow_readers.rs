//! Slow readers: 500 sockets that read nothing for minutes cost bounded memory and nobody else's time, and when they read
//! again they miss nothing.

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use switchboard_client::Client;
use switchboard_model::json_text::JsonText;
use switchboard_model::room::{Epoch, Position, Retention, RoomKind};
use switchboard_model::wire::frame::{Joined, ServerFrame};
use switchboard_model::wire::op::{Join, Since, SinceEnd};
use switchboard_model::wire::rest::{PublishRequest, RoomRequest};
use switchboard_testkit::Cluster;
use switchboard_testkit::raw_socket::RawSocket;
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};

use crate::milliseconds;

const SLOW: usize = 500;
const QUICK: usize = 20;
/// How many sockets are opened or read again at the same time.
const AT_ONCE: usize = 50;
const PAYLOAD_BYTES: usize = 8 * 1024;
/// How many events a second there are while all read, and for as long when the slow ones have stopped.
const RATE: u32 = 10;
const AT_THAT_RATE: Duration = Duration::from_secs(30);
/// How often there is an event after that, when nobody waits for the slow ones any more.
const LATER: Duration = Duration::from_secs(1);
/// The most memory of the server for each socket that does not read, in KiB.
const MOST_KIB: f64 = 1_024.0;
/// The most by which the others may be delayed.
const MOST_RATIO: f64 = 1.2;
/// How long a socket that reads again may be silent.
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures on one replica, prints what it saw, and tells whether the bounds held.
pub(crate) async fn soak(server: &Path, minutes: u64) -> bool {
    let cluster = Cluster::start(1).binary(server).env("SWITCHBOARD_SERVER__MAX_CONNECTIONS", "5000").await;
    let client = cluster.client(0);
    let retention = Retention { max_count: 1_000_000, max_bytes: i64::from(u32::MAX), ..Retention::default() };
    let room = RoomRequest { name: "lobby".parse().unwrap(), kind: RoomKind::Public, retention };
    client.create_room(&room).await.unwrap();
    let open = async |number: usize| Reader::open(client, number, Since::End(SinceEnd::Latest)).await;
    let mut slow: Vec<Reader> = stream::iter(0..SLOW).map(open).buffer_unordered(AT_ONCE).collect().await;
    let mut quick: Vec<Reader> = stream::iter(SLOW..SLOW + QUICK).map(open).buffer_unordered(AT_ONCE).collect().await;

    // Before anything was published: memory that is free again stays with the process and would hide what comes later.
    let process = cluster.process_id(0).unwrap();
    let idle = resident_kib(process);
    let began = Instant::now();
    let publisher = Publisher { client, began };
    let end = Instant::now() + AT_THAT_RATE;
    let (published, ..) = tokio::join!(
        publisher.publish(0, end, Duration::from_secs(1) / RATE),
        join_all(quick.iter_mut().map(|reader| reader.read_to(end, began))),
        join_all(slow.iter_mut().map(|reader| reader.read_to(end, began))),
    );
    let before = p99(quick.iter_mut().flat_map(|reader| std::mem::take(&mut reader.delays)).collect());

    let mut most = 0.0_f64;
    let (turn, end) =
        (Instant::now() + AT_THAT_RATE, Instant::now() + Duration::from_secs(minutes * 60).max(AT_THAT_RATE));
    let publishing = async {
        let published = publisher.publish(published, turn, Duration::from_secs(1) / RATE).await;
        publisher.publish(published, end, LATER).await
    };
    let watching = async {
        while Instant::now() < end {
            most = most.max(resident_kib(process));
            sleep(Duration::from_millis(200)).await;
        }
    };
    let (published, _, ()) =
        tokio::join!(publishing, join_all(quick.iter_mut().map(|reader| reader.read_to(end, began))), watching);
    let beside = p99(quick.iter_mut().flat_map(|reader| std::mem::take(&mut reader.delays)).collect());
    // Whatever else has grown counts as theirs.
    let each = (most - idle).max(0.0) / SLOW as f64;
    println!("{SLOW} sockets read nothing for {minutes} min: at most {each:.0} KiB of memory each");
    println!(
        "the others, p99: {before:.1} ms while all read, {beside:.1} ms beside those; ratio {:.2}",
        beside / before
    );

    let started = Instant::now();
    let readers = stream::iter(&mut slow).map(|reader| reader.catch_up(client, published));
    let resumed: u64 = readers.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await.into_iter().sum();
    println!(
        "they read again: each of {published} events once and in order, after {:.1} s; {resumed} sockets had been given up",
        started.elapsed().as_secs_f64()
    );
    each <= MOST_KIB && beside <= MOST_RATIO * before
}

/// Publishes events that say when they were published.
struct Publisher<'a> {
    client: &'a Client,
    began: Instant,
}

impl Publisher<'_> {
    /// Goes on until `end`, and returns how many events there are then, of which `published` were there before.
    async fn publish(&self, mut published: i64, end: Instant, period: Duration) -> i64 {
        let room = "lobby".parse().unwrap();
        let mut clock = interval(period);
        while Instant::now() < end {
            clock.tick().await;
            let text = format!("\"{}:{}\"", self.began.elapsed().as_micros(), "x".repeat(PAYLOAD_BYTES));
            let payload = JsonText::parse(text).unwrap();
            let event = PublishRequest { event: "soak".parse().unwrap(), payload, msg_id: None, ephemeral: false };
            self.client.publish(&room, &event).await.unwrap();
            published += 1;
        }
        published
    }
}

/// A socket, and how far it has read.
struct Reader {
    socket: RawSocket,
    user: String,
    epoch: Epoch,
    seen: i64,
    /// In milliseconds.
    delays: Vec<f64>,
}

impl Reader {
    async fn open(client: &Client, number: usize, since: Since) -> Self {
        let user = format!("user{number}");
        let join = Join { room: "lobby".parse().unwrap(), since, presence: false };
        let (socket, answer) = RawSocket::open_narrow(client, &user, join).await;
        let Ok(ServerFrame::Reply(reply)) = ServerFrame::parse(&answer) else { panic!("no answer: {answer}") };
        let joined: Joined = reply.ok.unwrap().decode().unwrap();
        assert!(joined.recovered, "{answer}");
        Self { socket, user, epoch: joined.epoch, seen: joined.offset, delays: Vec::new() }
    }

    /// Reads until `end`, and notes how long each event was under way.
    async fn read_to(&mut self, end: Instant, began: Instant) {
        while let Ok(text) = timeout_at(end, self.socket.next_text()).await {
            let text = text.unwrap_or_else(|| panic!("{} was closed while it read", self.user));
            if self.take(&text) {
                let sent: u64 =
                    text.split_once("\"payload\":\"").unwrap().1.split_once(':').unwrap().0.parse().unwrap();
                self.delays.push(milliseconds(began.elapsed().saturating_sub(Duration::from_micros(sent))));
            }
        }
    }

    /// Takes a frame; an event must be the next one.
    fn take(&mut self, text: &str) -> bool {
        assert!(!text.contains(r#""op":"desync""#), "{} lost its position: {text}", self.user);
        // It stands after the payload, which is long.
        let Some(at) = text.rfind(r#""offset":"#).filter(|_| text.starts_with(r#"{"event""#)) else { return false };
        let digits = text[at + 9..].split(|letter: char| !letter.is_ascii_digit()).next().unwrap();
        let offset: i64 = digits.parse().unwrap();
        assert_eq!(offset, self.seen + 1, "{} missed or repeats something", self.user);
        self.seen = offset;
        true
    }

    /// Reads all that there is, over another socket when this one was closed; returns how often that was so.
    async fn catch_up(&mut self, client: &Client, published: i64) -> u64 {
        let mut resumed = 0;
        while self.seen < published {
            match timeout(PATIENCE, self.socket.next_text()).await.unwrap() {
                Some(text) => _ = self.take(&text),
                None => {
                    let number = self.user.trim_start_matches("user").parse().unwrap();
                    let position = Position { epoch: self.epoch.clone(), offset: self.seen };
                    *self = Self::open(client, number, Since::Position(position)).await;
                    resumed += 1;
                }
            }
        }
        resumed
    }
}

fn p99(mut delays: Vec<f64>) -> f64 {
    assert!(!delays.is_empty(), "nothing has arrived");
    delays.sort_unstable_by(f64::total_cmp);
    delays[delays.len() * 99 / 100]
}

/// Reads how much memory a process has.
fn resident_kib(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
