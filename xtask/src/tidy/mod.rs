//! `cargo xtask tidy`: the rules of the house that no compiler and no linter knows.
//!
//! A rule is a small function from the files of the tree to findings; each is tested with an input that breaks it.

mod files;
mod literals;
mod manifests;
mod migrations;
mod packages;
mod source;
mod sql;
mod state;
mod words;

use std::path::Path;

use anyhow::bail;

pub(crate) use self::migrations::record as record_migrations;
use self::source::{Finding, Source};

type Rule = fn(&[Source]) -> Vec<Finding>;

/// Every rule over the files of the tree.
const RULES: [Rule; 12] = [
    files::opens_with_module_documentation,
    files::stays_short,
    files::is_named_after_what_it_holds,
    files::both_stores_have_the_same_files,
    words::holds_no_unwanted_words,
    words::proves_what_it_expects,
    words::waits_on_conditions,
    sql::names_its_statements,
    state::is_registered,
    migrations::have_twins,
    migrations::are_never_edited,
    manifests::explain_and_share_dependencies,
];

/// Checks the tree and prints what is wrong.
///
/// # Errors
/// When there are findings, or the tree cannot be read.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let sources = source::read_tree(root)?;
    let mut findings = RULES.iter().flat_map(|rule| rule(&sources)).collect::<Vec<_>>();
    findings.extend(packages::keep_the_dependency_rule(&packages::read(root)?));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        return Ok(());
    }
    bail!("{} findings in {} files", findings.len(), sources.len());
}
