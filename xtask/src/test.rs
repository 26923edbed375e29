//! `cargo xtask test`: the steps, their order, and the one PostgreSQL server that all tests share.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::ValueEnum;
use switchboard_testkit_postgres::{BIN_VARIABLE, Durability, PostgresServer, URL_VARIABLE, find_binaries};

use crate::{TestOptions, run, tidy};

/// The package that is built only where Docker answers, since its container library is large.
const DOCKER_PACKAGE: &str = "switchboard-testkit-docker";

/// The package whose tests start servers of their own from the binaries on the machine.
const STEERING_PACKAGE: &str = "switchboard-testkit-postgres";

/// A part of the run, cheap ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Formatting.
    Fmt,
    /// The rules of the house.
    Tidy,
    /// The client for browsers, in Node.
    Sdk,
    /// Licences, banned and duplicate dependencies, sources; where cargo-deny is installed.
    Deny,
    /// Lints.
    Clippy,
    /// Unit, conformance and end-to-end tests on both databases.
    Tests,
    /// The examples in the documentation.
    Doc,
}

/// How a step ended.
enum Ending {
    Passed,
    Failed(anyhow::Error),
    /// The reason why it was left out.
    LeftOut(&'static str),
}

/// Runs the chosen steps, all of them even if one fails, and prints a closing summary.
///
/// # Errors
/// When a step failed.
pub(crate) fn run(root: &Path, options: &TestOptions) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for step in Step::value_variants() {
        if !options.only.is_empty() && !options.only.contains(step) {
            continue;
        }
        println!("\n== {} ==", name(*step));
        let start = Instant::now();
        let ending = run_step(root, *step, options);
        if let Ending::Failed(error) = &ending {
            println!("{error:#}");
        }
        rows.push((*step, ending, start.elapsed()));
    }
    println!();
    for (step, ending, time) in &rows {
        let result = match ending {
            Ending::Passed => "ok",
            Ending::Failed(_) => "FAILED",
            Ending::LeftOut(reason) => reason,
        };
        println!("{:<8}{:>8.1} s  {result}", name(*step), time.as_secs_f64());
    }
    let failed = rows.iter().filter(|(_, ending, _)| matches!(ending, Ending::Failed(_))).count();
    if failed > 0 {
        bail!("{failed} of {} steps failed", rows.len());
    }
    Ok(())
}

fn name(step: Step) -> String {
    step.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn run_step(root: &Path, step: Step, options: &TestOptions) -> Ending {
    let result = match step {
        Step::Fmt => run::cargo(root, &["fmt", "--all", "--check"]),
        Step::Tidy => tidy::run(root),
        Step::Sdk => sdk(root),
        Step::Deny if !is_installed("deny") => return Ending::LeftOut("left out: cargo-deny is not installed"),
        Step::Deny => run::cargo(root, &["deny", "check", "bans", "licenses", "sources"]),
        Step::Clippy => clippy(root),
        Step::Tests => tests(root, options),
        Step::Doc => run::shown(workspace(root, &["test"]).args(["--doc"])),
    };
    result.map_or_else(Ending::Failed, |()| Ending::Passed)
}

/// Runs the tests of the client for browsers that need no browser.
fn sdk(root: &Path) -> anyhow::Result<()> {
    let folder = root.join("crates/http/sdk/tests");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(".test.js") {
            files.push(path);
        }
    }
    let result = run::shown(Command::new("node").current_dir(root).arg("--test").args(files));
    result.context("the client for browsers is tested by Node 18 or newer")
}

fn clippy(root: &Path) -> anyhow::Result<()> {
    run::shown(workspace(root, &["clippy"]).args(["--all-targets", "--", "--deny", "warnings"]))
}

/// Runs the tests against one server, which ends with this step.
fn tests(root: &Path, options: &TestOptions) -> anyhow::Result<()> {
    // Built before the server starts, so that it does not idle through the compilation.
    let has_nextest = is_installed("nextest");
    let runner: &[&str] = if has_nextest { &["nextest", "run"] } else { &["test"] };
    run::shown(workspace(root, runner).arg("--no-run"))?;

    let server = match &options.pg_bin {
        Some(binaries) => PostgresServer::start(binaries, Durability::Fast),
        None => PostgresServer::find_or_start(Durability::Fast),
    };
    let server = server.context("the tests need a PostgreSQL server")?;
    let mut command = workspace(root, runner);
    command.env(URL_VARIABLE, server.url());
    match &options.pg_bin {
        Some(binaries) => _ = command.env(BIN_VARIABLE, binaries),
        None if find_binaries().is_some() => {}
        None => {
            println!("without server binaries no server can be paused or restarted: leaving out {STEERING_PACKAGE}");
            command.args(["--exclude", STEERING_PACKAGE]);
        }
    }
    if !has_nextest {
        // Documentation is a step of its own.
        command.args(["--no-fail-fast", "--lib", "--bins", "--tests"]);
    }
    run::shown(command.args(&options.filter))
}

/// Returns a cargo command over all packages that this machine can use.
fn workspace(root: &Path, command: &[&str]) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(command).arg("--workspace");
    if !run::succeeds(Command::new("docker").arg("info")) {
        cargo.args(["--exclude", DOCKER_PACKAGE]);
    }
    cargo
}

fn is_installed(subcommand: &str) -> bool {
    run::succeeds(Command::new("cargo").args([subcommand, "--version"]))
}
