//! A child process that lives as long as its standard input is open: it takes orders there and answers by lines.
//!
//! A process that is killed closes its pipes, so the child sees the end of its caller without any signal.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::error::PostgresError;

/// A child that ends by itself when this value is dropped or this process dies.
#[derive(Debug)]
pub(crate) struct Watched {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Watched {
    /// Starts the child in a process group of its own, so that an interrupt of ours does not reach it.
    pub(crate) fn spawn(mut command: Command) -> Result<Self, PostgresError> {
        let name = command.get_program().to_string_lossy().into_owned();
        let fault = |error: std::io::Error| PostgresError::program(&name, error.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn().map_err(fault)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(PostgresError::program(name, "it has no pipes"));
        };
        Ok(Self { name, child, input: Some(input), output: BufReader::new(output) })
    }

    /// Waits for the next line of the child.
    pub(crate) fn line(&mut self) -> Result<String, PostgresError> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => Err(PostgresError::program(&self.name, "it ended without an answer")),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(PostgresError::program(&self.name, error.to_string())),
        }
    }

    /// Gives an order and tells whether the child carried it out.
    pub(crate) fn order(&mut self, order: &str) -> Result<bool, PostgresError> {
        if let Some(input) = &mut self.input {
            writeln!(input, "{order}").map_err(|error| PostgresError::program(&self.name, error.to_string()))?;
        }
        Ok(self.line()? == "done")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.input.take());
        // A child that cannot be waited for is gone, which is what was wanted.
        drop(self.child.wait());
    }
}
