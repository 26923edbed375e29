//! `fanout`: one event to 5,000 sockets of one replica, and what a socket costs that does nothing.

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use serde_json::json;
use switchboard_testkit::raw_socket::{RawSocket, server_frame};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::Bench;
use crate::bus::per_second;
use crate::flood::{create_rooms, event};
use crate::idle::resident_kib;
use crate::report::{Report, median};

/// Each takes a descriptor here and one in the server; the yardstick takes two here.
const SOCKETS: usize = 5_000;
/// How many events are sent, one after the other.
const EVENTS: usize = 30;
/// How many events of one batch are sent, which reach each socket together.
const TOGETHER: usize = 100;
/// How many sockets are opened at the same time.
const OPENING: usize = 64;

pub(crate) async fn measure(bench: &Bench) -> Report {
    let (mut ours, mut yardstick, mut coalesced, mut memory) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.repeats {
        let cluster = bench.cluster(1).env("SWITCHBOARD_SERVER__MAX_CONNECTIONS", "20000").await;
        let client = cluster.client(0);
        let rooms = create_rooms(client, 1).await;
        // The first sockets warm everything up that is made once.
        let users: Vec<String> = (0..SOCKETS).map(|n| format!("user{n}")).collect();
        let open = |user: &String| {
            let (user, rooms) = (user.clone(), &rooms);
            async move { RawSocket::open(client, &user, rooms).await }
        };
        let warm: Vec<RawSocket> = stream::iter(&users[..OPENING]).map(open).buffer_unordered(OPENING).collect().await;
        let process = cluster.process_id(0).unwrap();
        let before = resident_kib(process);
        let mut sockets: Vec<RawSocket> =
            stream::iter(&users[OPENING..]).map(open).buffer_unordered(OPENING).collect().await;
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        memory.push((resident_kib(process) - before) / sockets.len() as f64);
        sockets.extend(warm);

        let began = Instant::now();
        for _ in 0..EVENTS {
            let publish = async { client.publish(&rooms[0], &event()).await.unwrap() };
            tokio::join!(publish, all_receive(&mut sockets, 1));
        }
        ours.push(per_second(EVENTS * SOCKETS, began));
        let batch = vec![event(); TOGETHER];
        let began = Instant::now();
        let publish = async { client.publish_batch(&rooms[0], batch).await.unwrap() };
        tokio::join!(publish, all_receive(&mut sockets, TOGETHER));
        coalesced.push(per_second(TOGETHER * SOCKETS, began));
        drop(sockets);
        drop(cluster);
        yardstick.push(bare().await);
    }
    let details = json!({
        "sockets": SOCKETS, "events": EVENTS, "events_together": TOGETHER,
        "coalesced_deliveries_per_second": {"median": median(&coalesced), "samples": coalesced},
        "resident_kib_of_an_idle_socket": {"median": median(&memory), "samples": memory},
        "yardstick": "writing the same bytes to as many connections, one write each, by the program that reads them",
    });
    Report { bench: "fanout", unit: "deliveries/s, one frame a write", ours, yardstick, details }
}

/// Waits until every socket has got so many events.
async fn all_receive(sockets: &mut [RawSocket], events: usize) {
    join_all(sockets.iter_mut().map(|socket| async move {
        let mut left = events;
        while left > 0 {
            left = left.saturating_sub(socket.arrivals().await);
        }
    }))
    .await;
}

/// Writes a frame of the same length to as many bare connections, and returns the deliveries a second.
async fn bare() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (mut writers, mut readers) = (Vec::new(), Vec::new());
    for _ in 0..SOCKETS {
        let (connected, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let writer = accepted.unwrap().0;
        writer.set_nodelay(true).unwrap();
        writers.push(writer);
        readers.push(RawSocket::bare(connected.unwrap()));
    }
    let text = serde_json::to_vec(&event()).unwrap();
    // What a frame carries beside its payload: room, time, message id and position.
    let frame = server_frame(&[text, vec![b' '; 160]].concat());
    let began = Instant::now();
    for _ in 0..EVENTS {
        let write = async {
            for writer in &mut writers {
                writer.write_all(&frame).await.unwrap();
            }
        };
        tokio::join!(write, all_receive(&mut readers, 1));
    }
    per_second(EVENTS * SOCKETS, began)
}
