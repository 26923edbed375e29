//! Sockets that were kicked while this replica heard nothing of it.

use std::sync::Arc;

use switchboard_model::ids::ConnectionId;
use switchboard_model::wire::close::CloseCode;

use super::Hub;
use crate::feed::error_chain;
use crate::session::Session;

/// How many sockets are looked up at once.
const LOOK_UP: usize = 500;

impl Hub {
    /// Looks up which sockets have lost their rows after a loss of the feed, and closes them for good: a kick deletes the
    /// row, and its signal may be lost.
    pub(super) fn check_kicks(&self) {
        let Some(hub) = self.me.upgrade() else { return };
        let (instance, held) = {
            let local = self.local.lock();
            let is_held = |session: &&Arc<Session>| {
                // One of an earlier identity of the replica is being closed already.
                session.is_entered() && session.row().instance == local.instance
            };
            let held: Vec<ConnectionId> = local.sessions.values().filter(is_held).map(|session| session.id()).collect();
            (local.instance.clone(), held)
        };
        if held.is_empty() {
            return;
        }
        self.tracker.spawn(async move {
            for some in held.chunks(LOOK_UP) {
                while !hub.stop.is_cancelled() {
                    match hub.sockets.kicked(&instance, some).await {
                        Ok(kicked) => {
                            hub.close_kicked(kicked);
                            break;
                        }
                        Err(error) => {
                            tracing::debug!(error = %error_chain(&error), "sockets cannot be looked up");
                            hub.pause_after(&error).await;
                        }
                    }
                }
            }
        });
    }

    fn close_kicked(&self, kicked: Vec<ConnectionId>) {
        for session in kicked.into_iter().filter_map(|id| self.session(id)) {
            session.close(CloseCode::Kicked);
        }
    }
}
