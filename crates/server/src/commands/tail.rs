//! `tail`: rooms over a socket that resumes, one line for each event.

use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use switchboard_client::{Client, OpError, ResumeEvent, ResumeOptions, ResumingHandle, StopCause};
use switchboard_model::Timestamp;
use switchboard_model::identity::{RoomName, UserId};
use switchboard_model::scope::Scope;
use switchboard_model::ticket::{Grants, RoomPattern};
use switchboard_model::wire::auth::Me;
use switchboard_model::wire::frame::{EventFrame, Lag, NoticeFrame};
use switchboard_model::wire::op::{Since, SinceEnd};
use switchboard_model::wire::rest::TicketRequest;

use super::{Session, remotely};
use crate::cli::{Start, TailCommand};
use crate::output::{self, Form};

/// Whose socket it is when no user is named.
const NOBODY: &str = "switchboard-tail";

/// Prints events until it is interrupted.
pub(crate) async fn run(command: TailCommand) -> Result<()> {
    remotely(&command.remote, async |session| {
        let outcome = tokio::select! {
            outcome = follow(&session, &command) => outcome,
            interrupted = tokio::signal::ctrl_c() => interrupted.context("signals cannot be received"),
        };
        session.client.closed().await;
        outcome
    })
    .await
}

async fn follow(session: &Session, command: &TailCommand) -> Result<()> {
    // What is wrong with the address or the key ends the command here; later on, a connection is tried again and again.
    let request = ticket(&session.client.me().await?, command)?;
    let tickets = move |replica: Client| {
        let request = request.clone();
        async move { replica.mint_ticket(&request).await }
    };
    let base_urls = vec![session.client.base_url().to_owned()];
    let mut socket = session.client.resume(ResumeOptions { base_urls, tickets: Arc::new(tickets) })?;

    let mut shown = command.rooms.clone();
    shown.extend(command.user.as_ref().map(UserId::room));
    let mut printer = Printer { form: session.form, rooms: shown, left: command.count };
    // Rooms are joined while events arrive, since a long history would keep the answers of later joins waiting.
    let handle = socket.handle();
    let mut joins = pin!(join(&handle, &command.rooms, command.since));
    let mut is_joined = false;
    while printer.left != Some(0) {
        tokio::select! {
            joined = &mut joins, if !is_joined => {
                joined?;
                is_joined = true;
            }
            event = socket.next() => match event {
                Some(event) => printer.take(event)?,
                None => bail!("the socket has ended"),
            },
        }
    }
    Ok(())
}

/// Describes the ticket: users open a socket of their own, programs one for whomever is named. Only who administers
/// rooms lets somebody into rooms that are not public.
fn ticket(me: &Me, command: &TailCommand) -> Result<TicketRequest> {
    let user_id = match (&command.user, &me.user_id) {
        (Some(user), _) => Some(user.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(NOBODY.parse()?),
    };
    let mut grants = Grants::default();
    if me.scopes.iter().any(|scope| scope.grants(&Scope::RoomsWrite)) {
        grants.join = command.rooms.iter().map(|room| RoomPattern::new(room.as_str())).collect();
    }
    Ok(TicketRequest { user_id, origin: None, grants })
}

async fn join(handle: &ResumingHandle, rooms: &[RoomName], since: Start) -> Result<()> {
    let since = Since::End(match since {
        Start::Earliest => SinceEnd::Earliest,
        Start::Latest => SinceEnd::Latest,
    });
    for room in rooms {
        match handle.join(room, since.clone()).await {
            // The room of the user is joined by itself.
            Err(OpError::Refused(error)) if error.code == switchboard_model::wire::code::ErrorCode::AlreadyJoined => {}
            joined => drop(joined.with_context(|| format!("cannot join {room}"))?),
        }
        output::progress(format_args!("following {room}"));
    }
    Ok(())
}

/// Prints what arrives.
struct Printer {
    form: Form,
    /// The rooms that were asked for; a socket gets the events of its user in any case.
    rooms: Vec<RoomName>,
    /// How many events are still to be printed, if that is limited.
    left: Option<u64>,
}

impl Printer {
    fn take(&mut self, arrival: ResumeEvent) -> Result<()> {
        match arrival {
            ResumeEvent::Event(frame) if self.rooms.contains(&frame.room) && self.left != Some(0) => {
                self.left = self.left.map(|left| left - 1);
                self.print(&frame)?;
            }
            ResumeEvent::Desync { room, reason } => {
                output::warn(format_args!("{room}: events are missing here: {reason}"));
            }
            ResumeEvent::Notice(NoticeFrame::Lag(Lag { room, dropped, .. })) if dropped > 0 => {
                output::warn(format_args!(
                    "{room}: {dropped} ephemeral events were dropped, since they were read too slowly"
                ));
            }
            ResumeEvent::Refused { room, error } => bail!("cannot follow {room} any longer: {}", error.message),
            ResumeEvent::Disconnected { reason, .. } => {
                output::progress(format_args!("the connection was lost ({reason}); connecting again"));
            }
            ResumeEvent::Stopped(StopCause::Closed { code, reason }) => {
                bail!("the server closed the socket with {code}: {reason}")
            }
            ResumeEvent::Stopped(StopCause::Failed(error)) => return Err(error.into()),
            ResumeEvent::Connected { .. } | ResumeEvent::Event(_) | ResumeEvent::Call(_) | ResumeEvent::Notice(_) => {}
        }
        Ok(())
    }

    fn print(&self, frame: &EventFrame) -> Result<()> {
        if self.form == Form::Programs {
            return output::json_line(frame);
        }
        let at = output::time(Timestamp::from_timestamp_millis(frame.ts));
        let number = frame.offset.map_or_else(|| "-".to_owned(), |offset| format!("#{offset}"));
        let payload = output::clean(frame.payload.as_str());
        output::line(format_args!("{at}  {}  {number}  {}  {payload}", frame.room, frame.event))
    }
}
