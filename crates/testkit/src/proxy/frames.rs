//! Messages: where one of PostgreSQL ends, and whether a request or an answer ends with it; or whatever arrives together.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Direction, Protocol};

/// What a client sends before it starts up in the clear: requests for encryption, by TLS or GSSAPI.
const ENCRYPTION: [u32; 2] = [80_877_103, 80_877_104];
/// The answer to both.
const REFUSED: &[u8] = b"N";
/// Longer messages are taken for nonsense.
const MOST_BYTES: usize = 1 << 28;
/// How much of a connection to a replica makes one message at most.
const PIECE_BYTES: usize = 16 * 1024;

/// A message. One of PostgreSQL has its length, and its type unless it begins a connection.
pub(super) struct Frame {
    bytes: Vec<u8>,
    protocol: Protocol,
}

impl Frame {
    /// Reads the message that begins a connection, after refusing encryption.
    pub(super) async fn read_first(client: &mut TcpStream) -> Result<Self> {
        loop {
            let frame = Self { bytes: read(client, Vec::new()).await?, protocol: Protocol::Postgres };
            let code = frame.bytes.get(4..8).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes);
            if !code.is_some_and(|code| ENCRYPTION.contains(&code)) {
                return Ok(frame);
            }
            client.write_all(REFUSED).await?;
        }
    }

    /// Reads the next message; `None` when the sender has closed.
    pub(super) async fn read(protocol: Protocol, from: &mut (impl AsyncRead + Unpin)) -> Result<Option<Self>> {
        if protocol == Protocol::Bytes {
            let mut bytes = Vec::with_capacity(PIECE_BYTES);
            let count = from.read_buf(&mut bytes).await?;
            return Ok((count > 0).then_some(Self { bytes, protocol }));
        }
        let mut kind = Vec::with_capacity(64);
        if from.take(1).read_to_end(&mut kind).await? == 0 {
            return Ok(None);
        }
        read(from, kind).await.map(|bytes| Some(Self { bytes, protocol }))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Tells whether the server answers this message of a client, or whether it ends an answer of the server.
    pub(super) fn is_exchange(&self, direction: Direction) -> bool {
        match direction {
            _ if self.protocol == Protocol::Bytes => true,
            Direction::ToServer => matches!(self.bytes.first(), Some(b'Q' | b'S')),
            Direction::ToClient => self.is_ready(),
        }
    }

    /// Tells whether the server says that it waits for requests.
    pub(super) fn is_ready(&self) -> bool {
        self.protocol == Protocol::Postgres && self.bytes.first() == Some(&b'Z')
    }
}

/// Reads a length and what it counts, behind what is there.
async fn read(from: &mut (impl AsyncRead + Unpin), mut frame: Vec<u8>) -> Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let rest = (length as usize).checked_sub(4).filter(|rest| *rest <= MOST_BYTES);
    let rest = rest.ok_or_else(|| Error::new(ErrorKind::InvalidData, "not a message of PostgreSQL"))?;
    frame.extend(length.to_be_bytes());
    let start = frame.len();
    frame.resize(start + rest, 0);
    from.read_exact(&mut frame[start..]).await?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_are_told_apart_by_their_lengths() {
        let mut stream: &[u8] = b"Q\0\0\0\x08BEGIZ\0\0\0\x05I";
        let query = Frame::read(Protocol::Postgres, &mut stream).await.unwrap().unwrap();
        assert_eq!(query.bytes(), b"Q\0\0\0\x08BEGI");
        assert!(query.is_exchange(Direction::ToServer) && !query.is_exchange(Direction::ToClient));
        let ready = Frame::read(Protocol::Postgres, &mut stream).await.unwrap().unwrap();
        assert!(ready.is_ready() && ready.is_exchange(Direction::ToClient));
        assert!(Frame::read(Protocol::Postgres, &mut stream).await.unwrap().is_none());
        let mut nonsense: &[u8] = b"HTTP/1.1 200 OK";
        assert!(Frame::read(Protocol::Postgres, &mut nonsense).await.is_err());
    }
}
