//! `instance`: the replicas of the fleet.

use switchboard_model::instance::UncoveredPool;
use switchboard_model::page::{Page, PageRequest};

use super::listing::collect;
use super::remotely;
use crate::cli::{InstanceCommand, RemoteCommand};
use crate::output::{self, time};

/// Shows the replicas that are alive.
pub(crate) async fn run(command: RemoteCommand<InstanceCommand>) -> anyhow::Result<()> {
    let RemoteCommand { remote, command } = command;
    remotely(&remote, async |session| match command {
        InstanceCommand::List { limit } => {
            let mut uncovered_pools = Vec::new();
            let read = async |page: PageRequest| {
                let page = session.client.list_instances(page).await?;
                uncovered_pools = page.uncovered_pools;
                anyhow::Ok(Page { items: page.items, next_cursor: page.next_cursor })
            };
            let instances = collect(limit, read).await?;
            for UncoveredPool { pool, queued } in &uncovered_pools {
                output::warn(format_args!("no live worker serves the pool {pool}, which has {queued} queued runs"));
            }
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
