//! The tokens that open sockets show, to be allowed to go on.

use async_trait::async_trait;
use switchboard_events::{Authenticator, Proven};
use switchboard_model::wire::frame::ReplyError;

use crate::AppState;
use crate::access::by_token;
use crate::auth::tokens::TOKEN_BYTES;
use crate::middleware::RequestId;

#[async_trait]
impl Authenticator for AppState {
    async fn authenticate(&self, token: &str) -> Result<Option<Proven>, ReplyError> {
        if token.len() > TOKEN_BYTES {
            return Ok(None);
        }
        // The operation writes nothing that would be found by a request id.
        let caller = by_token(self, token, RequestId("socket".into())).await?;
        Ok(caller.and_then(|caller| Some(Proven { user_id: caller.user_id()?.clone(), hold: caller.hold() })))
    }
}
