//! One WebSocket: operations with their answers, and everything else in the order of its arrival.
//!
//! It does not reconnect and knows no positions; that is the part of [`crate::ResumingSocket`].

mod connect;
mod link;

use std::ops::Deref;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use switchboard_model::call::Claimed;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::{CallId, ClaimToken};
use switchboard_model::json_text::JsonText;
use switchboard_model::presence::Presence;
use switchboard_model::room::HistoryPage;
use switchboard_model::secret_text::SecretText;
use switchboard_model::wire::frame::{Authenticated, EventFrame, Hello, Joined, NoticeFrame, Published, ReplyFrame};
use switchboard_model::wire::op::{
    Auth, CallFailure, Claim, ClientOp, History, Join, Leave, Publish, ReadPresence, Reply, Since,
};
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use crate::error::OpError;
use link::Link;

/// The close code that stands for a connection that was lost without one.
pub const LOST: u16 = 1006;

/// How many events wait for the caller by default.
pub(crate) const EVENT_CAPACITY: usize = 16 * 1024;

/// How a socket proves whom it belongs to.
#[derive(Clone, Debug)]
pub enum SocketAuth {
    /// A ticket among the subprotocols.
    Ticket(SecretText),
    /// A ticket in the query, as for clients that cannot set subprotocols.
    TicketInQuery(SecretText),
    /// A bearer credential; for programs only.
    Bearer(SecretText),
}

/// How a socket is opened.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Whom it belongs to.
    pub auth: SocketAuth,
    /// The origin that a browser would name.
    pub origin: Option<String>,
    /// How many events wait for the caller. When it is full the socket is not read, so that the server holds
    /// back what follows, and operations are not answered until the caller takes events.
    pub event_capacity: usize,
}

impl SocketOptions {
    /// Opens with a ticket among the subprotocols, as a program without an origin.
    #[must_use]
    pub fn ticket(ticket: SecretText) -> Self {
        Self { auth: SocketAuth::Ticket(ticket), origin: None, event_capacity: EVENT_CAPACITY }
    }
}

/// What arrives on a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketEvent {
    /// An event of a room.
    Event(EventFrame),
    /// A notice of the server, such as the offer of a call. Pings are answered and not shown.
    Notice(NoticeFrame),
    /// The answer to an operation given to [`SocketHandle::send`].
    Reply(ReplyFrame),
    /// The end; nothing follows.
    Closed {
        /// The close code, [`LOST`] if none was received.
        code: u16,
        /// The reason that the server gave, or what broke.
        reason: String,
    },
}

/// An open socket. Dropping it closes the connection.
#[derive(Debug)]
pub struct Socket {
    handle: SocketHandle,
    events: mpsc::Receiver<SocketEvent>,
    hello: Hello,
    _stop: DropGuard,
}

impl Socket {
    /// Waits for the next arrival; `None` after [`SocketEvent::Closed`].
    pub async fn next(&mut self) -> Option<SocketEvent> {
        self.events.recv().await
    }

    /// Returns what the server said about the connection at its start. Its `pending_calls` are offers like those that
    /// arrive later.
    #[must_use]
    pub const fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Returns a handle for operations from other tasks.
    #[must_use]
    pub fn handle(&self) -> SocketHandle {
        self.handle.clone()
    }
}

impl Deref for Socket {
    type Target = SocketHandle;

    fn deref(&self) -> &SocketHandle {
        &self.handle
    }
}

/// The side of a socket that sends operations. It does not keep the socket open.
#[derive(Clone, Debug)]
pub struct SocketHandle {
    link: Arc<Link>,
}

impl SocketHandle {
    /// Joins a room.
    ///
    /// # Errors
    /// See [`OpError`].
    pub async fn join(&self, room: &RoomName, since: Since) -> Result<Joined, OpError> {
        self.call(ClientOp::Join(Join { room: room.clone(), since, presence: false })).await
    }

