//! The files of the tree as the rules see them, and what a rule finds. It knows no rule.

use std::fmt;
use std::path::Path;
use std::process::Command;

use crate::run;

/// A text file of the tree.
#[derive(Debug)]
pub(super) struct Source {
    /// The path from the root, with slashes.
    pub(super) path: String,
    /// What it holds.
    pub(super) text: String,
}

impl Source {
    #[cfg(test)]
    pub(super) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Tells whether it is Rust.
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Tells whether the whole file exists for tests only.
    pub(super) fn is_test(&self) -> bool {
        let for_tests = ["crates/testkit", "crates/store-conformance/"];
        for_tests.iter().any(|folder| self.path.starts_with(folder))
            || self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
    }

    /// Returns the lines before the test module, which is the last item of a file, numbered from 1.
    pub(super) fn product_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.numbered().take(self.product_length())
    }

    /// Returns the lines that exist for tests only, numbered from 1.
    pub(super) fn test_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.numbered().skip(if self.is_test() { 0 } else { self.product_length() })
    }

    /// Returns all lines, numbered from 1.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    fn product_length(&self) -> usize {
        let lines = self.text.lines().collect::<Vec<_>>();
        let opens_tests = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests");
        lines.windows(2).position(opens_tests).unwrap_or(lines.len())
    }
}

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    pub(super) fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Reads all text files that are tracked, or would be if they were added.
///
/// # Errors
/// When git or the file system fails.
pub(super) fn read_tree(root: &Path) -> anyhow::Result<Vec<Source>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listing = run::printed(&mut git)?;
    let mut sources = Vec::new();
    for path in listing.split('\0').filter(|path| !path.is_empty()) {
        // A file that was deleted but not yet committed is no part of the tree; bytes that are no text have no rules.
        let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
        if let Ok(text) = String::from_utf8(bytes) {
            sources.push(Source { path: path.to_owned(), text });
        }
    }
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_module_ends_the_product_lines() {
        let source = Source::new("crates/a/src/b.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n}\n");
        assert_eq!(source.product_lines().collect::<Vec<_>>(), [(1, "fn a() {}")]);
        assert_eq!(source.test_lines().map(|(line, _)| line).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn files_for_tests_have_test_lines_only() {
        let source = Source::new("crates/a/tests/it/main.rs", "one\ntwo\n");
        assert!(source.is_test());
        assert_eq!(source.test_lines().count(), 2);
    }
}
