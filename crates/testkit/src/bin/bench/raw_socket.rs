//! A socket that costs its reader next to nothing: it counts the events that arrive and decodes none.

use switchboard_client::Client;
use switchboard_model::identity::RoomName;
use switchboard_model::ticket::{Grants, RoomPattern};
use switchboard_model::wire::rest::TicketRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Frames below this many bytes are no events but signs of life.
const LEAST_EVENT: usize = 100;

/// How much is read at once.
const BUFFER_BYTES: usize = 4 * 1024;

pub(crate) struct RawSocket {
    stream: TcpStream,
    counter: FrameCounter,
}

impl RawSocket {
    /// Opens a socket of a user and joins rooms at their newest position.
    pub(crate) async fn open(client: &Client, user: &str, rooms: &[RoomName]) -> Self {
        let grants = Grants { join: vec![RoomPattern::new("*")], publish: Vec::new() };
        let request = TicketRequest { user_id: Some(user.parse().unwrap()), origin: None, grants };
        let ticket = client.mint_ticket(&request).await.unwrap();
        let host = client.base_url().trim_start_matches("http://").to_owned();
        let mut stream = TcpStream::connect(&host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let upgrade = format!(
            "GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: switchboard.v1, ticket.{}\r\n\r\n",
            ticket.expose()
        );
        stream.write_all(upgrade.as_bytes()).await.unwrap();
        for (id, room) in (1..).zip(rooms) {
            let join = format!(r#"{{"id":{id},"op":"join","room":"{room}"}}"#);
            stream.write_all(&masked(join.as_bytes())).await.unwrap();
        }
        let mut socket = Self { stream, counter: FrameCounter::default() };
        let answers = (1..=rooms.len()).map(|id| format!(r#"{{"re":{id},"ok""#)).collect::<Vec<_>>();
        socket.read_until(&answers).await;
        socket
    }

    /// Reads until every text has arrived; what comes with it is dropped. Nothing is published meanwhile.
    async fn read_until(&mut self, texts: &[String]) {
        let mut seen = Vec::new();
        let mut buffer = [0_u8; BUFFER_BYTES];
        while !texts.iter().all(|text| contains(&seen, text.as_bytes())) {
            let count = self.stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "refused: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&buffer[..count]);
        }
    }

    /// Waits until events have arrived, and returns how many.
    pub(crate) async fn arrivals(&mut self) -> usize {
        let mut buffer = [0_u8; BUFFER_BYTES];
        loop {
            let count = self.stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "the server closed a socket");
            let events = self.counter.count(&buffer[..count]);
            if events > 0 {
                return events;
            }
        }
    }

    /// Wraps a connection that carries frames without a handshake.
    pub(crate) fn bare(stream: TcpStream) -> Self {
        Self { stream, counter: FrameCounter::default() }
    }
}

pub(crate) fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Makes a text frame of a client; a mask of zeros changes no byte.
fn masked(text: &[u8]) -> Vec<u8> {
    let length = u8::try_from(text.len()).ok().filter(|length| *length < 126).unwrap();
    let mut frame = vec![0x81, 0x80 | length, 0, 0, 0, 0];
    frame.extend_from_slice(text);
    frame
}

/// Makes a text frame of a server.
pub(crate) fn server_frame(text: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x81, 126];
    frame.extend_from_slice(&u16::try_from(text.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(text);
    frame
}

/// Counts the frames of a server that are long enough to be events (RFC 6455, section 5.2).
#[derive(Default)]
struct FrameCounter {
    header: Vec<u8>,
    left: usize,
}

impl FrameCounter {
    fn count(&mut self, mut bytes: &[u8]) -> usize {
        let mut events = 0;
        while !bytes.is_empty() {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            bytes = &bytes[skipped..];
            let Some((first, rest)) = bytes.split_first() else { break };
            self.header.push(*first);
            bytes = rest;
            if let Some(length) = length(&self.header) {
                self.header.clear();
                self.left = length;
                events += usize::from(length >= LEAST_EVENT);
            }
        }
        events
    }
}

/// Reads the length from a header that is complete.
fn length(header: &[u8]) -> Option<usize> {
    match header {
        [_, 126, high, low] => Some(usize::from(u16::from_be_bytes([*high, *low]))),
        [_, 127, rest @ ..] if rest.len() == 8 => {
            Some(usize::try_from(u64::from_be_bytes(rest.try_into().ok()?)).ok()?)
        }
        [_, short] if *short < 126 => Some(usize::from(*short)),
        _ => None,
    }
}
