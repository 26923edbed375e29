//! PostgreSQL in Docker, through the program of the package `switchboard-testkit-docker`.
//!
//! The container library is large, so it lives in a package of its own that is built only where Docker answers.

use std::process::{Command, Stdio};

use crate::error::PostgresError;
use crate::process::Watched;

/// Tells whether a Docker engine answers.
pub(crate) fn is_available() -> bool {
    let mut question = Command::new("docker");
    question.arg("info").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    question.status().is_ok_and(|status| status.success())
}

/// Starts a container and returns the URL with what keeps it alive.
pub(crate) fn start() -> Result<(String, Watched), PostgresError> {
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet", "--package", "switchboard-testkit-docker"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit());
    let mut watched = Watched::spawn(command)?;
    let url = watched.line()?;
    Ok((url, watched))
}
