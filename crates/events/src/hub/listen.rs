//! Sessions that only listen: a set of rooms, without a socket and without operations.

use std::sync::Arc;

use switchboard_model::room::RoomClass;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Joined, ReplyError};
use switchboard_model::wire::op::Join;

use super::{Hub, void_epoch};
use crate::session::{Hold, Session, SessionGuard, SessionIdentity};

/// Which rooms may be listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those that the user may join.
    OfUser,
    /// All of them.
    EveryRoom,
}

impl Hub {
    /// Registers a session that listens to rooms, each from where `joins` says, and returns where each of them starts.
    ///
    /// # Errors
    /// Says why one of the rooms cannot be listened to.
    pub async fn listen(
        &self,
        identity: SessionIdentity,
        hold: Hold,
        reach: Reach,
        joins: &[Join],
    ) -> Result<(SessionGuard, Vec<Joined>), ReplyError> {
        let stopped = || ReplyError::new(ErrorCode::Unavailable, "the replica is being stopped");
        let hub = self.me.upgrade().ok_or_else(stopped)?;
        let session = self.register(|instance| Session::new(identity, hold, instance, hub));
        // Only sockets have rows.
        session.was_not_entered();
        let guard = SessionGuard(Arc::clone(&session));
        let mut starts = Vec::with_capacity(joins.len());
        for join in joins {
            match reach {
                Reach::OfUser => self.check_join(&session, &join.room).await?,
                Reach::EveryRoom if join.room.class() == RoomClass::Malformed => {
                    let message = "the name of a user or pair room is malformed";
                    return Err(ReplyError::new(ErrorCode::RoomNameInvalid, message));
                }
                Reach::EveryRoom => {}
            }
            session.outbox.lock().begin(&join.room, void_epoch());
            self.subscribe(&session, join, |joined| starts.push(joined.clone())).await?;
        }
        Ok((guard, starts))
    }
}
