//! Commands about runs.

use clap::Subcommand;
use switchboard_model::ids::RunId;
use switchboard_model::run::RunState;

use super::{Limit, TaskRef};

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
}
