//! A socket that costs its reader next to nothing: it counts the events that arrive and decodes none, and it reads nothing
//! unless it is asked to, so that it can be as slow as it likes.

use switchboard_client::Client;
use switchboard_model::identity::RoomName;
use switchboard_model::ticket::{Grants, RoomPattern};
use switchboard_model::wire::op::{ClientFrame, ClientOp, Join};
use switchboard_model::wire::rest::TicketRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::must::Must as _;

/// Frames below this many bytes are no events but signs of life.
const LEAST_EVENT: usize = 100;

/// How much is read at once.
const BUFFER_BYTES: usize = 4 * 1024;

/// Opcodes (RFC 6455, section 5.2).
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;

/// The answer of a client to a ping: masked and empty.
const PONG: [u8; 6] = [0x8a, 0x80, 0, 0, 0, 0];

/// A connection on which whole frames of a server arrive.
#[derive(Debug)]
pub struct RawSocket {
    stream: TcpStream,
    counter: FrameCounter,
    /// What was read and not given out.
    unread: Vec<u8>,
}

impl RawSocket {
    /// Opens a socket of a user and joins rooms at their newest position. Nothing may be published meanwhile.
    ///
    /// # Panics
    /// Panics when it is refused.
    pub async fn open(client: &Client, user: &str, rooms: &[RoomName]) -> Self {
        let stream = TcpStream::connect(host(client)).await.must("connecting");
        stream.set_nodelay(true).must("sending at once");
        let mut socket = Self::bare(stream);
        socket.shake_hands(client, user).await;
        for (id, room) in (1..).zip(rooms) {
            socket.join(id, Join { room: room.clone(), since: Default::default(), presence: false }).await;
        }
        socket
    }

    /// Opens a socket of a user whose side of the network holds next to nothing, joins a room and returns the answer.
    ///
    /// # Panics
    /// Panics when it is refused.
    pub async fn open_narrow(client: &Client, user: &str, join: Join) -> (Self, String) {
        let address = host(client).parse().must("an address");
        let narrow = TcpSocket::new_v4().must("making a socket");
        narrow.set_recv_buffer_size(8 * 1024).must("narrowing a socket");
        let mut socket = Self::bare(narrow.connect(address).await.must("connecting"));
        socket.shake_hands(client, user).await;
        let answer = socket.join(1, join).await;
        (socket, answer)
    }

    /// Wraps a connection that carries frames without a handshake.
    #[must_use]
    pub fn bare(stream: TcpStream) -> Self {
        Self { stream, counter: FrameCounter::default(), unread: Vec::new() }
    }

    async fn shake_hands(&mut self, client: &Client, user: &str) {
        let grants = Grants { join: vec![RoomPattern::new("*")], publish: Vec::new() };
        let request = TicketRequest { user_id: Some(user.parse().must("a user id")), origin: None, grants };
        let ticket = client.mint_ticket(&request).await.must("minting a ticket");
        let upgrade = format!(
            "GET /ws HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: switchboard.v1, ticket.{}\r\n\r\n",
            host(client),
            ticket.expose()
        );
        self.stream.write_all(upgrade.as_bytes()).await.must("asking for a socket");
        let end = loop {
            if let Some(at) = self.unread.windows(4).position(|part| part == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(self.fill().await, "no socket: {}", String::from_utf8_lossy(&self.unread));
        };
        let head: Vec<u8> = self.unread.drain(..end).collect();
        assert!(head.starts_with(b"HTTP/1.1 101 "), "refused: {}", String::from_utf8_lossy(&head));
    }

    /// Joins a room and returns the answer.
    async fn join(&mut self, id: u64, join: Join) -> String {
        let frame = ClientFrame { id, op: ClientOp::Join(join) }.to_text().must("writing a frame");
        self.stream.write_all(&masked(frame.as_bytes())).await.must("joining a room");
        let (start, good) = (format!(r#"{{"re":{id},"#), format!(r#"{{"re":{id},"ok""#));
        loop {
            let Some(text) = self.next_text().await else { panic!("closed before the answer") };
            if text.starts_with(&start) {
                assert!(text.starts_with(&good), "refused: {text}");
                return text;
            }
        }
    }

    /// Waits for bytes; `false` at the end of the connection.
    async fn fill(&mut self) -> bool {
        let mut buffer = [0_u8; BUFFER_BYTES];
        let count = self.stream.read(&mut buffer).await.unwrap_or(0);
        self.unread.extend_from_slice(&buffer[..count]);
        count > 0
    }

    /// Waits for the next text frame, answering pings meanwhile; `None` when the server closes the socket or the connection ends.
    pub async fn next_text(&mut self) -> Option<String> {
        loop {
            while let Some((opcode, start, end)) = first_frame(&self.unread) {
                let frame: Vec<u8> = self.unread.drain(..end).collect();
                match opcode {
                    TEXT => return Some(String::from_utf8_lossy(&frame[start..]).into_owned()),
                    CLOSE => return None,
                    // Whoever has gone is found out by the next read.
                    PING => _ = self.stream.write_all(&PONG).await,
                    _ => {}
                }
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// Waits until events have arrived, and returns how many.
    ///
    /// # Panics
    /// Panics when the connection ends.
    pub async fn arrivals(&mut self) -> usize {
        let waiting = std::mem::take(&mut self.unread);
        let events = self.counter.count(&waiting);
        if events > 0 {
            return events;
        }
        let mut buffer = [0_u8; BUFFER_BYTES];
        loop {
            let count = self.stream.read(&mut buffer).await.must("reading from a socket");
            assert!(count > 0, "the server closed a socket");
            let events = self.counter.count(&buffer[..count]);
            if events > 0 {
                return events;
            }
        }
    }
}

fn host(client: &Client) -> &str {
    client.base_url().trim_start_matches("http://")
}

/// Makes a text frame of a client; a mask of zeros changes no byte.
fn masked(text: &[u8]) -> Vec<u8> {
    let mut frame = match u8::try_from(text.len()) {
        Ok(short) if short < 126 => vec![0x81, 0x80 | short],
        _ => {
            let length = u16::try_from(text.len()).must("a frame of less than 64 KiB");
            [&[0x81, 0x80 | 126], length.to_be_bytes().as_slice()].concat()
        }
    };
    frame.extend([0; 4]);
    frame.extend_from_slice(text);
    frame
}

/// Makes a text frame of a server.
///
/// # Panics
/// Panics for one of 64 KiB and more.
#[must_use]
pub fn server_frame(text: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x81, 126];
    frame.extend_from_slice(&u16::try_from(text.len()).must("a frame of less than 64 KiB").to_be_bytes());
    frame.extend_from_slice(text);
    frame
}

/// Finds the first frame of a server: its opcode, and where its payload and it itself end.
fn first_frame(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let header = (2..=10).find(|header| bytes.get(..*header).and_then(length).is_some())?;
    let end = header + bytes.get(..header).and_then(length)?;
    (bytes.len() >= end).then(|| (bytes[0] & 0x0f, header, end))
}

/// Counts the frames of a server that are long enough to be events (RFC 6455, section 5.2).
#[derive(Debug, Default)]
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
