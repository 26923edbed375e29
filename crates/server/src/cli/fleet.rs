//! Commands about the whole fleet.

use clap::{Args, Subcommand};
use switchboard_model::identity::PoolName;
use switchboard_model::setting::PoolSettings;

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// Shows what every replica obeys.
    Show,
    /// Stops all replicas and external workers from taking runs; those under way go on, and tasks stay due on time.
    Pause,
    /// Lets runs be taken again.
    Resume,
    /// Limits how many runs of a pool go at the same time, on all replicas and external workers together.
    Pool {
        /// The pool.
        pool: PoolName,
        #[command(flatten)]
        most: PoolMost,
    },
}

/// The maximum of a pool.
#[derive(Clone, Copy, Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PoolMost {
    /// The most runs at the same time; 0 pauses the pool.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(PoolSettings::MOST_RUNNING)))]
    pub(crate) max: Option<u32>,
    /// Lets as many go as there are workers for.
    #[arg(long)]
    no_max: bool,
}
