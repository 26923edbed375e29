//! Rules about migrations: both databases have the same ones, and none is edited after it has landed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};

use super::source::{Finding, Source, read_tree};

const FOLDERS: [&str; 2] = ["migrations/postgres/", "migrations/sqlite/"];
const CHECKSUMS: &str = "migrations/checksums.txt";

/// Requires the same numbers and names on both sides, numbered `0001_verb_object.sql` without a gap.
pub(super) fn have_twins(sources: &[Source]) -> Vec<Finding> {
    let names = |folder: &str| {
        let names = sources.iter().filter_map(|source| source.path.strip_prefix(folder));
        names.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let sides = FOLDERS.map(names);
    let mut findings = Vec::new();
    for (own, other) in [(0, 1), (1, 0)] {
        for (index, name) in sides[own].iter().enumerate() {
            let path = format!("{}{name}", FOLDERS[own]);
            if !sides[other].contains(name) {
                findings.push(Finding::new(&path, 1, "the other database has no migration of this name"));
            }
            if !name.starts_with(&format!("{:04}_", index + 1)) || !name.ends_with(".sql") {
                findings.push(Finding::new(&path, 1, "migrations are called 0001_verb_object.sql, without a gap"));
            }
        }
    }
    findings
}

/// Requires that each migration is as it was when it landed.
pub(super) fn are_never_edited(sources: &[Source]) -> Vec<Finding> {
    let landed = landed(sources);
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for source in migrations(sources) {
        seen.insert(source.path.as_str());
        let message = match landed.get(source.path.as_str()) {
            None => "it has no checksum: run cargo xtask record-migrations",
            Some(sum) if *sum != checksum(&source.text) => "it has landed and must not be edited: add a new migration",
            Some(_) => continue,
        };
        findings.push(Finding::new(&source.path, 1, message));
    }
    let gone = landed.keys().filter(|path| !seen.contains(**path));
    findings.extend(gone.map(|path| Finding::new(path, 1, "it has landed and must not be removed")));
    findings
}

/// Adds the checksums of new migrations.
///
/// # Errors
/// When a landed migration was edited, or a file is out of reach.
pub(crate) fn record(root: &Path) -> anyhow::Result<()> {
    let sources = read_tree(root)?;
    let landed = landed(&sources);
    let mut text = String::new();
    for source in migrations(&sources) {
        let sum = checksum(&source.text);
        let is_kept = landed.get(source.path.as_str()).is_none_or(|known| *known == sum);
        ensure!(is_kept, "{} has landed and must not be edited", source.path);
        text.push_str(&format!("{sum}  {}\n", source.path));
    }
    std::fs::write(root.join(CHECKSUMS), text).context(CHECKSUMS)
}

fn migrations(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| FOLDERS.iter().any(|folder| source.path.starts_with(folder)))
}

/// Returns the checksum of each landed migration by its path.
fn landed(sources: &[Source]) -> BTreeMap<&str, &str> {
    let file = sources.iter().find(|source| source.path == CHECKSUMS);
    let lines = file.map_or("", |source| source.text.as_str()).lines();
    lines.filter_map(|line| line.split_once("  ")).map(|(sum, path)| (path, sum)).collect()
}

fn checksum(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_without_a_twin_or_with_a_gap_is_found() {
        let paths = ["migrations/postgres/0001_create_feed.sql", "migrations/postgres/0003_create_rooms.sql"];
        let mut sources = paths.iter().map(|path| Source::new(path, "")).collect::<Vec<_>>();
        assert_eq!(have_twins(&sources).len(), 3);
        sources = vec![
            Source::new("migrations/postgres/0001_a.sql", "pg"),
            Source::new("migrations/sqlite/0001_a.sql", "lite"),
        ];
        assert_eq!(have_twins(&sources), []);
    }

    #[test]
    fn edited_removed_and_unrecorded_migrations_are_found() {
        let checksums = format!(
            "{}  migrations/sqlite/0001_a.sql\n{}  migrations/sqlite/0002_b.sql\n0  migrations/sqlite/0003_c.sql\n",
            checksum("a"),
            checksum("b")
        );
        let sources = [
            Source::new(CHECKSUMS, &checksums),
            Source::new("migrations/sqlite/0001_a.sql", "a"),
            Source::new("migrations/sqlite/0002_b.sql", "edited"),
            Source::new("migrations/sqlite/0004_d.sql", "new"),
        ];
        assert_eq!(are_never_edited(&sources).len(), 3);
    }
}
