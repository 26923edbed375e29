//! A session: one connected socket, without the socket.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use switchboard_model::Timestamp;
use switchboard_model::auth_session::Credential;
use switchboard_model::connection::NewConnection;
use switchboard_model::identity::UserId;
use switchboard_model::ids::{ConnectionId, InstanceId};
use switchboard_model::json_text::JsonText;
use switchboard_model::ticket::Grants;
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Hello, NoticeFrame, ReplyError, ReplyFrame};
use switchboard_store_api::OfferedCall;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::calls::Told;
use crate::hub::Hub;
use crate::outbox::{Outbox, Outgoing, Step};
use crate::rate::TokenBucket;

/// Whom a session belongs to and what it may do.
#[derive(Clone, Debug)]
pub struct SessionIdentity {
    /// Whom it belongs to.
    pub user_id: UserId,
    /// What it may do beyond what every user may.
    pub grants: Grants,
}

/// What a session hangs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// When this is revoked, the session ends.
    pub credential: Credential,
    /// When the session ends unless it is given another hold; `None` while the credential works.
    pub expires_at: Option<Timestamp>,
}

/// What a session is the session of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionKind {
    /// A socket, which has a row in the database.
    Socket,
    /// An answer that goes on as events, which has none.
    Listener,
}

/// What is known of the row of a session in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowState {
    /// There may be one.
    Unknown,
    /// There is one, unless somebody else has deleted it.
    Entered,
    /// There is none.
    Missing,
}

/// One connected socket.
pub struct Session {
    kind: SessionKind,
    row: NewConnection,
    identity: SessionIdentity,
    hold: Mutex<(Credential, Option<Instant>)>,
    /// What gave the session its grants, if it has any: another token of the user does not give them.
    granted_by: Option<Credential>,
    row_state: Mutex<RowState>,
    pub(crate) outbox: Mutex<Outbox>,
    calls: Mutex<Told>,
    wake: Notify,
    bucket: Mutex<TokenBucket>,
    hub: Arc<Hub>,
}

impl Session {
    pub(crate) fn new(
        kind: SessionKind,
        (identity, hold): (SessionIdentity, Hold),
        instance: InstanceId,
        hub: Arc<Hub>,
    ) -> Self {
        let user_id = identity.user_id.clone();
        let has_grants = identity.grants != Grants::default();
        let granted_by = has_grants.then(|| hold.credential.clone());
        let row_state = match kind {
            SessionKind::Socket => RowState::Unknown,
            SessionKind::Listener => RowState::Missing,
        };
        Self {
            kind,
            row: NewConnection { id: ConnectionId::new(), instance, user_id },
            identity,
            hold: Mutex::new(anchored(hold, &hub)),
            granted_by,
            row_state: Mutex::new(row_state),
            outbox: Mutex::default(),
            calls: Mutex::default(),
            wake: Notify::new(),
            bucket: Mutex::new(TokenBucket::full(Instant::now())),
            hub,
        }
    }

    /// Returns the identity of the connection.
    #[must_use]
    pub const fn id(&self) -> ConnectionId {
        self.row.id
    }

    /// Returns the session as it is entered in the database.
    pub(crate) const fn row(&self) -> &NewConnection {
        &self.row
    }

    /// Returns what the session is the session of.
    pub(crate) const fn kind(&self) -> SessionKind {
        self.kind
    }

    /// Notes that there is a row of the session.
    pub(crate) fn was_entered(&self) {
        *self.row_state.lock() = RowState::Entered;
    }

    /// Notes that there is no row of the session.
    pub(crate) fn was_not_entered(&self) {
        *self.row_state.lock() = RowState::Missing;
    }

    /// Tells whether there may be a row of the session.
    pub(crate) fn may_be_entered(&self) -> bool {
        *self.row_state.lock() != RowState::Missing
    }

    /// Tells whether there was a row of the session, so that it was deleted if there is none.
    pub(crate) fn is_entered(&self) -> bool {
        *self.row_state.lock() == RowState::Entered
    }

    /// Returns whom the session belongs to.
    #[must_use]
    pub const fn identity(&self) -> &SessionIdentity {
        &self.identity
    }

