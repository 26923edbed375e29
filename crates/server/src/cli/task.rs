//! Commands about tasks.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use switchboard_model::Timestamp;
use switchboard_model::identity::ClientKey;
use switchboard_model::run::DedupeScope;
use switchboard_model::span::Span;
use switchboard_model::task::TaskRef;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Lists tasks.
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Shows a task.
    Get {
        /// Its name or id.
        task: TaskRef,
    },
    /// Creates the tasks that files define: several in one commit, of which a refused one does not affect the others.
    Create {
        #[command(flatten)]
        documents: Documents,
    },
    /// Makes the tasks of files exist as they are defined: creates, updates or leaves each one.
    ///
    /// A file holds one task, a list of tasks, or a list under `tasks`, as JSON, TOML or YAML; JSON and YAML may hold
    /// several documents. Nothing is sent before everything was read and checked.
    Apply {
        #[command(flatten)]
        documents: Documents,
        /// Only says what would be done.
        #[arg(long)]
        dry_run: bool,
    },
    /// Deletes a task; its runs stay.
    Delete {
        /// Its name or id.
        task: TaskRef,
    },
    /// Takes the schedule of a task out of force.
    Pause {
        /// Its name or id.
        task: TaskRef,
    },
    /// Puts the schedule of a task in force again.
    Resume {
        /// Its name or id.
        task: TaskRef,
    },
    /// Runs a task now.
    Trigger {
        /// Its name or id.
        task: TaskRef,
        /// What the run is given, as JSON; - reads it from standard input.
        #[arg(long, value_name = "JSON")]
        input: Option<String>,
        /// Waits so long for the run to end; the exit code is not 0 when it has not succeeded by then.
        #[arg(long, value_name = "DURATION")]
        wait: Option<Span>,
        /// How long the run waits before it is ready.
        #[arg(long, value_name = "DURATION")]
        delay: Option<Span>,
        /// While a run with the same key is active, no second one is made.
        #[arg(long, value_name = "KEY")]
        dedupe_key: Option<ClientKey>,
        /// For how long the key is taken.
        #[arg(long, value_name = "SCOPE", requires = "dedupe_key", default_value = "active")]
        dedupe_scope: KeyHolds,
    },
    /// Shows when a schedule is due, and what policies do to each occurrence.
    Preview {
        #[command(flatten)]
        source: PreviewSource,
        /// The zone whose clocks the cron expression is read by; UTC if absent.
        #[arg(long, value_name = "ZONE", requires = "cron")]
        zone: Option<String>,
        /// Only occurrences after this instant (RFC 3339); now if absent.
        #[arg(long, value_name = "INSTANT")]
        from: Option<Timestamp>,
        /// How many occurrences.
        #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
        count: u32,
    },
    /// Lists the occurrences of a task, newest first: which ran, why the others did not, and which are to come.
    Occurrences {
        /// Its name or id.
        task: TaskRef,
        /// The first instant (RFC 3339).
        #[arg(long, value_name = "INSTANT")]
        from: Option<Timestamp>,
        /// The last instant (RFC 3339); now if absent. One in the future shows what is to come.
        #[arg(long, value_name = "INSTANT")]
        to: Option<Timestamp>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Lists the occurrences of a task that did not run, and why.
    Skips {
        /// Its name or id.
        task: TaskRef,
        #[command(flatten)]
        limit: Limit,
    },
}

/// Whose schedule is previewed.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PreviewSource {
    /// The name or id of a task.
    pub(crate) task: Option<TaskRef>,
    /// A cron expression instead, such as "0 2 * * *".
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) cron: Option<String>,
    /// A fixed interval instead, such as 15m.
    #[arg(long, value_name = "DURATION")]
    pub(crate) every: Option<Span>,
}

/// Files that define tasks.
#[derive(Debug, Args)]
pub(crate) struct Documents {
    /// A file; - is standard input. May be given several times.
    #[arg(long = "file", short = 'f', value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// How the files are written; by default their names tell, and standard input is JSON or YAML.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<DocumentFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DocumentFormat {
    /// JSON; payloads stay byte for byte.
    Json,
    /// TOML.
    Toml,
    /// YAML.
    Yaml,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum KeyHolds {
    /// While its run is active.
    Active,
    /// For ever, also after its run was pruned.
    Forever,
}

impl From<KeyHolds> for DedupeScope {
    fn from(holds: KeyHolds) -> Self {
        match holds {
            KeyHolds::Active => Self::Active,
            KeyHolds::Forever => Self::Forever,
        }
    }
}
