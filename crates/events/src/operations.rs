//! What clients ask for over a socket: parsed, checked, done and answered here.

use std::sync::Arc;

use async_trait::async_trait;
use switchboard_model::identity::{Actor, UserId};
use switchboard_model::room::{MessageId, NewEvent};
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Authenticated, Published, ReplyError};
use switchboard_model::wire::limits::HISTORY_EVENTS;
use switchboard_model::wire::op::{ClientFrame, ClientOp, History, Publish};
use switchboard_store_api::{AppendOutcome, CallStore, RoomStore, Stores};

use crate::access::may_publish;
use crate::hub::Hub;
use crate::publisher::{EphemeralEvent, PublishError, Publisher};
use crate::session::{Hold, Session};

/// Whose a token is, and what hangs on it.
#[derive(Clone, Debug)]
pub struct Proven {
    /// Whose it is.
    pub user_id: UserId,
    /// What a socket that shows it hangs on.
    pub hold: Hold,
}

/// Verifies the tokens that sockets show.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// Finds out whose an access token is; `None` when it does not work.
    ///
    /// # Errors
    /// `unavailable` when that cannot be found out now.
    async fn authenticate(&self, token: &str) -> Result<Option<Proven>, ReplyError>;
}

/// Serves the operations of every session of a replica.
#[derive(Clone)]
pub struct Operations {
    hub: Arc<Hub>,
    publisher: Publisher,
    rooms: Arc<dyn RoomStore>,
    pub(crate) calls: Arc<dyn CallStore>,
}

impl Operations {
    /// Makes the service.
    #[must_use]
    pub fn new(hub: Arc<Hub>, publisher: Publisher, stores: &Stores) -> Self {
        Self { hub, publisher, rooms: Arc::clone(&stores.rooms), calls: Arc::clone(&stores.calls) }
    }

    /// Does what one text frame asks for; the answer goes to the outbox of the session.
    pub async fn handle(&self, session: &Arc<Session>, text: &str, authenticator: &dyn Authenticator) {
        let frame = match ClientFrame::parse(text) {
            Ok(frame) => frame,
            Err(bad) => return session.reply_error(bad.id.unwrap_or(0), bad.error),
        };
        let id = frame.id;
        let result = match frame.op {
            // The hub answers a join itself, since the answer comes before the first event.
            ClientOp::Join(join) => self.hub.join(session, id, join).await,
            ClientOp::Leave(leave) => {
                if self.hub.leave(session, &leave.room) {
                    if self.hub.hide(session, &leave.room) {
                        self.hub.settled().await;
                    }
                    session.reply_ok(id, &serde_json::json!({}));
                    Ok(())
                } else {
                    Err(ReplyError::new(ErrorCode::NotJoined, "the room is not joined"))
                }
            }
            ClientOp::Publish(publish) => self.publish(session, publish).await.map(|ok| session.reply_ok(id, &ok)),
            ClientOp::History(history) => self.history(session, id, history).await,
            ClientOp::Claim(claim) => self.claim(session, claim).await.map(|claimed| session.reply_ok(id, &claimed)),
            ClientOp::Reply(reply) => {
                self.answer(session, reply).await.map(|()| session.reply_ok(id, &serde_json::json!({})))
            }
            ClientOp::Presence(asked) => {
                self.hub.who_is_in(session, &asked.room).await.map(|found| session.reply_ok(id, &found))
            }
            ClientOp::Auth(auth) => self.auth(session, id, &auth.token, authenticator).await,
            ClientOp::Ping => {
                session.reply_ok(id, &serde_json::json!({}));
                Ok(())
            }
        };
        if let Err(error) = result {
            session.reply_error(id, error);
        }
    }

    /// Lets the socket hang on the given token from now on. A token that fails ends the socket.
    async fn auth(
        &self,
        session: &Arc<Session>,
        id: u64,
        token: &str,
        authenticator: &dyn Authenticator,
    ) -> Result<(), ReplyError> {
        let proven = authenticator.authenticate(token).await?;
        let Some(proven) = proven.filter(|proven| proven.user_id == session.identity().user_id) else {
            let message = "the token does not work for the user of this socket";
            session.reply_error(id, ReplyError::new(ErrorCode::Unauthorized, message));
            session.close(CloseCode::AuthFailed);
            return Ok(());
        };
        let expires_at_ms = proven.hold.expires_at.map(|at| at.timestamp_millis());
        self.hub.rehang(session, proven.hold).await;
        session.reply_ok(id, &Authenticated { expires_at_ms });
        Ok(())
    }

    async fn publish(&self, session: &Session, publish: Publish) -> Result<Published, ReplyError> {
        let identity = session.identity();
        may_publish(&publish.room, &publish.event, &identity.user_id, &identity.grants).map_err(|code| match code {
            ErrorCode::Forbidden => ReplyError::new(code, "the ticket does not allow publishing this event here"),
            code => ReplyError::new(code, "the name of a user or pair room is malformed"),
        })?;
        let msg_id = MessageId::given_or_new(publish.msg_id);
        if publish.ephemeral {
            let event = EphemeralEvent {
                room: publish.room,
                event: publish.event,
                payload: publish.payload,
                msg_id: msg_id.clone(),
            };
            self.publisher.publish_ephemeral(event).await.map_err(publish_error)?.map_err(refusal)?;
            return Ok(Published { msg_id: msg_id.to_string(), position: None, duplicate: false });
        }
        let event = NewEvent {
            room: publish.room,
            event: publish.event,
            payload: publish.payload,
            msg_id: msg_id.clone(),
            sender: Actor::User(identity.user_id.clone()),
        };
        let msg_id = msg_id.to_string();
        match self.publisher.publish(event).await.map_err(publish_error)? {
            AppendOutcome::Appended { position, .. } => {
                Ok(Published { msg_id, position: Some(position), duplicate: false })
            }
            AppendOutcome::Duplicate(position) => Ok(Published { msg_id, position: Some(position), duplicate: true }),
            AppendOutcome::Refused(code) => Err(refusal(code)),
        }
    }

    async fn history(&self, session: &Session, id: u64, history: History) -> Result<(), ReplyError> {
        if !session.outbox.lock().has_joined(&history.room) {
            return Err(ReplyError::new(ErrorCode::NotJoined, "join the room before reading its history"));
        }
        let limit = history.limit.unwrap_or(HISTORY_EVENTS).clamp(1, HISTORY_EVENTS);
        let page = self.rooms.history(&history.room, history.after, limit).await.map_err(|error| {
            tracing::warn!(error = %crate::feed::error_chain(&error), "history cannot be read");
            ReplyError::new(ErrorCode::Unavailable, "the history cannot be read now; try again")
        })?;
        match page {
            Some(page) => session.reply_ok(id, &page),
            None => return Err(ReplyError::new(ErrorCode::NotFound, "the room has no history yet")),
        }
        Ok(())
    }
}

fn publish_error(error: PublishError) -> ReplyError {
    ReplyError::new(ErrorCode::Unavailable, format!("{error}; publish again with the same msg_id"))
}

/// Writes what a client is told when an event is refused with `code`.
#[must_use]
pub fn refusal(code: ErrorCode) -> ReplyError {
    let message = match code {
        ErrorCode::NotFound => "there is no such room; create it first",
        ErrorCode::PayloadTooLarge => "the payload is above 60 KiB",
        ErrorCode::RoomNameInvalid => "events of this room cannot be stored",
        _ => "the event was refused",
    };
    ReplyError::new(code, message)
}
