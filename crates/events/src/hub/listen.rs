//! Sessions that only listen: a set of rooms, without a socket and without operations.

use std::sync::Arc;

use switchboard_model::identity::UserId;
use switchboard_model::page::PageRequest;
use switchboard_model::room::RoomClass;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Joined, ReplyError};
use switchboard_model::wire::op::Join;

use super::{Hub, void_epoch};
use crate::feed::error_chain;
use crate::session::{Hold, Session, SessionGuard, SessionIdentity, SessionKind};

/// Which rooms may be listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those that the user may join.
    OfUser,
    /// All of them.
    EveryRoom,
}

impl Hub {
    /// Registers a session that listens to rooms, each from where `joins` says, and returns where each of them starts. For
    /// a user it counts as one of their sockets.
    ///
    /// # Errors
    /// `too_many_connections` when the user has as many as allowed; else says why one of the rooms cannot be listened
    /// to.
    pub async fn listen(
        &self,
        identity: SessionIdentity,
        hold: Hold,
        reach: Reach,
        joins: &[Join],
    ) -> Result<(SessionGuard, Vec<Joined>), ReplyError> {
        let stopped = || ReplyError::new(ErrorCode::Unavailable, "the replica is being stopped");
        let hub = self.me.upgrade().ok_or_else(stopped)?;
        let session = self.register(|instance| Session::new(SessionKind::Listener, (identity, hold), instance, hub));
        let guard = SessionGuard(Arc::clone(&session));
        if reach == Reach::OfUser {
            self.check_room_beside_sockets(&session.identity().user_id).await?;
        }
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
    /// Checks that a user has no more listeners here and sockets anywhere, together, than sockets are allowed. The
    /// listeners of other replicas are not known here.
    async fn check_room_beside_sockets(&self, user: &UserId) -> Result<(), ReplyError> {
        let most = self.sockets_per_user;
        let open = self.sockets.list(Some(user), &PageRequest { after: None, limit: most }).await.map_err(|error| {
            tracing::warn!(error = %error_chain(&error), "the sockets of a user cannot be counted");
            ReplyError::new(ErrorCode::Unavailable, "the sockets of the user cannot be counted now; try again")
        })?;
        if open.items.len() + self.listeners_of(user) as usize > most as usize {
            let message = "the user has as many sockets and listeners as allowed; close one first";
            return Err(ReplyError::new(ErrorCode::TooManyConnections, message));
        }
        Ok(())
    }
}
