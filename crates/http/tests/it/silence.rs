//! Heartbeats, on a paused clock. The socket runs through memory: a network would need time that this
//! clock does not see.

use axum::serve::Listener;
use futures_util::StreamExt as _;
use switchboard_model::wire::close::CloseCode;
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};
use tokio_util::task::TaskTracker;

use crate::harness::Replica;

/// Accepts pipes instead of connections.
struct Pipes(mpsc::Receiver<DuplexStream>);

impl Listener for Pipes {
    type Io = DuplexStream;
    type Addr = ();

    async fn accept(&mut self) -> (DuplexStream, ()) {
        match self.0.recv().await {
            Some(pipe) => (pipe, ()),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Opens a socket of a new replica, then stops the clock: from here on time passes when nothing else happens.
async fn open() -> (Replica, WebSocketStream<DuplexStream>) {
    let replica = Replica::boot().await;
    let (pipes, accepted) = mpsc::channel(1);
    let server = axum::serve(Pipes(accepted), replica.router.clone());
    TaskTracker::new().spawn(replica.stop.clone().run_until_cancelled_owned(server.into_future()));
    let minted = replica.ask("POST", "/api/v1/ws/ticket", r#"{"user_id":"ann"}"#).await.json();
    let (near, far) = tokio::io::duplex(64 * 1024);
    pipes.send(far).await.unwrap();
    let address = format!("ws://replica/ws?ticket={}", minted["ticket"].as_str().unwrap());
    let (mut socket, _) = client_async(address, near).await.unwrap();
    let hello = socket.next().await.unwrap().unwrap();
    assert!(hello.to_text().unwrap().contains(r#""op":"hello""#));
    tokio::time::pause();
    (replica, socket)
}

fn is_ping_of_the_application(message: &Message) -> bool {
    matches!(message, Message::Text(text) if text.contains(r#""op":"ping""#))
}

#[tokio::test]
async fn silence_is_asked_about_and_then_ended() {
    let (replica, socket) = open().await;
    // Below the protocol nothing answers by itself.
    let mut pipe = socket.into_inner();
    let mut sent = Vec::new();
    pipe.read_to_end(&mut sent).await.unwrap();
    let count = |part: &[u8]| sent.windows(part.len()).filter(|window| *window == part).count();
    assert_eq!((count(br#"{"op":"ping"}"#), count(b"\x89\x00")), (1, 1), "one ping of either kind");
    let close = [b"\x88\x09".as_slice(), &CloseCode::NoPong.number().to_be_bytes(), b"no pong"].concat();
    assert!(sent.ends_with(&close), "{sent:?}");
    replica.api.tracker.close();
    replica.api.tracker.wait().await;
    assert_eq!(replica.api.hub.session_count(), 0);
}

#[tokio::test]
async fn whoever_answers_pings_stays() {
    let (replica, mut socket) = open().await;
    let mut pings = 0;
    while pings < 5 {
        // Reading answers the ping of the protocol; that of the application goes unanswered.
        let message = socket.next().await.unwrap().unwrap();
        assert!(!message.is_close(), "{message}");
        pings += u32::from(is_ping_of_the_application(&message));
    }
    assert_eq!(replica.api.hub.session_count(), 1);
}
