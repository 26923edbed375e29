//! Rules about whole files: how they open, how long they are, what they are called.

use std::collections::BTreeSet;
use std::path::Path;

use super::source::{Finding, Source};

/// The most lines of a file, tests not counted.
const MOST_LINES: usize = 500;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 8] = ["util", "utils", "common", "helper", "helpers", "manager", "misc", "shared"];

/// Files that one store has and the other needs no twin of.
const SINGLE_STORE_FILES: [&str; 7] =
    ["diagnose.rs", "hints.rs", "hints/packet.rs", "link.rs", "outbox/events.rs", "rooms/lock.rs", "writer.rs"];

/// Requires that a file says first what it is for.
pub(super) fn opens_with_module_documentation(sources: &[Source]) -> Vec<Finding> {
    let silent = sources.iter().filter(|source| source.is_rust() && !source.text.starts_with("//!"));
    silent.map(|source| Finding::new(&source.path, 1, "open with //!: what it is for and must not know")).collect()
}

/// Requires that a file can be read in one sitting.
pub(super) fn stays_short(sources: &[Source]) -> Vec<Finding> {
    let lengths =
        sources.iter().filter(|source| source.is_rust()).map(|source| (source, source.product_lines().count()));
    lengths
        .filter(|(_, length)| *length > MOST_LINES)
        .map(|(source, length)| Finding::new(&source.path, length, format!("longer than {MOST_LINES} lines: split it")))
        .collect()
}

/// Requires that a file name tells what is inside.
pub(super) fn is_named_after_what_it_holds(sources: &[Source]) -> Vec<Finding> {
    let is_empty = |source: &&Source| {
        let parts = Path::new(&source.path).with_extension("");
        parts.iter().any(|part| EMPTY_NAMES.iter().any(|name| part == *name))
    };
    let findings = sources.iter().filter(|source| source.is_rust()).filter(is_empty);
    findings.map(|source| Finding::new(&source.path, 1, "the name says nothing: call it after what it holds")).collect()
}

/// Requires that whoever knows one store finds the way in the other.
pub(super) fn both_stores_have_the_same_files(sources: &[Source]) -> Vec<Finding> {
    let stores = ["crates/store-pg/src/", "crates/store-sqlite/src/"];
    let files = |store: &str| {
        let names = sources.iter().filter_map(|source| source.path.strip_prefix(store));
        names.filter(|name| !SINGLE_STORE_FILES.contains(name)).collect::<BTreeSet<_>>()
    };
    let (left, right) = (files(stores[0]), files(stores[1]));
    let lonely = |store: &str, own: &BTreeSet<&str>, other: &BTreeSet<&str>| {
        let missing = own.difference(other).map(|name| format!("{store}{name}"));
        missing.map(|path| Finding::new(&path, 1, "the other store has no file of this name")).collect::<Vec<_>>()
    };
    [lonely(stores[0], &left, &right), lonely(stores[1], &right, &left)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_module_documentation_is_found() {
        let sources = [Source::new("a.rs", "use std::fs;\n"), Source::new("b.rs", "//! Fine.\n")];
        assert_eq!(opens_with_module_documentation(&sources).len(), 1);
    }

    #[test]
    fn a_long_file_is_found_unless_tests_make_it_long() {
        let long = "//! x\n".repeat(501);
        let tests = format!("//! x\n#[cfg(test)]\nmod tests {{\n{}}}\n", "// x\n".repeat(600));
        let sources = [Source::new("a.rs", &long), Source::new("b.rs", &tests), Source::new("c.md", &long)];
        assert_eq!(stays_short(&sources), [Finding::new("a.rs", 501, "longer than 500 lines: split it")]);
    }

    #[test]
    fn a_name_that_says_nothing_is_found_in_files_and_folders() {
        let paths = ["crates/a/src/util.rs", "crates/a/src/helpers/mod.rs", "crates/a/src/utility_pole.rs"];
        let sources = paths.map(|path| Source::new(path, ""));
        assert_eq!(is_named_after_what_it_holds(&sources).len(), 2);
    }

    #[test]
    fn a_store_file_without_a_twin_is_found() {
        let paths =
            ["store-pg/src/runs.rs", "store-pg/src/hints.rs", "store-sqlite/src/writer.rs", "store-sqlite/src/x.rs"];
        let sources = paths.map(|path| Source::new(&format!("crates/{path}"), ""));
        assert_eq!(both_stores_have_the_same_files(&sources).len(), 2);
    }
}
