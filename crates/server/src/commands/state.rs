//! `state`: shared values.

use anyhow::{Context as _, Result};
use switchboard_model::state::StateHead;
use switchboard_model::wire::coordination::StatePutRequest;

use super::listing::collect;
use super::{Session, json_argument, remotely};
use crate::cli::{RemoteCommand, StateCommand};
use crate::output::{self, Form, time};

/// Does one thing with shared state.
pub(crate) async fn run(command: RemoteCommand<StateCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey(&session, command).await).await
}

async fn obey(session: &Session, command: StateCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        StateCommand::List { ns, prefix, limit } => {
            let read = async |page| client.list_state(&ns, &prefix, page).await;
            let heads: Vec<StateHead> = collect(limit, read).await?;
            form.list(&heads, ["KEY", "VERSION", "BYTES", "UPDATED", "EXPIRES"], |head| {
                [
                    head.key.to_string(),
                    head.version.to_string(),
                    head.bytes.to_string(),
                    time(Some(head.updated_at)),
                    time(head.expires_at),
                ]
            })
        }
        StateCommand::Get { key } => {
            let entry = client.get_state(&key).await?.with_context(|| format!("there is no {key}"))?;
            match form {
                Form::Programs => form.one(&entry),
                Form::People => output::line(entry.value.as_str()),
            }
        }
        StateCommand::Put { key, value, version, ttl } => {
            let request = StatePutRequest { value: json_argument("value", value)?, version, ttl };
            let written = client.put_state(&key, &request).await?;
            form.done(&written, format_args!("Stored {key} as version {}.", written.version))
        }
        StateCommand::Delete { key, version } => {
            client.delete_state(&key, version).await?;
            form.said(format_args!("Deleted {key}."))
        }
        StateCommand::Watch { key } => {
            let mut watch = client.watch_state(key);
            loop {
                output::json_line(&watch.next().await?)?;
            }
        }
    }
}
