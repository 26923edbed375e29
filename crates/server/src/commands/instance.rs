//! `instance`: the replicas of the fleet.

use super::listing::collect;
use super::remotely;
use crate::cli::{InstanceCommand, RemoteCommand};
use crate::output::time;

/// Shows the replicas that are alive.
pub(crate) async fn run(command: RemoteCommand<InstanceCommand>) -> anyhow::Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| match command {
        InstanceCommand::List { limit } => {
            let instances = collect(limit, async |page| session.client.list_instances(page).await).await?;
            session.form.list(&instances, ["ID", "VERSION", "ROLES", "POOLS", "CONNECTIONS", "STARTED"], |instance| {
                let texts = |names: Vec<String>| names.join(" ");
                [
                    instance.id.to_string(),
                    instance.version.clone(),
                    texts(instance.roles.iter().map(ToString::to_string).collect()),
                    texts(instance.pools.iter().map(ToString::to_string).collect()),
                    instance.pool_size.to_string(),
                    time(Some(instance.started_at)),
                ]
            })
        }
    })
    .await
}
