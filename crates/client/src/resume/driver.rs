//! The task behind a resuming socket: connect, join again, pass on, wait, and from the start.

use std::collections::HashMap;
use std::sync::Arc;

use switchboard_model::call::CallOffer;
use switchboard_model::identity::RoomName;
use switchboard_model::wire::close::AfterClose;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Desync, EventFrame, Hello, Joined, NoticeFrame, ReplyError, ReplyFrame};
use switchboard_model::wire::op::{ClientOp, Leave, Since};
use tokio::sync::{mpsc, oneshot, watch};

use super::calls::RecentCalls;
use super::pacing::Pacing;
use super::positions::{Continuity, Positions, Verdict};
use super::{ResumeEvent, SharedCalls, StopCause, TicketSource};
use crate::client::Client;
use crate::error::{ClientError, OpError};
use crate::socket::{LOST, Socket, SocketEvent, SocketHandle, SocketOptions, outcome};

type JoinAnswer = oneshot::Sender<Result<Joined, OpError>>;

/// What a handle asks for.
#[derive(Debug)]
pub(super) enum Command {
    /// Follow a room.
    Join { room: RoomName, since: Since, answer: JoinAnswer },
    /// Follow it no longer.
    Leave { room: RoomName },
    /// Take another connection.
    Reconnect,
}

/// Why a connection is no longer served.
enum End {
    Closed {
        code: u16,
        reason: String,
    },
    /// The caller asked for another connection.
    Given,
    /// Nobody takes events any more.
    Abandoned,
}

/// The caller is gone.
struct Gone;

/// Where a driver says what it has.
pub(super) struct Outlet {
    /// To the caller.
    pub(super) events: mpsc::Sender<ResumeEvent>,
    /// To the operations of its handles.
    pub(super) current: watch::Sender<Option<SocketHandle>>,
}

pub(super) struct Driver {
    replicas: Vec<Client>,
    /// Which replica is tried next.
    turn: usize,
    tickets: Arc<dyn TicketSource>,
    commands: mpsc::Receiver<Command>,
    outlet: Outlet,
    positions: Positions,
    pacing: Pacing,
    /// Joins of the current connection that are not answered, by the id of their operation.
    joining: HashMap<u64, RoomName>,
    /// Who waits for a first join.
    answers: HashMap<RoomName, JoinAnswer>,
    /// What to announce once the joins that a new connection began with are answered.
    announcement: Option<Announcement>,
    /// The calls that the current connection has handed over.
    offered: RecentCalls,
    /// The calls that nobody here needs to be offered.
    claimed: SharedCalls,
}

impl Driver {
    pub(super) fn new(
        replicas: Vec<Client>,
        tickets: Arc<dyn TicketSource>,
        commands: mpsc::Receiver<Command>,
        outlet: Outlet,
        claimed: SharedCalls,
    ) -> Self {
        Self {
            replicas,
            turn: 0,
            tickets,
            commands,
            outlet,
            positions: Positions::default(),
            pacing: Pacing::default(),
            joining: HashMap::new(),
            answers: HashMap::new(),
            announcement: None,
            offered: RecentCalls::default(),
            claimed,
        }
    }

    /// Works until the server says stop or the caller goes away.
    pub(super) async fn run(mut self) {
        while let Ok(after) = self.connect_and_serve().await {
            let Some(delay) = self.pacing.delay(after, rand::random()) else { return };
            tokio::time::sleep(delay).await;
        }
    }

