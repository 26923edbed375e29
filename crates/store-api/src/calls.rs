//! Calls: requests to one client of a user, answered once.

use async_trait::async_trait;
use switchboard_model::Timestamp;
use switchboard_model::call::{Call, CallAnswer, CallOffer, Claimed, NewCall};
use switchboard_model::identity::UserId;
use switchboard_model::ids::{CallId, ClaimToken, ConnectionId};
use switchboard_model::span::Span;

use crate::StoreResult;
use crate::context::{WriteContext, Written};

/// What claiming a call gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The call is the connection's; a repetition of the same connection gets the same token.
    Claimed(Claimed),
    /// Another connection has it, or it has ended.
    Conflict,
    /// This user has no such call.
    NotFound,
}

/// What answering a call gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// The answer is stored.
    Accepted,
    /// It was answered before, it has expired, or the token is not the one of its claim.
    Conflict,
    /// This user has no such call.
    NotFound,
}

/// A call that is offered to one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedCall {
    /// Whose it is.
    pub user_id: UserId,
    /// To which connection.
    pub connection: ConnectionId,
    /// Until when; two offers of a call to one connection differ in this.
    pub until: Timestamp,
    /// What the client is told.
    pub offer: CallOffer,
}

/// What became of calls whose time was up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdvanceReport {
    /// How many went to another connection.
    pub offered: u64,
    /// How many failed because nobody is there any more, or expired.
    pub ended: u64,
    /// Whether there may be more.
    pub more: bool,
}

/// Calls. An offer stands for [`switchboard_model::call::OFFER_TIME`]; offers go to connections of live replicas only,
/// the newest first, and begin again when all were asked. Whoever claims first has the call; nobody else is asked then.
#[async_trait]
pub trait CallStore: Send + Sync {
    /// Makes a call and offers it to a connection of its user. Without one it fails at once with `no_responder`, or
    /// waits, as the call says; the stored call tells. Signals `CallOffered` or `CallEnded`.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn create(&self, context: &WriteContext, call: &NewCall) -> StoreResult<Written<Call>>;

    /// Claims an offered call for a connection of its user.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn claim(&self, user: &UserId, call: CallId, connection: ConnectionId) -> StoreResult<ClaimOutcome>;

    /// Answers a claimed call, from any replica and connection of its user, and signals `CallEnded`.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn reply(
        &self,
        user: &UserId,
        call: CallId,
        token: ClaimToken,
        answer: &CallAnswer,
    ) -> StoreResult<ReplyOutcome>;

    /// Finds a call.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn find(&self, call: CallId) -> StoreResult<Option<Call>>;

    /// Reads the offers that stand now for these users, and which connection each goes to: of each user at most
    /// [`switchboard_model::call::STANDING_OFFERS`], the oldest first.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn offers(&self, users: &[UserId]) -> StoreResult<Vec<OfferedCall>>;

    /// Reads the open calls of a user that nobody has claimed, oldest first and at most
    /// [`switchboard_model::call::PENDING_CALLS`]: what `hello` tells a new connection. Calls that wait for a
    /// connection are offered to this one now, with the signal `CallOffered`.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn pending(&self, user: &UserId, connection: ConnectionId) -> StoreResult<Vec<OfferedCall>>;

    /// Moves up to `limit` calls on whose offer has ended, by compare-and-set, and ends those whose deadline has passed.
    /// Signals both. Replicas that do so together take different calls, and what is not due costs no write.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn advance(&self, limit: u32) -> StoreResult<AdvanceReport>;

    /// Deletes up to `limit` calls that ended longer than `age` ago; returns how many there were.
    ///
    /// # Errors
    /// Fails when the database does.
    async fn sweep(&self, age: Span, limit: u32) -> StoreResult<u64>;
}
