//! Commands about runs.

use std::path::PathBuf;

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
    /// Makes many runs in one commit; a refused one does not affect the others.
    Create {
        /// The runs as JSON, in a list or one after the other: {"task": "NAME", "input": …, "delay": "5m",
        /// "dedupe_key": "…", "dedupe_scope": "forever"}; only the task must be there. - is standard input.
        #[arg(long, short = 'f', value_name = "FILE")]
        file: PathBuf,
    },
    /// Shows a run.
    Get {
        /// Its id.
        id: RunId,
    },
    /// Prints what a run writes as it comes, to the end of its attempt.
    Output {
        /// Its id.
        id: RunId,
        /// Only chunks after this number.
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        after: i64,
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