    /// Returns what the session hangs on: its credential, the user, and what gave it its grants.
    #[must_use]
    pub fn credentials(&self) -> Vec<Credential> {
        let user = Credential::User(self.identity.user_id.clone());
        let hold = self.hold.lock().0.clone();
        [Some(hold), Some(user), self.granted_by.clone()].into_iter().flatten().collect()
    }

    /// Lets the session hang on something else from now on.
    pub(crate) fn rehang(&self, hold: Hold) {
        *self.hold.lock() = anchored(hold, &self.hub);
        // The writer waits for the end of the old one.
        self.wake();
    }

    /// Waits for what the socket does next. One caller at a time.
    pub async fn next(&self) -> Outgoing {
        loop {
            let ends_at = self.hold.lock().1;
            if ends_at.is_some_and(|at| at <= Instant::now()) {
                self.outbox.lock().close(CloseCode::TokenExpired);
            }
            // The guard is gone before anything is awaited.
            let step = self.outbox.lock().step();
            match step {
                Step::Send(frames) => return Outgoing::Frames(frames),
                Step::Close(code) => return Outgoing::Close(code),
                Step::CatchUp(behind) => self.hub.catch_up(self, behind).await,
                // A wake-up between the look and here is kept by `Notify`, so none is lost.
                Step::Wait => match ends_at {
                    None => self.wake.notified().await,
                    Some(at) => {
                        let _ = timeout_at(at, self.wake.notified()).await;
                    }
                },
            }
        }
    }

    /// Ends the session with a close code, after what is in its control lane.
    pub fn close(&self, code: CloseCode) {
        self.outbox.lock().close(code);
        self.wake();
    }

    /// Asks the client for a sign of life.
    pub fn ping(&self) {
        self.notice(&NoticeFrame::Ping {});
    }

    /// Takes one operation from the budget of the socket, or says how long not to read.
    ///
    /// # Errors
    /// The time until the next operation is admitted.
    pub fn admit(&self) -> Result<(), Duration> {
        self.bucket.lock().take(Instant::now())
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) fn notice(&self, notice: &NoticeFrame) {
        self.control(notice);
    }

    /// Says hello, and after it what was offered meanwhile beside the `pending` calls of the hello.
    pub(crate) fn greet(&self, hello: Hello, pending: Vec<OfferedCall>) {
        // Held to the end, so that no other offer comes first.
        let mut calls = self.calls.lock();
        let missed = calls.greet(self.id(), &pending);
        let pending_calls = pending.into_iter().map(|offered| offered.offer).collect();
        self.notice(&NoticeFrame::Hello(Hello { pending_calls, ..hello }));
        for offered in missed {
            self.notice(&NoticeFrame::Call(offered.offer));
        }
    }

    /// Tells the client of an offer, unless it was told before.
    pub(crate) fn offer(&self, offered: &OfferedCall) {
        let mut calls = self.calls.lock();
        if calls.is_news(offered) {
            metrics::counter!("switchboard_calls_offered_total").increment(1);
            self.notice(&NoticeFrame::Call(offered.offer.clone()));
        }
    }

    pub(crate) fn reply_ok(&self, re: u64, value: &impl Serialize) {
        match JsonText::encode(value) {
            Ok(ok) => self.control(&ReplyFrame { re, ok: Some(ok), error: None }),
            Err(error) => self.reply_error(re, ReplyError::new(ErrorCode::Internal, error.to_string())),
        }
    }

    pub(crate) fn reply_error(&self, re: u64, error: ReplyError) {
        self.control(&ReplyFrame { re, ok: None, error: Some(error) });
    }

    fn control(&self, frame: &impl Serialize) {
        if let Ok(text) = serde_json::to_vec(frame) {
            self.outbox.lock().control(Bytes::from(text));
            self.wake();
        }
    }
}

/// Translates the end of a hold, by database time, to the monotonic clock.
fn anchored(hold: Hold, hub: &Hub) -> (Credential, Option<Instant>) {
    let ends_at = hold.expires_at.map(|at| {
        let left = hub.now().and_then(|now| (at - now).to_std().ok()).unwrap_or_default();
        Instant::now() + left
    });
    (hold.credential, ends_at)
}

/// Keeps a session registered; dropping it leaves every room.
pub struct SessionGuard(pub(crate) Arc<Session>);

impl Deref for SessionGuard {
    type Target = Arc<Session>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.0.hub.disconnect(&self.0);
    }
}
