//! A replica that does exactly what a test tells it to.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use switchboard_client::{Client, ClientOptions};
use switchboard_model::identity::{RoomName, UserId};
use switchboard_model::ids::{ConnectionId, InstanceId};
use switchboard_model::json_text::JsonText;
use switchboard_model::room::Epoch;
use switchboard_model::wire::frame::{EventFrame, Hello, HelloLimits, Joined, NoticeFrame, ReplyError, ReplyFrame};
use switchboard_model::wire::op::{ClientFrame, ClientOp, Since};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::header::SEC_WEBSOCKET_PROTOCOL;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

/// Listens for connections.
pub(crate) struct FakeReplica {
    listener: TcpListener,
}

impl FakeReplica {
    pub(crate) async fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listener.local_addr().unwrap())
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(ClientOptions { base_url: self.url(), credential: None }).unwrap()
    }

    /// Takes the next connection and says hello.
    #[expect(clippy::result_large_err, reason = "the signature is that of the library")]
    pub(crate) async fn accept(&self) -> FakeSocket {
        let (stream, _) = patient(self.listener.accept()).await.unwrap();
        let echo = |_: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
            response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, "switchboard.v1".parse().unwrap());
            Ok(response)
        };
        let mut socket = FakeSocket(accept_hdr_async(stream, echo).await.unwrap());
        socket.notice(&hello()).await;
        socket
    }
}

fn hello() -> NoticeFrame {
    NoticeFrame::Hello(Hello {
        conn_id: ConnectionId::new(),
        user_id: "ann".parse::<UserId>().unwrap(),
        instance: InstanceId::boot("fake"),
        heartbeat_ms: 20_000,
        limits: HelloLimits { message_bytes: 65_536, payload_bytes: 61_440, rooms: 200, ops_per_second: 100 },
        pending_calls: Vec::new(),
    })
}

/// The server side of one connection.
pub(crate) struct FakeSocket(WebSocketStream<TcpStream>);

impl FakeSocket {
    pub(crate) async fn notice(&mut self, notice: &NoticeFrame) {
        self.send(serde_json::to_string(notice).unwrap()).await;
    }

    /// Sends the stored event with this offset, in the history `e-1`.
    pub(crate) async fn event(&mut self, name: &RoomName, offset: i64) {
        self.send(serde_json::to_string(&event(name, offset)).unwrap()).await;
    }

    /// Waits for the next operation, other than answers to pings.
    pub(crate) async fn op(&mut self) -> ClientFrame {
        loop {
            let message = patient(self.0.next()).await.expect("an operation").unwrap();
            if let Message::Text(text) = message {
                return ClientFrame::parse(&text).unwrap();
            }
        }
    }

    pub(crate) async fn reply(&mut self, re: u64, ok: &impl serde::Serialize) {
        let frame = ReplyFrame { re, ok: Some(JsonText::encode(ok).unwrap()), error: None };
        self.send(serde_json::to_string(&frame).unwrap()).await;
    }

    pub(crate) async fn refuse(&mut self, re: u64, error: ReplyError) {
        let frame = ReplyFrame { re, ok: None, error: Some(error) };
        self.send(serde_json::to_string(&frame).unwrap()).await;
    }

    /// Waits for the join of a room, answers it and returns what was asked for.
    pub(crate) async fn joined(&mut self, name: &RoomName, offset: i64, recovered: bool, replayed: i64) -> Since {
        let frame = self.op().await;
        let ClientOp::Join(join) = frame.op else { panic!("a join was due: {frame:?}") };
        assert_eq!(join.room, *name);
        self.reply(frame.id, &Joined { epoch: epoch(), offset, recovered, replayed }).await;
        join.since
    }

    pub(crate) async fn close(mut self, code: u16) {
        let frame = CloseFrame { code: code.into(), reason: "as told".into() };
        self.0.close(Some(frame)).await.unwrap();
        // Until the client has answered.
        while let Some(Ok(_)) = self.0.next().await {}
    }

    async fn send(&mut self, text: String) {
        self.0.send(Message::text(text)).await.unwrap();
    }
}

pub(crate) fn event(name: &RoomName, offset: i64) -> EventFrame {
    EventFrame {
        event: "tick".parse().unwrap(),
        room: name.clone(),
        payload: JsonText::null(),
        ts: 0,
        msg_id: offset.to_string(),
        offset: Some(offset),
        epoch: Some(epoch()),
    }
}

pub(crate) fn epoch() -> Epoch {
    Epoch::new("e", "1")
}

pub(crate) fn room(name: &str) -> RoomName {
    name.parse().unwrap()
}

/// Ends a test that would wait for ever.
pub(crate) async fn patient<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("nothing happened for 30 s")
}
