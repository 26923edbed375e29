//! Runs programs and tells how they ended.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// Runs cargo in `root` with its output shown.
///
/// # Errors
/// When it cannot be run or reports a failure.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    shown(Command::new("cargo").current_dir(root).args(arguments))
}

/// Runs a command with its output shown.
///
/// # Errors
/// When it cannot be run or reports a failure.
pub(crate) fn shown(command: &mut Command) -> anyhow::Result<()> {
    let line = describe(command);
    let status = command.status().with_context(|| line.clone())?;
    ensure!(status.success(), "{line}: {status}");
    Ok(())
}

/// Returns what a command prints.
///
/// # Errors
/// When it cannot be run, reports a failure or prints anything but UTF-8.
pub(crate) fn printed(command: &mut Command) -> anyhow::Result<String> {
    let line = describe(command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| line.clone())?;
    ensure!(output.status.success(), "{line}: {}", output.status);
    String::from_utf8(output.stdout).with_context(|| line)
}

/// Tells whether a command can be run and succeeds, without showing its output.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|ended| ended.success())
}

/// Returns the folder that this program was built into.
///
/// # Errors
/// When it was not run by cargo.
pub(crate) fn target_folder() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    program.ancestors().nth(2).map(Path::to_owned).context("xtask is not run by cargo")
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
