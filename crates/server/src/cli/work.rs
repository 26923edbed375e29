//! Commands of external workers.

use clap::{Args, Subcommand};
use switchboard_model::identity::{PoolName, WorkerName};
use switchboard_model::ids::RunId;
use switchboard_model::span::Span;
use switchboard_model::wire::work::FailKind;
use uuid::Uuid;

#[derive(Debug, Subcommand)]
pub(crate) enum WorkCommand {
    /// Leases runs of a pool.
    Lease {
        /// The pool.
        pool: PoolName,
        /// What the worker calls itself.
        #[arg(long, value_name = "NAME", default_value = "cli")]
        worker: WorkerName,
        /// The most runs.
        #[arg(long, value_name = "N", default_value_t = 1)]
        max: u32,
        /// How long the leases hold without a heartbeat, 1s to 10m; as long as those of the server if absent.
        #[arg(long, value_name = "DURATION")]
        lease: Option<Span>,
        /// Waits so long for a run when there is none.
        #[arg(long, value_name = "DURATION")]
        wait: Option<Span>,
        /// Identifies the request: repeated, it gives the same runs again while their leases hold. A new one if absent.
        #[arg(long, value_name = "UUID")]
        request_id: Option<Uuid>,
    },
    /// Says that the work goes on, and learns whether somebody asked to cancel it.
    Heartbeat {
        #[command(flatten)]
        held: Held,
        /// How long the lease holds from now on, 1s to 10m; as long as those of the server if absent.
        #[arg(long, value_name = "DURATION")]
        lease: Option<Span>,
    },
    /// Reports that a run has succeeded.
    Finish {
        #[command(flatten)]
        held: Held,
        /// What the run returns, as JSON; - reads it from standard input.
        #[arg(long, value_name = "JSON")]
        result: Option<String>,
    },
    /// Reports that an attempt has failed.
    Fail {
        #[command(flatten)]
        held: Held,
        /// What went wrong.
        #[arg(long, value_name = "TEXT")]
        error: String,
        /// Whether another attempt may help: retry, permanent.
        #[arg(long, value_name = "KIND", default_value = "retry")]
        kind: FailKind,
        /// How long to wait before the next attempt; as the task defines if absent.
        #[arg(long, value_name = "DURATION")]
        delay: Option<Span>,
    },
    /// Gives a run back untouched; the attempt does not count.
    Release {
        #[command(flatten)]
        held: Held,
    },
}

/// A leased run.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Held {
    /// The id of the run.
    pub(crate) id: RunId,
    /// The number of its lease, as `work lease` prints it.
    #[arg(long, value_name = "N")]
    pub(crate) fence: i64,
}
