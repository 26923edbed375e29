//! RFC 6455 on the wire: frames as bytes, against a real server. What is allowed is answered, and what is not ends
//! the connection with the code of the RFC.

use std::time::Duration;

use switchboard_model::page::PageRequest;
use switchboard_model::ticket::Grants;
use switchboard_model::wire::limits::{HEARTBEAT, MESSAGE_BYTES, PONG_WAIT};
use switchboard_testkit::{Cluster, Eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::fixtures::cluster;

/// Long enough for anything that happens at all.
const LONG: Duration = Duration::from_secs(60);

const FIN: u8 = 0x80;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Writes the frame of a client: masked, with the shortest length.
fn frame(head: u8, payload: &[u8]) -> Vec<u8> {
    let length = match payload.len() {
        short @ 0..=125 => vec![u8::try_from(short).unwrap()],
        long => match u16::try_from(long) {
            Ok(long) => [&[126], long.to_be_bytes().as_slice()].concat(),
            Err(_) => [&[127], (long as u64).to_be_bytes().as_slice()].concat(),
        },
    };
    with_length(head, &length, payload)
}

/// Writes a masked frame whose length is said in these bytes, whatever it is.
fn with_length(head: u8, length: &[u8], payload: &[u8]) -> Vec<u8> {
    let mask = [0x12, 0x34, 0x56, 0x78];
    let mut frame = vec![head, length[0] | 0x80];
    frame.extend(&length[1..]);
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
    frame
}

fn text(payload: &[u8]) -> Vec<u8> {
    frame(FIN | TEXT, payload)
}

/// What the server sent.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    opcode: u8,
    payload: Vec<u8>,
}

/// A socket of which every byte is seen.
struct Raw(TcpStream);

