//! `lease`: named ownership that expires.

use anyhow::{Result, bail};
use switchboard_model::ids::Fence;
use switchboard_model::json_text::JsonText;
use switchboard_model::lease::{Lease, LeaseHold};
use switchboard_model::wire::coordination::LeaseAcquireRequest;

use super::listing::collect;
use super::{Session, json_argument, remotely};
use crate::cli::{LeaseCommand, LeaseHeld, LeaseOptions, RemoteCommand};
use crate::output::{maybe, time};

/// Does one thing with leases.
pub(crate) async fn run(command: RemoteCommand<LeaseCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey(&session, command).await).await
}

async fn obey(session: &Session, command: LeaseCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        LeaseCommand::List { limit } => {
            let leases: Vec<Lease> = collect(limit, async |page| client.list_leases(page).await).await?;
            form.list(&leases, ["KEY", "HOLDER", "FENCE", "EXPIRES", "META"], |lease| {
                [
                    lease.key.to_string(),
                    lease.holder.to_string(),
                    lease.fence.0.to_string(),
                    time(Some(lease.expires_at)),
                    maybe(lease.meta.as_ref().map(JsonText::as_str)),
                ]
            })
        }
        LeaseCommand::Get { key } => form.one(&client.get_lease(&key).await?),
        LeaseCommand::Acquire { key, options } => {
            let answer = client.acquire_lease(&key, &wanted(options)?).await?;
            let lease = &answer.lease;
            if !answer.acquired {
                bail!("{key} is held by {} for another {} ms", lease.holder, answer.remaining_ms);
            }
            form.done(&answer, format_args!("Acquired {key} as {} with fence {}.", lease.holder, lease.fence.0))
        }
        LeaseCommand::Renew { key, held, ttl } => {
            let lease = client.renew_lease(&hold(key, held), ttl).await?;
            form.done(&lease, format_args!("Renewed {} until {}.", lease.key, time(Some(lease.expires_at))))
        }
        LeaseCommand::Release { key, held } => {
            let hold = hold(key, held);
            client.release_lease(&hold).await?;
            form.said(format_args!("Released {}.", hold.key))
        }
        LeaseCommand::Seize { key, options } => {
            let lease = client.seize_lease(&key, &wanted(options)?).await?;
            form.done(&lease, format_args!("Seized {key} as {} with fence {}.", lease.holder, lease.fence.0))
        }
    }
}

fn wanted(options: LeaseOptions) -> Result<LeaseAcquireRequest> {
    let LeaseOptions { holder, ttl, meta } = options;
    Ok(LeaseAcquireRequest { holder, ttl, meta: meta.map(|meta| json_argument("meta", meta)).transpose()? })
}

fn hold(key: switchboard_model::identity::ClientKey, held: LeaseHeld) -> LeaseHold {
    LeaseHold { key, holder: held.holder, fence: Fence(held.fence) }
}