    async fn connect_and_serve(&mut self) -> Result<AfterClose, Gone> {
        let replica = self.replicas[self.turn % self.replicas.len()].clone();
        self.turn = self.turn.wrapping_add(1);
        let socket = match self.connect(&replica).await {
            Ok(socket) => socket,
            // The ticket may have expired on its way; the next one is a fresh one.
            Err(error) if error.is_retryable() || error.code() == Some(ErrorCode::Unauthorized) => {
                tracing::debug!(%error, replica = replica.base_url(), "cannot connect; trying again");
                return Ok(AfterClose::BackOff);
            }
            Err(error) => return self.stop(StopCause::Failed(error)).await,
        };
        let end = self.serve(&replica, socket).await;
        self.outlet.current.send_replace(None);
        self.joining.clear();
        self.announcement = None;
        self.offered = RecentCalls::default();
        match end {
            End::Abandoned => Err(Gone),
            End::Given => {
                self.emit(ResumeEvent::Disconnected { code: LOST, reason: "given up for another".to_owned() }).await?;
                Ok(AfterClose::Resume)
            }
            End::Closed { code, reason } => match AfterClose::of(code) {
                AfterClose::Stop => self.stop(StopCause::Closed { code, reason }).await,
                after => {
                    self.emit(ResumeEvent::Disconnected { code, reason }).await?;
                    Ok(after)
                }
            },
        }
    }

    async fn connect(&self, replica: &Client) -> Result<Socket, ClientError> {
        let ticket = self.tickets.ticket(replica.clone()).await?;
        replica.connect(SocketOptions::ticket(ticket)).await
    }

    /// Serves one connection until it ends.
    async fn serve(&mut self, replica: &Client, mut socket: Socket) -> End {
        let hello = socket.hello().clone();
        // The server joins this room by itself, but only an explicit join tells the position and resumes.
        self.positions.follow(hello.user_id.room(), Since::default());
        self.announcement = Some(Announcement { base_url: replica.base_url().to_owned(), hello });
        for room in self.positions.rooms() {
            if self.send_join(&socket, &room).await.is_err() {
                return End::Closed { code: LOST, reason: "lost while joining".to_owned() };
            }
        }
        loop {
            let step = tokio::select! {
                arrival = socket.next() => Step::Arrival(arrival),
                command = self.commands.recv() => Step::Command(command),
            };
            let served = match step {
                Step::Arrival(Some(arrival)) => self.take(&socket, arrival).await,
                Step::Command(Some(command)) => self.obey(&socket, command).await,
                Step::Arrival(None) => Err(End::Closed { code: LOST, reason: "the connection ended".to_owned() }),
                Step::Command(None) => Err(End::Abandoned),
            };
            if let Err(end) = served {
                return end;
            }
        }
    }

    async fn take(&mut self, socket: &Socket, arrival: SocketEvent) -> Result<(), End> {
        match arrival {
            SocketEvent::Event(event) => self.pass_on(event).await?,
            SocketEvent::Reply(reply) => self.take_reply(socket, reply).await?,
            SocketEvent::Notice(NoticeFrame::Desync(Desync { room, reason })) => {
                self.positions.lose(&room);
                self.emit(ResumeEvent::Desync { room, reason }).await?;
            }
            SocketEvent::Notice(NoticeFrame::Call(offer)) => self.hand_over(offer).await?,
            SocketEvent::Notice(notice) => self.emit(ResumeEvent::Notice(notice)).await?,
            SocketEvent::Closed { code, reason } => return Err(End::Closed { code, reason }),
        }
        Ok(())
    }

    async fn pass_on(&mut self, event: EventFrame) -> Result<(), Gone> {
        match self.positions.judge(&event) {
            Verdict::Drop => return Ok(()),
            Verdict::Deliver => {}
            Verdict::Gap => {
                let reason = "events before this one did not arrive".to_owned();
                self.emit(ResumeEvent::Desync { room: event.room.clone(), reason }).await?;
            }
        }
        self.emit(ResumeEvent::Event(event)).await
    }

    async fn take_reply(&mut self, socket: &Socket, reply: ReplyFrame) -> Result<(), End> {
        let Some(room) = self.joining.remove(&reply.re) else { return Ok(()) };
        let answer = self.answers.remove(&room);
        match outcome::<Joined>(reply) {
            Ok(joined) => {
                let continuity = self.positions.joined(&room, &joined);
                match answer {
                    // A caller that went away does not need its answer.
                    Some(answer) => drop(answer.send(Ok(joined))),
                    None if continuity == Continuity::Broken => {
                        let reason = "the position could not be continued".to_owned();
                        self.emit(ResumeEvent::Desync { room, reason }).await?;
                    }
                    None => {}
                }
            }
            Err(error) => self.join_failed(room, error, answer).await?,
        }
        self.announce(socket).await?;
        Ok(())
    }

