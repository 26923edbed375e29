//! What a replica writes: one file from its first boot to its last.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;

use serde_json::Value;

use crate::must::Must as _;

/// How many lines the end of a log has.
const TAIL_LINES: usize = 60;

/// The log of one replica.
#[derive(Debug)]
pub(super) struct ReplicaLog {
    path: PathBuf,
    /// How long the file was at the latest boot, in bytes.
    booted_at: usize,
}

impl ReplicaLog {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, booted_at: 0 }
    }

    /// Opens the file for a boot, twice: for standard output and for standard error.
    pub(super) fn open(&mut self) -> (File, File) {
        self.booted_at = self.text().len();
        let file = OpenOptions::new().create(true).append(true).open(&self.path).must("opening a log");
        (file.try_clone().must("opening a log"), file)
    }

    /// Returns everything since the first boot.
    pub(super) fn text(&self) -> String {
        fs::read(&self.path).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the last lines.
    pub(super) fn tail(&self) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// Returns the address that the latest boot has announced.
    pub(super) fn announced_url(&self) -> Option<String> {
        self.text().get(self.booted_at..)?.lines().find_map(announced_url)
    }
}

fn announced_url(line: &str) -> Option<String> {
    let entry: Value = serde_json::from_str(line).ok()?;
    (entry["message"] == "listening").then(|| entry["url"].as_str().map(str::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_log_line_that_announces_it() {
        let line = r#"{"level":"INFO","message":"listening","url":"http://127.0.0.1:81","target":"switchboard"}"#;
        assert_eq!(announced_url(line).as_deref(), Some("http://127.0.0.1:81"));
        assert_eq!(announced_url(r#"{"message":"stopping"}"#), None);
        assert_eq!(announced_url("thread panicked"), None);
    }
}
