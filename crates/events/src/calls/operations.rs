//! What sockets do about calls: take one over, and answer it.

use switchboard_model::call::{CallAnswer, Claimed};
use switchboard_model::json_text::JsonText;
use switchboard_model::wire::code::ErrorCode;
use switchboard_model::wire::frame::ReplyError;
use switchboard_model::wire::limits::PAYLOAD_BYTES;
use switchboard_model::wire::op::{Claim, Reply};
use switchboard_store_api::{ClaimOutcome, ReplyOutcome, StoreError};

use crate::feed::error_chain;
use crate::operations::Operations;
use crate::session::Session;

impl Operations {
    /// Takes a call over for the socket; until this succeeded the client must not execute it.
    pub(crate) async fn claim(&self, session: &Session, claim: Claim) -> Result<Claimed, ReplyError> {
        let user = &session.identity().user_id;
        let outcome = self.calls.claim(user, claim.call_id, session.id()).await.map_err(|error| unavailable(&error))?;
        match outcome {
            ClaimOutcome::Claimed(claimed) => Ok(claimed),
            ClaimOutcome::Conflict => {
                Err(ReplyError::new(ErrorCode::CallConflict, "another socket has the call, or it has ended"))
            }
            ClaimOutcome::NotFound => Err(not_found()),
        }
    }

    /// Stores the answer to a call of the user, whichever socket it comes over.
    pub(crate) async fn answer(&self, session: &Session, reply: Reply) -> Result<(), ReplyError> {
        let Reply { call_id, token, ok, payload, error } = reply;
        let answer = match (ok, payload, error) {
            (true, payload, None) => CallAnswer::Done(payload.unwrap_or_else(JsonText::null)),
            (false, None, Some(failure)) => CallAnswer::Failed(ReplyError::new(ErrorCode::CallFailed, failure.message)),
            _ => {
                let message = "an answer that is ok has a payload and no error, one that is not has an error only";
                return Err(ReplyError::new(ErrorCode::BadRequest, message));
            }
        };
        if matches!(&answer, CallAnswer::Done(payload) if payload.as_str().len() > PAYLOAD_BYTES) {
            return Err(ReplyError::new(ErrorCode::PayloadTooLarge, "the payload is above 60 KiB"));
        }
        let user = &session.identity().user_id;
        let outcome = self.calls.reply(user, call_id, token, &answer).await.map_err(|error| unavailable(&error))?;
        match outcome {
            ReplyOutcome::Accepted => Ok(()),
            ReplyOutcome::Conflict => Err(ReplyError::new(
                ErrorCode::CallConflict,
                "the call was answered before, has expired, or was claimed by somebody else",
            )),
            ReplyOutcome::NotFound => Err(not_found()),
        }
    }
}

fn not_found() -> ReplyError {
    ReplyError::new(ErrorCode::NotFound, "there is no such call")
}

fn unavailable(error: &StoreError) -> ReplyError {
    tracing::warn!(error = %error_chain(error), "a call cannot be claimed or answered");
    ReplyError::new(ErrorCode::Unavailable, "the database does not answer now; try again")
}
