//! Commands about the audit log.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use switchboard_model::Timestamp;
use switchboard_model::audit::AuditFilter;

use super::Limit;

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Lists entries, newest first.
    List {
        #[command(flatten)]
        selection: AuditSelection,
        #[command(flatten)]
        limit: Limit,
    },
    /// Prints all entries, oldest first, one JSON text a line; the exit code is not 0 when some are missing.
    Export {
        #[command(flatten)]
        selection: AuditSelection,
        /// Writes to this file instead, which appears when everything is in it.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// Which entries are wanted.
#[derive(Debug, Args)]
pub(crate) struct AuditSelection {
    /// Only what this actor did: user:ID, key:ID or system:PART.
    #[arg(long, value_name = "ACTOR")]
    actor: Option<String>,
    /// Only this action, such as task.create, or all that start with it when it ends in a dot.
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Only what was done to this, such as the id of a task.
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// Only entries of this instant (RFC 3339) or later.
    #[arg(long, value_name = "INSTANT")]
    from: Option<Timestamp>,
    /// Only entries before this instant (RFC 3339).
    #[arg(long, value_name = "INSTANT")]
    to: Option<Timestamp>,
}

impl From<AuditSelection> for AuditFilter {
    fn from(selection: AuditSelection) -> Self {
        let AuditSelection { actor, action, subject, from, to } = selection;
        Self { actor, action, subject, from, to }
    }
}
