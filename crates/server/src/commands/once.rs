//! `once`: keys that are claimed before something that must not happen twice.

use anyhow::Result;
use switchboard_model::ids::Fence;
use switchboard_model::once::OnceKey;
use switchboard_model::wire::coordination::{OnceClaimRequest, OnceClaimed, OnceOutcome};

use super::{Session, json_argument, remotely};
use crate::cli::{OnceCommand, OnceRef, RemoteCommand};
use crate::output::Form;

/// Does one thing with once-keys.
pub(crate) async fn run(command: RemoteCommand<OnceCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey(&session, command).await).await
}

async fn obey(session: &Session, command: OnceCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        OnceCommand::Get { key } => form.one(&client.get_once(&named(key)).await?),
        OnceCommand::Claim { key, request, lease, ttl, result } => {
            let request = OnceClaimRequest {
                request: json_argument("request", request)?,
                lease,
                ttl,
                result: result.map(|result| json_argument("result", result)).transpose()?,
            };
            say(*form, &client.claim_once(&named(key), &request).await?)
        }
        OnceCommand::Complete { key, fence, result } => {
            let (key, result) = (named(key), json_argument("result", result)?);
            client.complete_once(&key, Fence(fence), result).await?;
            form.said(format_args!("Completed {}.", key.key))
        }
        OnceCommand::Abandon { key, fence } => {
            let key = named(key);
            client.abandon_once(&key, Fence(fence)).await?;
            form.said(format_args!("Gave up {}.", key.key))
        }
        OnceCommand::TakeOver { key, fence, lease } => {
            say(*form, &client.take_over_once(&named(key), Fence(fence), lease).await?)
        }
        OnceCommand::Consume { key } => form.one(&client.consume_once(&named(key)).await?),
    }
}

fn say(form: Form, claimed: &OnceClaimed) -> Result<()> {
    let fence = claimed.fence.0;
    match claimed.outcome {
        OnceOutcome::New => form.done(claimed, format_args!("The key is yours, with fence {fence}.")),
        OnceOutcome::Done => {
            let result = claimed.result.as_ref().map_or("null", |result| result.as_str());
            form.done(claimed, format_args!("It was done before: {result}"))
        }
        OnceOutcome::Unknown => form.done(
            claimed,
            format_args!(
                "Whether it was done is unknown: find out, then take it over or abandon it with fence {fence}."
            ),
        ),
    }
}

fn named(key: OnceRef) -> OnceKey {
    OnceKey { scope: key.scope, key: key.key }
}
