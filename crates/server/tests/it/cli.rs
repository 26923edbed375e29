//! The command line as the tests use it: run against a server, and judged by what it prints.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use switchboard_testkit::Cluster;

use crate::fixtures::{command, err, out, switchboard};

/// The binary, set up to talk to a server.
pub(crate) struct Cli {
    pub(crate) env: Vec<(&'static str, String)>,
}

impl Cli {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let url = cluster.base_urls().remove(0);
        Self { env: vec![("SWITCHBOARD_URL", url), ("SWITCHBOARD_API_KEY", cluster.key().expose().to_owned())] }
    }

    /// The same, with another credential.
    pub(crate) fn with_credential(&self, credential: &str) -> Self {
        Self { env: vec![self.env[0].clone(), ("SWITCHBOARD_API_KEY", credential.to_owned())] }
    }

    pub(crate) fn env(&self) -> Vec<(&str, &str)> {
        self.env.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        command(arguments, &self.env())
    }

    /// Runs a command that succeeds and returns what it prints for people.
    pub(crate) fn says(&self, arguments: &[&str]) -> String {
        let output = switchboard(arguments, &self.env());
        assert!(output.status.success(), "{arguments:?}: {}{}", out(&output), err(&output));
        out(&output)
    }

    /// Runs a command that succeeds and returns what it prints for programs.
    pub(crate) fn gives(&self, arguments: &[&str]) -> Value {
        let text = self.says(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Runs a command that fails and returns its error.
    pub(crate) fn fails(&self, arguments: &[&str]) -> String {
        let output = switchboard(arguments, &self.env());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}{}", out(&output), err(&output));
        err(&output)
    }

    /// Runs a command that succeeds with something on its standard input, and returns what it prints.
    pub(crate) fn says_to(&self, arguments: &[&str], input: &str) -> String {
        let output = self.reads(arguments, input);
        assert!(output.status.success(), "{arguments:?}: {}{}", out(&output), err(&output));
        out(&output)
    }

    /// Runs a command with something on its standard input.
    pub(crate) fn reads(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = self.piped(arguments);
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    pub(crate) fn piped(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// A definition in a file of its own.
pub(crate) fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}
