//! Finds the folder of `initdb`, `pg_ctl` and `postgres` on this machine.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::environment::{BIN_VARIABLE, variable};

/// Folders whose children are named after a server version, and where the binaries are below such a child.
const VERSIONED: [(&str, &str, &str); 4] = [
    ("/usr/lib/postgresql", "", "bin"),
    ("/usr", "pgsql-", "bin"),
    ("/opt/homebrew/opt", "postgresql@", "bin"),
    ("/usr/local/opt", "postgresql@", "bin"),
];

/// Returns the folder of the server binaries: the one that `SWITCHBOARD_TEST_PG_BIN` names, else the first of `PATH`,
/// `pg_config --bindir` and the folders of the distributions (the newest version) that has them.
#[must_use]
pub fn find_binaries() -> Option<PathBuf> {
    if let Some(folder) = variable(BIN_VARIABLE) {
        return resolve(Path::new(&folder));
    }
    let path = variable("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).collect::<Vec<_>>();
    on_path.into_iter().chain(from_pg_config()).chain(from_distributions()).find_map(|folder| resolve(&folder))
}

/// Follows links to the real folder, where the server looks for its own files.
fn resolve(folder: &Path) -> Option<PathBuf> {
    let is_complete = ["pg_ctl", "postgres"].iter().all(|program| folder.join(program).is_file());
    let real = folder.join("initdb").canonicalize().ok()?.parent()?.to_owned();
    (is_complete && real.join("postgres").is_file()).then_some(real)
}

fn from_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(folder.trim()))
}

fn from_distributions() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (parent, prefix, below) in VERSIONED {
        let children = std::fs::read_dir(parent).into_iter().flatten().flatten();
        found.extend(children.filter_map(|child| {
            let version = version_in(&child.file_name(), prefix)?;
            Some((version, child.path().join(below)))
        }));
    }
    found.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    found.into_iter().map(|(_, folder)| folder).collect()
}

/// Reads the major version behind `prefix` in a folder name.
fn version_in(name: &OsStr, prefix: &str) -> Option<u32> {
    let version = name.to_str()?.strip_prefix(prefix)?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_folder_names_of_distributions() {
        assert_eq!(version_in(OsStr::new("15"), ""), Some(15));
        assert_eq!(version_in(OsStr::new("9.6"), ""), Some(9));
        assert_eq!(version_in(OsStr::new("pgsql-18"), "pgsql-"), Some(18));
        assert_eq!(version_in(OsStr::new("postgresql@17"), "postgresql@"), Some(17));
        assert_eq!(version_in(OsStr::new("lib"), "pgsql-"), None);
    }

    #[test]
    fn a_folder_without_the_programs_is_no_server() {
        assert_eq!(resolve(Path::new("/")), None);
    }
}