    async fn join_failed(&mut self, room: RoomName, error: OpError, answer: Option<JoinAnswer>) -> Result<(), End> {
        match (answer, error) {
            (Some(answer), error) => {
                self.positions.forget(&room);
                // A caller that went away does not need its answer.
                let _ = answer.send(Err(error));
            }
            (None, OpError::Refused(error)) if !error.retryable => {
                self.positions.forget(&room);
                self.emit(ResumeEvent::Refused { room, error }).await?;
            }
            // A room that was joined before is worth another connection.
            (None, error) => return Err(End::Closed { code: LOST, reason: format!("cannot join {room}: {error}") }),
        }
        Ok(())
    }

    /// Announces the connection once every room is joined.
    async fn announce(&mut self, socket: &Socket) -> Result<(), Gone> {
        if !self.joining.is_empty() {
            return Ok(());
        }
        let Some(Announcement { base_url, hello }) = self.announcement.take() else { return Ok(()) };
        self.pacing.settle();
        self.outlet.current.send_replace(Some(socket.handle()));
        let pending = hello.pending_calls.clone();
        self.emit(ResumeEvent::Connected { base_url, hello: Box::new(hello) }).await?;
        for offer in pending {
            self.hand_over(offer).await?;
        }
        Ok(())
    }

    /// Hands a call over, once on each connection and never after it was claimed here.
    async fn hand_over(&mut self, offer: CallOffer) -> Result<(), Gone> {
        if self.claimed.lock().contains(offer.call_id) || !self.offered.insert(offer.call_id) {
            return Ok(());
        }
        self.emit(ResumeEvent::Call(offer)).await
    }

    async fn obey(&mut self, socket: &Socket, command: Command) -> Result<(), End> {
        let lost = |_| End::Closed { code: LOST, reason: "lost while sending".to_owned() };
        match command {
            Command::Join { room, since, answer } => {
                if !self.positions.follow(room.clone(), since) {
                    let error = ReplyError::new(ErrorCode::AlreadyJoined, "the room is joined already");
                    let _ = answer.send(Err(OpError::Refused(error)));
                    return Ok(());
                }
                self.answers.insert(room.clone(), answer);
                self.send_join(socket, &room).await.map_err(lost)
            }
            Command::Leave { room } => {
                self.positions.forget(&room);
                self.answers.remove(&room);
                self.joining.retain(|_, joining| *joining != room);
                socket.send(ClientOp::Leave(Leave { room })).await.map(drop).map_err(lost)
            }
            Command::Reconnect => Err(End::Given),
        }
    }

    async fn send_join(&mut self, socket: &Socket, room: &RoomName) -> Result<(), OpError> {
        if let Some(join) = self.positions.join(room) {
            let id = socket.send(ClientOp::Join(join)).await?;
            self.joining.insert(id, room.clone());
        }
        Ok(())
    }

    async fn stop(&mut self, cause: StopCause) -> Result<AfterClose, Gone> {
        self.emit(ResumeEvent::Stopped(cause)).await?;
        Ok(AfterClose::Stop)
    }

    async fn emit(&self, event: ResumeEvent) -> Result<(), Gone> {
        self.outlet.events.send(event).await.map_err(|_| Gone)
    }
}

/// A connection that stands, before its rooms are joined again.
struct Announcement {
    base_url: String,
    hello: Hello,
}

/// What a served connection waits for.
enum Step {
    Arrival(Option<SocketEvent>),
    Command(Option<Command>),
}

impl From<Gone> for End {
    fn from(_: Gone) -> Self {
        Self::Abandoned
    }
}
