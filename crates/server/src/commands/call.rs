//! `call`: a question to one client of a user.

use anyhow::{Result, bail};
use switchboard_client::Client;
use switchboard_model::call::{Call, CallState, WhenAbsent};
use switchboard_model::identity::UserId;
use switchboard_model::span::Span;
use switchboard_model::wire::rest::CallRequest;

use super::{json_argument, remotely};
use crate::cli::CallCommand;

/// How long one request waits for the end of a call.
const STEP: Span = Span::from_secs(10);

/// Calls a client of a user, prints what it answered, and fails unless it did what was asked for.
pub(crate) async fn run(command: CallCommand) -> Result<()> {
    let CallCommand { remote, user, event, payload, timeout, wait_for_user } = command;
    remotely(&remote, async |session| {
        let payload = json_argument("payload", payload)?;
        let when_absent = if wait_for_user { WhenAbsent::Wait } else { WhenAbsent::Fail };
        let request =
            CallRequest { event, payload, timeout, when_absent, wait: Some(STEP.min(timeout.unwrap_or(STEP))) };
        let call = answered(&session.client, &user, &request).await?;
        // An answer of `null` reads as an absent one.
        let answer = call.result.as_ref().map_or("null", |result| result.as_str());
        match (call.state, &call.error) {
            (CallState::Done, _) => session.form.done(&call, answer),
            (state, error) => {
                session.form.done(&call, format_args!("Call {} has {}.", call.id, state.as_str()))?;
                let why = error.as_ref().map_or("for no given reason", |error| error.message.as_str());
                bail!("the client of {user} did not do it: {why}")
            }
        }
    })
    .await
}

/// Makes a call and waits for its end, request by request.
async fn answered(client: &Client, user: &UserId, request: &CallRequest) -> Result<Call> {
    let mut call = client.call(user, request).await?;
    while !call.state.is_terminal() {
        call = client.wait_for_call(call.id, STEP).await?;
    }
    Ok(call)
}
