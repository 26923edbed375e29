//! Rules about the manifests: every dependency has a purpose, and its features are set in one place.

use std::collections::BTreeSet;

use super::source::{Finding, Source};

/// Requires a purpose above each dependency of the workspace, a package that uses it, and that packages take their
/// dependencies from there only.
pub(super) fn explain_and_share_dependencies(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with("Cargo.toml")) {
        // The root, and the manifest of the fuzz targets, which are a workspace of their own.
        findings.extend(without_purpose(source));
        findings.extend(unused(source, sources));
        findings.extend(not_shared(source));
    }
    if !sources.iter().any(|source| source.path == "Cargo.lock") {
        findings.push(Finding::new("Cargo.lock", 1, "commit the lock file"));
    }
    findings
}

fn without_purpose(root: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut line_above = "";
    for (number, line) in lines_of_tables(root, is_shared) {
        let is_own = line.starts_with("switchboard-");
        if is_entry(line) && !is_own && !line_above.starts_with('#') {
            findings.push(Finding::new(&root.path, number, "say in a comment line above what it is for"));
        }
        line_above = line;
    }
    findings
}

fn unused(root: &Source, sources: &[Source]) -> Vec<Finding> {
    let packages = sources.iter().filter(|source| source.path.ends_with("Cargo.toml"));
    let used = packages.flat_map(|source| lines_of_tables(source, is_of_package)).map(|(_, line)| line);
    let used = used.collect::<BTreeSet<_>>();
    let mut findings = Vec::new();
    for (number, line) in lines_of_tables(root, is_shared).filter(|(_, line)| is_entry(line)) {
        let name = line.split([' ', '=']).next().unwrap_or(line);
        let is_own = name.starts_with("switchboard-");
        if !is_own && !used.contains(format!("{name}.workspace = true").as_str()) {
            findings.push(Finding::new(&root.path, number, format!("no package uses {name}")));
        }
    }
    findings
}

fn not_shared(package: &Source) -> Vec<Finding> {
    let own_settings = lines_of_tables(package, is_of_package)
        .filter(|(_, line)| is_entry(line) && !line.ends_with(".workspace = true"));
    own_settings
        .map(|(number, _)| Finding::new(&package.path, number, "write NAME.workspace = true, settings go to the root"))
        .collect()
}

/// Returns the lines of the tables whose heads are wanted.
fn lines_of_tables(source: &Source, is_wanted: fn(&str) -> bool) -> impl Iterator<Item = (usize, &str)> {
    let mut is_inside = false;
    source.numbered().filter(move |(_, line)| {
        if line.starts_with('[') {
            is_inside = is_wanted(line);
        }
        is_inside
    })
}

/// Tells whether a table has the dependencies that the packages of a workspace share.
fn is_shared(head: &str) -> bool {
    head == "[workspace.dependencies]"
}

/// Tells whether a table has dependencies of one package.
fn is_of_package(head: &str) -> bool {
    head.trim_end_matches(']').ends_with("dependencies") && !is_shared(head)
}

fn is_entry(line: &str) -> bool {
    line.starts_with(|letter: char| letter.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        explain_and_share_dependencies(&[Source::new(path, text), Source::new("Cargo.lock", "")]).len()
    }

    #[test]
    fn a_dependency_without_a_purpose_or_a_user_is_found() {
        let user = Source::new(
            "crates/a/Cargo.toml",
            "[dependencies]\nswitchboard-b.workspace = true\nchrono.workspace = true\n",
        );
        let own = "[workspace.dependencies]\n# Our own.\nswitchboard-b = { path = \"b\" }\n";
        let findings = |entries: &str| {
            let root = Source::new("Cargo.toml", &format!("{own}{entries}"));
            without_purpose(&root).len() + unused(&root, std::slice::from_ref(&user)).len()
        };
        assert_eq!(findings("# Dates.\nchrono = \"0.4\"\n"), 0);
        assert_eq!(findings("chrono = \"0.4\"\n"), 1);
        assert_eq!(findings("# Text.\nregex = \"1\"\n"), 1);
    }

    #[test]
    fn a_package_with_its_own_version_or_features_is_found() {
        assert_eq!(
            findings("crates/a/Cargo.toml", "[dependencies]\nserde.workspace = true\n\n[[bin]]\nname = \"a\"\n"),
            0
        );
        assert_eq!(findings("crates/a/Cargo.toml", "[dev-dependencies]\nserde = \"1\"\n"), 1);
        let features = "[dependencies]\nserde = { workspace = true, features = [\"rc\"] }\n";
        assert_eq!(findings("crates/a/Cargo.toml", features), 1);
    }

    #[test]
    fn another_workspace_explains_and_uses_its_own() {
        let shared = "[workspace.dependencies]\n# Text.\nregex = \"1\"\n";
        assert_eq!(findings("fuzz/Cargo.toml", &format!("{shared}[dependencies]\nregex.workspace = true\n")), 0);
        assert_eq!(findings("fuzz/Cargo.toml", shared), 1);
        assert_eq!(findings("fuzz/Cargo.toml", &format!("{shared}[dependencies]\nregex = \"1\"\n")), 2);
    }

    #[test]
    fn a_missing_lock_file_is_found() {
        assert_eq!(explain_and_share_dependencies(&[]).len(), 1);
    }
}