impl Raw {
    /// Opens a socket and takes the server's first frame.
    async fn open(cluster: &Cluster) -> Self {
        let url = cluster.base_urls().remove(0);
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let ticket = cluster.ticket_for("ann", Grants::default()).await;
        let mut raw = Self(TcpStream::connect(address).await.unwrap());
        let request = format!(
            "GET /ws?ticket={} HTTP/1.1\r\nhost: {address}\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
            ticket.expose()
        );
        raw.send(request.as_bytes()).await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(raw.0.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let hello = raw.next().await.unwrap();
        assert!(hello.payload.starts_with(br#"{"op":"hello""#), "{hello:?}");
        raw
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Reads a frame; `None` at the end of the connection.
    async fn next(&mut self) -> Option<Received> {
        timeout(LONG, self.read()).await.unwrap()
    }

    async fn read(&mut self) -> Option<Received> {
        let head = self.0.read_u8().await.ok()?;
        assert_eq!(head & 0xf0, FIN, "the server sends whole frames without reserved bits");
        let length = match self.0.read_u8().await.ok()? {
            126 => u64::from(self.0.read_u16().await.ok()?),
            127 => self.0.read_u64().await.ok()?,
            short => {
                assert!(short < 126, "the server does not mask");
                u64::from(short)
            }
        };
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut payload).await.ok()?;
        Some(Received { opcode: head & 0x0f, payload })
    }

    /// Reads on until the close frame and returns its code.
    async fn close_code(&mut self) -> Option<u16> {
        loop {
            let received = self.next().await.unwrap();
            if received.opcode == CLOSE {
                return Some(u16::from_be_bytes(received.payload.get(..2)?.try_into().unwrap()));
            }
        }
    }

    /// Reads on until the answer to an operation.
    async fn answer(&mut self, id: u32) -> String {
        let start = format!(r#"{{"re":{id},"#);
        loop {
            let received = self.next().await.unwrap();
            let text = String::from_utf8(received.payload).unwrap();
            assert_ne!(received.opcode, CLOSE, "closed: {text}");
            if text.starts_with(&start) {
                return text;
            }
        }
    }
}

/// The bytes of a close frame.
fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(FIN | CLOSE, &[&code.to_be_bytes(), reason].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_the_protocol_ends_with_its_code() {
    let cluster = cluster(1).sqlite().await;
    let unmasked = [FIN | TEXT, 4, b't', b'e', b'x', b't'].to_vec();
    let cases: Vec<(&str, Vec<u8>, u16)> = vec![
        ("an unmasked frame", unmasked, 1002),
        ("a frame with RSV1", frame(FIN | 0x40 | TEXT, b"x"), 1002),
        ("a frame with RSV2", frame(FIN | 0x20 | TEXT, b"x"), 1002),
        ("a frame with RSV3", frame(FIN | 0x10 | TEXT, b"x"), 1002),
        ("an unknown data frame", frame(FIN | 3, b"x"), 1002),
        ("an unknown control frame", frame(FIN | 11, b"x"), 1002),
        ("a ping in fragments", frame(PING, b"x"), 1002),
        ("a close in fragments", frame(CLOSE, &1000_u16.to_be_bytes()), 1002),
        ("a ping that is too long", frame(FIN | PING, &[b'x'; 126]), 1002),
        ("a continuation of nothing", frame(FIN | CONTINUATION, b"x"), 1002),
        ("a second start", [frame(TEXT, b"{"), text(b"}")].concat(), 1002),
        ("a length with the highest bit", with_length(FIN | TEXT, &[&[127], [0xff; 8].as_slice()].concat(), b""), 1009),
        ("bad UTF-8", text(b"\"\xff\""), 1007),
        ("a surrogate in UTF-8", text(b"\"\xed\xa0\x80\""), 1007),
        ("an overlong form", text(b"\"\xc0\xaf\""), 1007),
        ("half a character", text(b"\"\xf0\x9f\x98"), 1007),
        ("bad UTF-8 over fragments", [frame(TEXT, b"\"\xf0\x9f"), frame(FIN | CONTINUATION, b"\"")].concat(), 1007),
        ("bytes", frame(FIN | BINARY, b"x"), 1003),
        ("a frame above the limit", text(&vec![b' '; MESSAGE_BYTES + 1]), 1009),
        (
            "a message above the limit",
            [frame(TEXT, &[b' '; 40_000]), frame(FIN | CONTINUATION, &[b' '; 40_000])].concat(),
            1009,
        ),
        ("an announcement of 2^62 bytes", with_length(FIN | TEXT, &[127, 0x40, 0, 0, 0, 0, 0, 0, 0], b""), 1009),
        ("a close with half a code", frame(FIN | CLOSE, &[3]), 1002),
        ("a close with a code of nobody", close(999, b""), 1002),
        ("a close with a code that is never sent", close(1005, b""), 1002),
        ("a close with a reason in bad UTF-8", close(1000, b"\xff"), 1007),
    ];
    for (what, bytes, code) in cases {
        let mut raw = Raw::open(&cluster).await;
        raw.send(&bytes).await;
        assert_eq!(raw.close_code().await, Some(code), "{what}");
    }
    let mut raw = Raw::open(&cluster).await;
    raw.send(&text(br#"{"id":1,"op":"ping"}"#)).await;
    raw.answer(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_protocol_allows_is_answered() {
    let cluster = cluster(1).sqlite().await;
    let mut raw = Raw::open(&cluster).await;
    // A character in two fragments, with a ping between them.
    raw.send(&frame(TEXT, b"{\"id\":1,\"op\":\"leave\",\"room\":\"\xf0\x9f")).await;
    raw.send(&frame(FIN | PING, b"between")).await;
    let pong = raw.next().await.unwrap();
    assert_eq!(pong, Received { opcode: PONG, payload: b"between".to_vec() });
    raw.send(&frame(CONTINUATION, b"")).await;
    raw.send(&frame(FIN | CONTINUATION, b"\x98\x80\"}")).await;
    assert!(raw.answer(1).await.contains("bad_request"));
    raw.send(&frame(FIN | PONG, b"that nobody asked for")).await;
    // The largest message, whose length needs 64 bits.
    let mut largest = br#"{"id":2,"op":"ping"}"#.to_vec();
    largest.resize(MESSAGE_BYTES, b' ');
    raw.send(&text(&largest)).await;
    raw.answer(2).await;
    // A frame byte by byte.
    for byte in text(br#"{"id":3,"op":"ping"}"#) {
        raw.send(&[byte]).await;
    }
    raw.answer(3).await;
    raw.send(&close(1000, b"bye")).await;
    assert_eq!(raw.close_code().await, Some(1000));
    assert_eq!(raw.next().await, None, "the server ends the connection");

    let mut raw = Raw::open(&cluster).await;
    raw.send(&frame(FIN | CLOSE, b"")).await;
    assert_eq!(raw.close_code().await, None, "a close without a code is answered by one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_fragments_cost_no_more_than_a_message() {
    let cluster = cluster(1).sqlite().await;
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", cluster.process_id(0).unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    // Once for what is made once.
    flood(&cluster, &frame(CONTINUATION, b" ")).await;
    let before = resident();
    for fragment in [frame(CONTINUATION, b" "), frame(CONTINUATION, b"")] {
        flood(&cluster, &fragment).await;
    }
    let grown_kib = resident().saturating_sub(before);
    assert!(grown_kib < 16 * 1024, "{grown_kib} KiB");
}

/// Begins a message and sends a million times the same, until the server ends the connection with 1009; it serves others
/// afterwards.
async fn flood(cluster: &Cluster, fragment: &[u8]) {
    let mut raw = Raw::open(cluster).await;
    let (mut reader, mut writer) = raw.0.into_split();
    let some = fragment.repeat(1_000);
    let flood = async {
        writer.write_all(&frame(TEXT, b" ")).await?;
        for _ in 0..1_000 {
            writer.write_all(&some).await?;
        }
        Ok::<_, std::io::Error>(())
    };
    let mut sent: Vec<u8> = Vec::new();
    // The server stops reading at the limit, and the rest is refused by the network.
    let (_, read) = tokio::join!(flood, async {
        let mut found = false;
        while !found {
            let mut buffer = [0; 1024];
            let count = timeout(LONG, reader.read(&mut buffer)).await.unwrap()?;
            sent.extend(&buffer[..count]);
            found = count == 0 || sent.windows(2).any(|window| window == 1009_u16.to_be_bytes());
        }
        Ok::<_, std::io::Error>(())
    });
    read.unwrap();
    assert!(sent.windows(2).any(|window| window == 1009_u16.to_be_bytes()), "{sent:?}");
    raw = Raw::open(cluster).await;
    raw.send(&text(br#"{"id":1,"op":"ping"}"#)).await;
    raw.answer(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_socket_is_gone_in_time() {
    let cluster = cluster(1).sqlite().await;
    let silent = Raw::open(&cluster).await;
    let open = async || cluster.any().list_sessions(None, PageRequest::default()).await.unwrap().items.len();
    assert_eq!(open().await, 1);
    let in_time = HEARTBEAT.to_std() + PONG_WAIT.to_std() + Duration::from_secs(5);
    Eventually::new("the end of the silent socket")
        .within(in_time)
        .holds(async || match open().await {
            0 => Ok(()),
            open => Err(open),
        })
        .await;
    drop(silent);
}
