//! Sockets end with what they hang on: a sign-in session, an API key, or the user.

use std::collections::HashSet;

use switchboard_model::auth_session::Credential;
use switchboard_model::feed::{Signal, SignalKind};
use switchboard_model::wire::close::CloseCode;

use super::Hub;
use crate::feed::error_chain;
use crate::session::{Hold, Session};

/// How many credentials are looked up at once.
const LOOK_UP: usize = 500;

/// Reads what a signal revokes, if it does.
pub(super) fn revoked_by(signal: &Signal) -> Option<Credential> {
    let key = &signal.key;
    match signal.kind {
        SignalKind::SessionRevoked => key.parse().ok().map(Credential::Session),
        SignalKind::ApiKeyRevoked => key.parse().ok().map(Credential::ApiKey),
        SignalKind::UserRevoked => key.parse().ok().map(Credential::User),
        _ => None,
    }
}

impl Hub {
    /// Ends every session that hangs on one of `revoked`.
    pub(super) fn revoke(&self, revoked: &HashSet<Credential>) {
        for session in self.all_sessions() {
            if session.credentials().iter().any(|credential| revoked.contains(credential)) {
                session.close(CloseCode::SessionRevoked);
            }
        }
    }

    /// Lets a session hang on something else. What it hangs on now is looked up after that: a revocation before was not
    /// meant for the session.
    pub(crate) async fn rehang(&self, session: &Session, hold: Hold) {
        session.rehang(hold);
        self.check_some(&session.credentials()).await;
    }

    /// Looks up what the sessions of this replica hang on, and ends those that were revoked: after a loss of the
    /// feed at once, and now and then for what expires without anybody's doing.
    pub(super) fn check_credentials(&self) {
        let Some(hub) = self.me.upgrade() else { return };
        let held: HashSet<_> = self.all_sessions().iter().flat_map(|session| session.credentials()).collect();
        let held: Vec<_> = held.into_iter().collect();
        if held.is_empty() {
            return;
        }
        self.tracker.spawn(async move {
            for some in held.chunks(LOOK_UP) {
                hub.check_some(some).await;
            }
        });
    }

    async fn check_some(&self, held: &[Credential]) {
        while !self.stop.is_cancelled() {
            match self.auth_sessions.revoked(held).await {
                Ok(revoked) => return self.revoke(&revoked.into_iter().collect()),
                Err(error) => {
                    tracing::debug!(error = %error_chain(&error), "credentials cannot be looked up");
                    self.pause_after(&error).await;
                }
            }
        }
    }
}