    /// Joins a room and shows the user there.
    ///
    /// # Errors
    /// See [`OpError`].
    pub async fn join_shown(&self, room: &RoomName, since: Since) -> Result<Joined, OpError> {
        self.call(ClientOp::Join(Join { room: room.clone(), since, presence: true })).await
    }

    /// Reads who shows themselves in a joined room; from then on the events `presence.joined` and `presence.left`, or
    /// `presence.count` of a large room, tell of changes.
    ///
    /// # Errors
    /// See [`OpError`].
    pub async fn presence(&self, room: &RoomName) -> Result<Presence, OpError> {
        self.call(ClientOp::Presence(ReadPresence { room: room.clone() })).await
    }

    /// Lets the socket hang on a new access token of the same user. One that fails closes it.
    ///
    /// # Errors
    /// See [`OpError`].
    pub async fn auth(&self, token: &SecretText) -> Result<Authenticated, OpError> {
        self.call(ClientOp::Auth(Auth { token: token.expose().to_owned() })).await
    }

    /// Leaves a room.
    ///
    /// # Errors
    /// See [`OpError`].
    pub async fn leave(&self, room: &RoomName) -> Result<(), OpError> {
        self.call(ClientOp::Leave(Leave { room: room.clone() })).await.map(|_: JsonText| ())
    }

    /// Publishes an event.
    ///
    /// # Errors
    /// See [`OpError`].
    pub async fn publish(&self, publish: Publish) -> Result<Published, OpError> {
        self.call(ClientOp::Publish(publish)).await
    }

    /// Reads a stretch of the history of a joined room.
    ///
    /// # Errors
    /// See [`OpError`].
    pub async fn history(&self, history: History) -> Result<HistoryPage, OpError> {
        self.call(ClientOp::History(history)).await
    }

    /// Takes over a call that was offered; execute it only after this succeeded. A repetition on the same connection
    /// gives the same token, so that a lost answer can be asked for again.
    ///
    /// # Errors
    /// See [`OpError`]; the code is `call_conflict` when another socket has it or it has ended.
    pub async fn claim(&self, call_id: CallId) -> Result<ClaimToken, OpError> {
        self.call(ClientOp::Claim(Claim { call_id })).await.map(|claimed: Claimed| claimed.token)
    }

    /// Answers a call that was claimed, on this connection or an earlier one of the same user.
    ///
    /// # Errors
    /// See [`OpError`]; the code is `call_conflict` when it was answered before or has expired.
    pub async fn reply(
        &self,
        call_id: CallId,
        token: ClaimToken,
        answer: Result<JsonText, CallFailure>,
    ) -> Result<(), OpError> {
        let (ok, (payload, error)) = match answer {
            Ok(payload) => (true, (Some(payload), None)),
            Err(failure) => (false, (None, Some(failure))),
        };
        let reply = Reply { call_id, token, ok, payload, error };
        self.call(ClientOp::Reply(reply)).await.map(|_: JsonText| ())
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    /// See [`OpError`].
    pub async fn ping(&self) -> Result<(), OpError> {
        self.call(ClientOp::Ping).await.map(|_: JsonText| ())
    }

    /// Sends an operation without waiting; its answer arrives as a [`SocketEvent::Reply`] that carries the
    /// returned id, in order with the events around it.
    ///
    /// # Errors
    /// [`OpError::Closed`] once the socket is closed.
    pub async fn send(&self, op: ClientOp) -> Result<u64, OpError> {
        let id = self.link.next_id();
        self.link.write(id, op).await?;
        Ok(id)
    }

    async fn call<T: DeserializeOwned>(&self, op: ClientOp) -> Result<T, OpError> {
        outcome(self.link.call(op).await?)
    }
}

/// Reads what a reply says.
pub(crate) fn outcome<T: DeserializeOwned>(reply: ReplyFrame) -> Result<T, OpError> {
    match reply.error {
        Some(error) => Err(OpError::Refused(error)),
        None => reply.ok.unwrap_or_else(JsonText::null).decode().map_err(OpError::Decode),
    }
}
