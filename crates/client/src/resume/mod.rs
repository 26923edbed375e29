//! A socket that outlives its connections: it reconnects, to another replica if need be, and every joined room
//! goes on after the last event that was handed over. What cannot be continued is said.

mod calls;
mod driver;
mod pacing;
mod positions;
mod tickets;

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use switchboard_model::call::CallOffer;
use switchboard_model::identity::RoomName;
use switchboard_model::ids::{CallId, ClaimToken};
use switchboard_model::json_text::JsonText;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{EventFrame, Hello, Joined, NoticeFrame, Published, ReplyError};
use switchboard_model::wire::op::{CallFailure, Publish, Since};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client::Client;
use crate::error::{ClientError, OpError};
use crate::socket::{EVENT_CAPACITY, SocketHandle};
use calls::RecentCalls;
use driver::{Command, Driver, Outlet};
pub use tickets::TicketSource;

/// How many requests to join, leave or reconnect wait; when it is full, callers wait.
const COMMAND_CAPACITY: usize = 256;

/// The calls that were claimed through a resuming socket.
type SharedCalls = Arc<Mutex<RecentCalls>>;

/// How a resuming socket is opened.
pub struct ResumeOptions {
    /// The addresses of replicas, tried in turn; one that balances over all is enough.
    pub base_urls: Vec<String>,
    /// Where tickets come from.
    pub tickets: Arc<dyn TicketSource>,
}

/// What arrives on a resuming socket.
#[derive(Debug)]
pub enum ResumeEvent {
    /// A connection stands and every room that was joined before is joined again.
    Connected {
        /// The replica.
        base_url: String,
        /// What the server said about the connection.
        hello: Box<Hello>,
    },
    /// An event; stored ones come once and in order, from one connection to the next.
    Event(EventFrame),
    /// A call is offered, with a new connection or on it; [`ResumingHandle::claim`] it before you execute it. A
    /// connection hands a call over once, and none that was claimed here.
    Call(CallOffer),
    /// A notice of the server.
    Notice(NoticeFrame),
    /// Events of the room are missing before what follows: the caller must read it anew.
    Desync {
        /// The room.
        room: RoomName,
        /// Why it could not be continued.
        reason: String,
    },
    /// The room cannot be joined again and is no longer followed.
    Refused {
        /// The room.
        room: RoomName,
        /// What the server said.
        error: ReplyError,
    },
    /// The connection ended; another one follows.
    Disconnected {
        /// The close code, [`crate::LOST`] if none was received.
        code: u16,
        /// The reason that the server gave, or what broke.
        reason: String,
    },
    /// The end; nothing follows.
    Stopped(StopCause),
}

/// Why no further connection is tried.
#[derive(Debug)]
pub enum StopCause {
    /// The server closed with a code that asks for a person.
    Closed {
        /// The close code.
        code: u16,
        /// The reason that the server gave.
        reason: String,
    },
    /// A ticket or the upgrade was refused for good.
    Failed(ClientError),
}

/// A socket that resumes. Dropping it closes the connection and stops its task.
#[derive(Debug)]
pub struct ResumingSocket {
    handle: ResumingHandle,
    events: mpsc::Receiver<ResumeEvent>,
    _stop: DropGuard,
}

impl ResumingSocket {
    /// Waits for the next arrival; `None` after [`ResumeEvent::Stopped`].
    ///
    /// 16,384 of them wait at most. After that the connection is not read, so that the server holds back what
    /// follows, and requests of the handle are not answered.
    pub async fn next(&mut self) -> Option<ResumeEvent> {
        self.events.recv().await
    }

    /// Returns a handle for requests from other tasks.
    #[must_use]
    pub fn handle(&self) -> ResumingHandle {
        self.handle.clone()
    }
}

impl Deref for ResumingSocket {
    type Target = ResumingHandle;

    fn deref(&self) -> &ResumingHandle {
        &self.handle
    }
}

