//! `cargo xtask soak`: the long forms of what the tests check briefly. They measure times, on a database of their own.

use std::path::Path;

use clap::{Args, ValueEnum};

use crate::run;

/// What can be soaked.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Subject {
    /// Whether refused sign-ins differ in time, and how fast a disabled user is out on every replica.
    SignIn,
}

/// What `soak` runs.
#[derive(Args)]
pub(crate) struct SoakOptions {
    /// What is soaked.
    #[arg(value_enum)]
    subject: Subject,
}

/// Builds the server and runs the soak; fails when a bound did not hold.
pub(crate) fn run(root: &Path, options: &SoakOptions) -> anyhow::Result<()> {
    let name = match options.subject {
        Subject::SignIn => "sign-in",
    };
    let build = ["build", "--package", "switchboard-server", "--package", "switchboard-testkit"];
    run::cargo(root, &build)?;
    let server = run::target_folder()?.join("debug/switchboard");
    let server = server.to_string_lossy();
    run::cargo(root, &["run", "--package", "switchboard-testkit", "--bin", "switchboard-soak", "--", name, &server])
}
