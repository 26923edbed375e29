//! Where settings come from, and how one source goes over another. Knows no setting.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// The prefix of every environment variable; `__` separates the levels.
pub(super) const PREFIX: &str = "SWITCHBOARD_";

/// Variables with this prefix belong to tests and are no configuration.
const TEST_PREFIX: &str = "SWITCHBOARD_TEST_";

/// Variables that the command line reads itself.
const NOT_KEYS: [&str; 4] =
    ["SWITCHBOARD_CONFIG", "SWITCHBOARD_URL", "SWITCHBOARD_API_KEY", "SWITCHBOARD_WEBHOOK_SECRET"];

/// One source of settings, and what to call it in an error.
pub(super) struct Layer {
    source: String,
    table: Table,
}

impl Layer {
    /// Reads a file. Its lines may hold secrets, so none is repeated in an error.
    pub(super) fn file(path: &Path) -> anyhow::Result<Self> {
        let source = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {source}"))?;
        let table = text.parse().map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            anyhow!("{source}, line {}: {}", before.matches('\n').count() + 1, error.message())
        })?;
        Ok(Self { source, table })
    }

    /// Turns each variable into a layer of its own, so that an error can name it.
    pub(super) fn variables(variables: impl Iterator<Item = (String, String)>) -> Vec<Self> {
        let is_key =
            |name: &str| name.starts_with(PREFIX) && !name.starts_with(TEST_PREFIX) && !NOT_KEYS.contains(&name);
        let mut named: Vec<_> = variables.filter(|(name, _)| is_key(name)).collect();
        named.sort();
        let layer = |(name, value): (String, String)| {
            let key = name[PREFIX.len()..].to_ascii_lowercase();
            Self { table: nested(&mut key.split("__"), &value), source: name }
        };
        named.into_iter().map(layer).collect()
    }

    /// Makes a layer of one flag of the command line.
    pub(super) fn flag(key: &str, value: &str) -> Self {
        Self { source: format!("flag for {key}"), table: nested(&mut key.split('.'), value) }
    }

    #[cfg(test)]
    pub(super) fn of(source: &str, text: &str) -> Self {
        Self { source: source.to_owned(), table: text.parse().unwrap() }
    }
}

/// Checks each layer by itself, then lays later ones over earlier ones.
pub(super) fn merge<T: DeserializeOwned>(layers: Vec<Layer>) -> anyhow::Result<T> {
    let mut merged = Table::new();
    for layer in layers {
        read::<T>(layer.table.clone()).with_context(|| layer.source)?;
        overlay(&mut merged, layer.table);
    }
    read(merged)
}

/// Reads settings; an error names the one that is wrong.
fn read<T: DeserializeOwned>(table: Table) -> anyhow::Result<T> {
    serde_path_to_error::deserialize(table).map_err(|error| match error.path().to_string().as_str() {
        "." => anyhow!("{}", error.inner().message()),
        key => anyhow!("{key}: {}", error.inner().message()),
    })
}

fn nested(keys: &mut dyn Iterator<Item = &str>, value: &str) -> Table {
    fn build(keys: &mut dyn Iterator<Item = &str>, value: &str) -> Value {
        match keys.next() {
            None => Value::String(value.to_owned()),
            Some(key) => Value::Table(Table::from_iter([(key.to_owned(), build(keys, value))])),
        }
    }
    match build(keys, value) {
        Value::Table(table) => table,
        _ => Table::new(),
    }
}

fn overlay(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => overlay(under, over),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}
