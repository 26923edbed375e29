//! A session: one connected socket, without the socket.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use switchboard_model::auth_session::Credential;
use switchboard_model::identity::UserId;
use switchboard_model::ids::ConnectionId;
use switchboard_model::json_text::JsonText;
use switchboard_model::ticket::Grants;
use switchboard_model::wire::close::CloseCode;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::{Hello, NoticeFrame, ReplyError, ReplyFrame};
use switchboard_store_api::OfferedCall;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::calls::Told;
use crate::hub::Hub;
use crate::outbox::{Outbox, Outgoing, Step};
use crate::rate::TokenBucket;

/// Whom a session belongs to and what it may do.
#[derive(Clone, Debug)]
pub struct SessionIdentity {
    /// Whom it belongs to.
    pub user_id: UserId,
    /// What it hangs on: when that is revoked, it ends.
    pub minted_by: Credential,
    /// What it may do beyond what every user may.
    pub grants: Grants,
}

/// One connected socket.
pub struct Session {
    id: ConnectionId,
    identity: SessionIdentity,
    pub(crate) outbox: Mutex<Outbox>,
    calls: Mutex<Told>,
    wake: Notify,
    bucket: Mutex<TokenBucket>,
    hub: Arc<Hub>,
}

impl Session {
    pub(crate) fn new(identity: SessionIdentity, hub: Arc<Hub>) -> Self {
        Self {
            id: ConnectionId::new(),
            identity,
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
        self.id
    }

    /// Returns whom the session belongs to.
    #[must_use]
    pub const fn identity(&self) -> &SessionIdentity {
        &self.identity
    }

    /// Waits for what the socket does next. One caller at a time.
    pub async fn next(&self) -> Outgoing {
        loop {
            // The guard is gone before anything is awaited.
            let step = self.outbox.lock().step();
            match step {
                Step::Send(frames) => return Outgoing::Frames(frames),
                Step::Close(code) => return Outgoing::Close(code),
                Step::CatchUp(behind) => self.hub.catch_up(self, behind).await,
                // A wake-up between the look and here is kept by `Notify`, so none is lost.
                Step::Wait => self.wake.notified().await,
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
        let missed = calls.greet(self.id, &pending);
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
