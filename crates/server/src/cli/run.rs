//! Commands about runs.

use clap::Subcommand;
use switchboard_model::ids::RunId;
use switchboard_model::run::RunState;
use switchboard_model::task::TaskRef;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum RunCommand {
    /// Lists runs, newest first.
    List {
        /// Only runs of this task, by its name or id.
        #[arg(long, value_name = "TASK")]
        task: Option<TaskRef>,
        /// Only runs in this state: scheduled, queued, waiting, running, succeeded, failed, cancelled, dead.
        #[arg(long, value_name = "STATE")]
        state: Option<RunState>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Shows a run.
    Get {
        /// Its id.
        id: RunId,
    },
    /// Cancels a run, or asks whoever executes it to stop.
    Cancel {
        /// Its id.
        id: RunId,
    },
    /// Queues an ended run again.
    Retry {
        /// Its id.
        id: RunId,
    },
    /// Queues all ended runs again that are in a state, oldest first.
    Redrive {
        /// Only runs of this task, by its name or id.
        #[arg(long, value_name = "TASK")]
        task: Option<TaskRef>,
        /// Only runs in this state: dead, failed, cancelled.
        #[arg(long, value_name = "STATE", default_value = "dead")]
        state: RunState,
        /// The most runs; all when absent.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
}
