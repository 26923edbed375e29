//! The dependency rule: arrows between packages go downwards only, and some libraries stay where they belong.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use super::source::Finding;
use crate::run;

/// What each package may know, test-only dependencies aside. A package that is not listed is a finding.
const ARROWS: [(&str, &[&str]); 15] = [
    ("model", &[]),
    ("store-api", &["model"]),
    ("store-conformance", &["model", "store-api"]),
    ("store-pg", &["model", "store-api"]),
    ("store-sqlite", &["model", "store-api"]),
    ("events", &["model", "store-api"]),
    ("scheduler", &["model", "store-api"]),
    ("runs", &["model", "store-api"]),
    ("http", &["model", "store-api", "events", "scheduler", "runs"]),
    ("client", &["model"]),
    ("server", &["model", "store-api", "store-pg", "store-sqlite", "events", "scheduler", "runs", "http", "client"]),
    ("testkit", &["model", "store-api", "store-pg", "client", "testkit-postgres"]),
    ("testkit-postgres", &[]),
    ("testkit-docker", &[]),
    ("xtask", &["testkit-postgres"]),
];

/// What tests of any package may know besides.
const FOR_TESTS: [&str; 5] = ["store-conformance", "store-sqlite", "client", "testkit", "testkit-postgres"];

/// Where a library may be used.
const HOMES: [(&str, &[&str]); 4] = [
    ("sqlx", &["store-pg", "store-sqlite", "testkit", "xtask"]),
    ("axum", &["http", "server"]),
    ("clap", &["server", "xtask"]),
    ("anyhow", &["server", "testkit", "xtask"]),
];

/// A package and what it asks for.
#[derive(Debug, Default)]
pub(super) struct Package {
    /// The name without `switchboard-`.
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug)]
struct Dependency {
    name: String,
    is_for_tests: bool,
}

/// Reads the packages of the workspace from cargo.
///
/// # Errors
/// When cargo fails or answers in another form.
pub(super) fn read(root: &Path) -> anyhow::Result<Vec<Package>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&run::printed(&mut cargo)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    Ok(packages.iter().map(package).collect())
}

fn package(value: &Value) -> Package {
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let dependency = |value: &Value| Dependency { name: name(value), is_for_tests: value["kind"] == "dev" };
    let dependencies = value["dependencies"].as_array().into_iter().flatten().map(dependency).collect();
    Package { name: short(&name(value)).unwrap_or_default().to_owned(), dependencies }
}

/// Requires that packages know only what they may.
pub(super) fn keep_the_dependency_rule(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
            findings.push(finding(package, "is not in the dependency rule of xtask"));
            continue;
        };
        for dependency in &package.dependencies {
            if !may_know(&package.name, allowed, dependency) {
                findings.push(finding(package, &format!("must not depend on {}", dependency.name)));
            }
        }
    }
    findings
}

fn may_know(package: &str, allowed: &[&str], dependency: &Dependency) -> bool {
    if let Some(own) = short(&dependency.name) {
        return allowed.contains(&own) || (dependency.is_for_tests && FOR_TESTS.contains(&own));
    }
    HOMES.iter().find(|(library, _)| *library == dependency.name).is_none_or(|(_, homes)| homes.contains(&package))
}

fn short(name: &str) -> Option<&str> {
    name.strip_prefix("switchboard-")
}

fn finding(package: &Package, message: &str) -> Finding {
    let path = if package.name == "xtask" { "xtask".to_owned() } else { format!("crates/{}", package.name) };
    Finding::new(&format!("{path}/Cargo.toml"), 1, format!("{} {message}", package.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, dependency: &str, kind: &str) -> usize {
        let text = format!(
            r#"{{"name": "switchboard-{name}", "dependencies": [{{"name": "{dependency}", "kind": {kind}}}]}}"#
        );
        keep_the_dependency_rule(&[package(&serde_json::from_str(&text).unwrap())]).len()
    }

    #[test]
    fn an_arrow_upwards_is_found() {
        assert_eq!(findings("model", "switchboard-store-api", "null"), 1);
        assert_eq!(findings("scheduler", "switchboard-events", "null"), 1);
        assert_eq!(findings("http", "switchboard-events", "null"), 0);
    }

    #[test]
    fn tests_may_know_the_test_packages_but_no_more() {
        assert_eq!(findings("events", "switchboard-testkit", "\"dev\""), 0);
        assert_eq!(findings("events", "switchboard-testkit", "null"), 1);
        assert_eq!(findings("events", "switchboard-server", "\"dev\""), 1);
    }

    #[test]
    fn a_library_away_from_its_home_is_found() {
        assert_eq!(findings("http", "sqlx", "null"), 1);
        assert_eq!(findings("scheduler", "axum", "\"dev\""), 1);
        assert_eq!(findings("store-pg", "sqlx", "null"), 0);
        assert_eq!(findings("model", "serde", "null"), 0);
    }

    #[test]
    fn a_package_that_the_rule_does_not_list_is_found() {
        assert_eq!(findings("surprise", "serde", "null"), 1);
    }
}
