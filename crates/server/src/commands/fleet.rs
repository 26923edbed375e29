//! `fleet`: what every replica obeys.

use anyhow::{Result, bail};
use switchboard_client::Client;
use switchboard_model::setting::{FleetSettings, PoolSettings};
use switchboard_model::wire::code::ErrorCode;

use super::{Session, remotely};
use crate::cli::{FleetCommand, RemoteCommand};
use crate::output::{Form, line};

/// How often an edit that collides with edits by others starts over.
const TRIES: u32 = 5;

/// Shows or changes the settings of the fleet.
pub(crate) async fn run(command: RemoteCommand<FleetCommand>) -> Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| obey(&session, command).await).await
}

async fn obey(session: &Session, command: FleetCommand) -> Result<()> {
    let Session { client, form } = session;
    match command {
        FleetCommand::Show => show(*form, &client.fleet_settings().await?.value),
        FleetCommand::Pause => {
            let settings = edit(client, |settings| settings.pause_all = true).await?;
            form.done(&settings, "Paused: no run is taken but upkeep; those under way go on.")
        }
        FleetCommand::Resume => {
            let settings = edit(client, |settings| settings.pause_all = false).await?;
            form.done(&settings, "Resumed: runs are taken.")
        }
        FleetCommand::Pool { pool, most } => {
            let settings = edit(client, |settings| {
                match most.max {
                    Some(max) => settings.pools.insert(pool.clone(), PoolSettings { max_running: Some(max) }),
                    None => settings.pools.remove(&pool),
                };
            });
            let settings = settings.await?;
            match most.max {
                Some(0) => form.done(&settings, format_args!("Paused pool {pool}.")),
                Some(max) => form.done(&settings, format_args!("Pool {pool} runs at most {max} at the same time.")),
                None => form.done(&settings, format_args!("Pool {pool} has no maximum.")),
            }
        }
    }
}

fn show(form: Form, settings: &FleetSettings) -> Result<()> {
    if form == Form::Programs {
        return form.one(settings);
    }
    let word = |is_on: bool| if is_on { "yes" } else { "no" };
    line(format_args!("tasks become runs: {}", word(settings.scheduler_enabled)))?;
    line(format_args!("runs are taken: {}", word(!settings.pause_all)))?;
    let pools: Vec<_> = settings.pools.iter().filter_map(|(name, pool)| Some((name, pool.max_running?))).collect();
    form.list(&pools, ["POOL", "MAXIMUM"], |(name, max)| [name.to_string(), max.to_string()])
}

/// Reads the settings, changes them and writes them back; again if somebody did in between.
async fn edit(client: &Client, change: impl Fn(&mut FleetSettings)) -> Result<FleetSettings> {
    for _ in 0..TRIES {
        let mut settings = client.fleet_settings().await?;
        change(&mut settings.value);
        match client.put_fleet_settings(&settings).await {
            Ok(written) => return Ok(written.value),
            Err(error) if error.code() == Some(ErrorCode::VersionMismatch) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("the settings were edited by others again and again; try once more")
}