impl Client {
    /// Starts to connect, and goes on to whenever a connection ends.
    ///
    /// # Errors
    /// [`ClientError::Url`] when an address cannot be used or there is none.
    pub fn resume(&self, options: ResumeOptions) -> Result<ResumingSocket, ClientError> {
        let replicas: Vec<Client> = options.base_urls.iter().map(|url| self.at(url)).collect::<Result<_, _>>()?;
        if replicas.is_empty() {
            return Err(ClientError::Url("there is no address to connect to".to_owned()));
        }
        let (commands, queued) = mpsc::channel(COMMAND_CAPACITY);
        let (sender, events) = mpsc::channel(EVENT_CAPACITY);
        let (current, connection) = watch::channel(None);
        let claimed = SharedCalls::default();
        let driver =
            Driver::new(replicas, options.tickets, queued, Outlet { events: sender, current }, claimed.clone());
        let stop = CancellationToken::new();
        self.tracker().spawn(stop.clone().run_until_cancelled_owned(driver.run()));
        Ok(ResumingSocket {
            handle: ResumingHandle { commands, connection, claimed },
            events,
            _stop: stop.drop_guard(),
        })
    }
}

/// The side of a resuming socket that takes requests. It does not keep the socket open.
#[derive(Clone, Debug)]
pub struct ResumingHandle {
    commands: mpsc::Sender<Command>,
    connection: watch::Receiver<Option<SocketHandle>>,
    claimed: SharedCalls,
}

impl ResumingHandle {
    /// Joins a room, now or with the next connection, and again with every later one.
    ///
    /// # Errors
    /// [`OpError::Refused`] when the server refuses; the room is not followed then. [`OpError::Closed`] once the
    /// socket has stopped.
    pub async fn join(&self, room: &RoomName, since: Since) -> Result<Joined, OpError> {
        let (answer, joined) = oneshot::channel();
        self.command(Command::Join { room: room.clone(), since, answer }).await?;
        joined.await.map_err(|_| OpError::Closed)?
    }

    /// Leaves a room; events that are on their way may still arrive.
    ///
    /// # Errors
    /// [`OpError::Closed`] once the socket has stopped.
    pub async fn leave(&self, room: &RoomName) -> Result<(), OpError> {
        self.command(Command::Leave { room: room.clone() }).await
    }

    /// Publishes an event over the current connection, or the next one if there is none.
    ///
    /// # Errors
    /// See [`OpError`]. When the connection is lost meanwhile the outcome is unknown: publish again with the same
    /// `msg_id`.
    pub async fn publish(&self, publish: Publish) -> Result<Published, OpError> {
        self.current().await?.publish(publish).await
    }

    /// Takes over a call that was offered; execute it only after this succeeded.
    ///
    /// # Errors
    /// See [`OpError`]; the code is `call_conflict` when it was claimed before, here too, or has ended. When the
    /// connection is lost meanwhile, a call that is still free is offered again with the next one.
    pub async fn claim(&self, call: CallId) -> Result<ClaimToken, OpError> {
        let token = self.current().await?.claim(call).await?;
        if self.claimed.lock().insert(call) {
            Ok(token)
        } else {
            // The server gives a connection the same token again; here each offer may have an executor of its own.
            Err(OpError::Refused(ReplyError::new(ErrorCode::CallConflict, "the call was claimed here before")))
        }
    }

    /// Answers a call that was claimed here, over the current connection or the next one if there is none.
    ///
    /// # Errors
    /// See [`OpError`]. When the connection is lost meanwhile, answer again: `call_conflict` then says that the first
    /// answer has arrived, or that the call has expired.
    pub async fn reply(
        &self,
        call: CallId,
        token: ClaimToken,
        answer: Result<JsonText, CallFailure>,
    ) -> Result<(), OpError> {
        self.current().await?.reply(call, token, answer).await
    }

    /// Gives up the current connection for another one, to the next address.
    ///
    /// # Errors
    /// [`OpError::Closed`] once the socket has stopped.
    pub async fn reconnect(&self) -> Result<(), OpError> {
        self.command(Command::Reconnect).await
    }

    /// Waits for a connection.
    async fn current(&self) -> Result<SocketHandle, OpError> {
        let mut connection = self.connection.clone();
        let current = connection.wait_for(Option::is_some).await.map_err(|_| OpError::Closed)?.clone();
        current.ok_or(OpError::Closed)
    }

    async fn command(&self, command: Command) -> Result<(), OpError> {
        self.commands.send(command).await.map_err(|_| OpError::Closed)
    }
}
