//! Calls on their way to the sockets of this replica.

use std::collections::BTreeSet;

use switchboard_model::identity::UserId;
use switchboard_store_api::OfferedCall;

use super::Hub;

impl Hub {
    /// Returns the wanted users who have a session here.
    pub(crate) fn local_users(&self, is_wanted: impl Fn(&UserId) -> bool) -> BTreeSet<UserId> {
        let local = self.local.lock();
        let users = local.sessions.values().map(|session| &session.identity().user_id);
        users.filter(|user| is_wanted(user)).cloned().collect()
    }

    /// Tells a session of this replica what it is offered, once for each offer.
    pub(crate) fn offer(&self, offered: &OfferedCall) {
        if let Some(session) = self.session(offered.connection) {
            session.offer(offered);
        }
    }
}
