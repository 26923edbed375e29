//! Configuration: a TOML file, then `SWITCHBOARD_*` variables, then flags; unknown keys are errors.
//!
//! The one owner of the process environment.

mod text;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use switchboard_model::api_key::API_KEY_PREFIX;
use switchboard_model::fire::MISFIRE_GRACE;
use switchboard_model::identity::PoolName;
use switchboard_model::instance::Role;
use switchboard_model::secret_text::SecretText;
use switchboard_model::span::Span;
use toml::{Table, Value};

/// The prefix of every environment variable; `__` separates the levels.
const PREFIX: &str = "SWITCHBOARD_";

/// Variables with this prefix belong to tests and are no configuration.
const TEST_PREFIX: &str = "SWITCHBOARD_TEST_";

/// Variables that are read elsewhere: the path of the file itself.
const NOT_KEYS: [&str; 1] = ["SWITCHBOARD_CONFIG"];

/// Everything an operator can set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Whether this is the only process on its database.
    pub(crate) replicas: Replicas,
    /// Whether unsafe settings end the boot instead of being logged.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) strict: bool,
    /// What this replica does.
    #[serde(deserialize_with = "text::list")]
    pub(crate) roles: Vec<Role>,
    /// The pools its worker serves.
    #[serde(deserialize_with = "text::list")]
    pub(crate) pools: Vec<PoolName>,
    /// An API key with every permission, for the first steps of an automated deployment.
    #[serde(deserialize_with = "text::secret")]
    pub(crate) bootstrap_key: Option<SecretText>,
    /// A file that holds the bootstrap key.
    pub(crate) bootstrap_key_file: Option<PathBuf>,
    pub(crate) instance: Instance,
    pub(crate) database: Database,
    pub(crate) server: Server,
    pub(crate) secrets: Secrets,
    pub(crate) scheduler: Scheduler,
    pub(crate) realtime: Realtime,
    pub(crate) drain: Drain,
    pub(crate) telemetry: Telemetry,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            replicas: Replicas::default(),
            strict: false,
            roles: Role::ALL.to_vec(),
            pools: vec![PoolName::default_pool()],
            bootstrap_key: None,
            bootstrap_key_file: None,
            instance: Instance::default(),
            database: Database::default(),
            server: Server::default(),
            secrets: Secrets::default(),
            scheduler: Scheduler::default(),
            realtime: Realtime::default(),
            drain: Drain::default(),
            telemetry: Telemetry::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Replicas {
    /// One process.
    #[default]
    Single,
    /// Any number of processes on one PostgreSQL database.
    Multi,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Instance {
    /// The name of this replica; a suffix that is new at every boot is added.
    pub(crate) name: String,
}

impl Default for Instance {
    fn default() -> Self {
        Self { name: "switchboard".to_owned() }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Database {
    /// `sqlite:FILE` or `postgres://…`.
    pub(crate) url: String,
    /// A URL that reaches PostgreSQL without a pooler between, for LISTEN and migrations.
    pub(crate) direct_url: Option<String>,
    /// The most pooled connections of this replica.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) pool_size: u32,
    /// Whether the URL leads to a transaction pooler.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) pooled: bool,
}

impl Default for Database {
    fn default() -> Self {
        Self { url: "sqlite:./switchboard.db".to_owned(), direct_url: None, pool_size: 10, pooled: false }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Server {
    /// Where to listen.
    pub(crate) bind: SocketAddr,
    /// The URL by which clients reach the deployment.
    pub(crate) public_url: Option<String>,
    /// The origins from which browsers may connect.
    #[serde(deserialize_with = "text::list")]
    pub(crate) allowed_origins: Vec<String>,
    /// Where probes and metrics are served besides, for networks that keep them apart.
    pub(crate) metrics_bind: Option<SocketAddr>,
    /// How long a plain request may take.
    pub(crate) request_timeout: Span,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from(([127, 0, 0, 1], 8080)),
            public_url: None,
            allowed_origins: Vec::new(),
            metrics_bind: None,
            request_timeout: Span::from_secs(30),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Secrets {
    /// The keys that seal stored secrets, as `id:<base64url of 32 bytes>`: the first seals, all open.
    #[serde(deserialize_with = "text::secrets")]
    pub(crate) keys: Vec<SecretText>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scheduler {
    /// How long a leased run is safe without renewal.
    pub(crate) lease: Span,
    /// The most runs at the same time on this replica.
    #[serde(deserialize_with = "text::scalar")]
    pub(crate) permits: u32,
    /// How late an occurrence may be noticed before it counts as missed.
    pub(crate) misfire_grace: Span,
    /// How long ended runs are kept.
    pub(crate) history: Span,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self {
            lease: Span::from_secs(15),
            permits: 32,
            misfire_grace: MISFIRE_GRACE,
            history: Span::from_secs(7 * 24 * 3600),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Hints {
    /// Replicas wake each other with NOTIFY.
    #[default]
    Notify,
    /// Replicas read the change feed four times a second instead.
    Off,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Realtime {
    /// How replicas learn of changes between two regular reads of the feed.
    pub(crate) hints: Hints,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Drain {
    /// How long a stopping replica goes on accepting, while balancers notice that it is not ready.
    pub(crate) delay: Span,
    /// How long sockets and runs have to end after that.
    pub(crate) timeout: Span,
}

impl Default for Drain {
    fn default() -> Self {
        Self { delay: Span::default(), timeout: Span::from_secs(30) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// For people.
    Human,
    /// For machines.
    Json,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Telemetry {
    /// What is logged, as a tracing filter such as `info,switchboard_events=debug`.
    pub(crate) log: String,
    /// How it is logged.
    pub(crate) format: LogFormat,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            // The server of a database that is up to date says so at every boot.
            log: "info,sqlx::postgres::notice=warn".to_owned(),
            format: LogFormat::default(),
        }
    }
}

/// One source of settings, and what to call it in an error.
struct Layer {
    source: String,
    table: Table,
}

/// Reads the file, the environment and the flags.
pub(crate) fn load(file: Option<&Path>, flags: &[(&str, String)]) -> anyhow::Result<Config> {
    #[expect(clippy::disallowed_methods, reason = "this module owns the environment")]
    let variables = std::env::vars();
    let mut layers = Vec::new();
    if let Some(path) = file {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let table = text.parse().with_context(|| format!("{} is not TOML", path.display()))?;
        layers.push(Layer { source: path.display().to_string(), table });
    }
    layers.extend(variable_layers(variables));
    for (key, value) in flags {
        let source = format!("flag for {key}");
        layers.push(Layer { source, table: nested(&mut key.split('.'), value) });
    }
    merge(layers)
}

/// Turns each variable into a layer of its own, so that an error can name it.
fn variable_layers(variables: impl Iterator<Item = (String, String)>) -> Vec<Layer> {
    let is_key = |name: &str| name.starts_with(PREFIX) && !name.starts_with(TEST_PREFIX) && !NOT_KEYS.contains(&name);
    let mut named: Vec<_> = variables.filter(|(name, _)| is_key(name)).collect();
    named.sort();
    let layer = |(name, value): (String, String)| {
        let key = name[PREFIX.len()..].to_ascii_lowercase();
        Layer { table: nested(&mut key.split("__"), &value), source: name }
    };
    named.into_iter().map(layer).collect()
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

/// Checks each layer by itself, then lays later ones over earlier ones.
fn merge(layers: Vec<Layer>) -> anyhow::Result<Config> {
    let mut merged = Table::new();
    for layer in layers {
        let checked: Result<Config, _> = layer.table.clone().try_into();
        checked.map_err(|error| anyhow::anyhow!("{}: {}", layer.source, error.message()))?;
        overlay(&mut merged, layer.table);
    }
    let mut config: Config = merged.try_into().map_err(|error| anyhow::anyhow!("{}", error.message()))?;
    if let Some(path) = &config.bootstrap_key_file {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("bootstrap_key_file: cannot read {}", path.display()))?;
        config.bootstrap_key = Some(SecretText::from_presented(text.trim().to_owned()));
    }
    validate(&config)?;
    Ok(config)
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

fn validate(config: &Config) -> anyhow::Result<()> {
    if config.roles.is_empty() {
        bail!("roles: name at least one of api, scheduler, worker");
    }
    if config.roles.contains(&Role::Worker) && config.pools.is_empty() {
        bail!("pools: a worker serves at least one pool");
    }
    if config.scheduler.lease < Span::from_millis(500) {
        bail!("scheduler.lease: must be at least 500ms, since it is renewed at a third");
    }
    if config.scheduler.permits == 0 {
        bail!("scheduler.permits: must be at least 1");
    }
    if config.database.pool_size < 2 {
        bail!("database.pool_size: must be at least 2");
    }
    let is_key = |key: &SecretText| key.expose().starts_with(API_KEY_PREFIX) && key.expose().len() >= 24;
    if config.bootstrap_key.as_ref().is_some_and(|key| !is_key(key)) {
        bail!("bootstrap_key: must start with {API_KEY_PREFIX} and have at least 24 characters");
    }
    Ok(())
}

/// Arms the fail points that a test asked for; release builds have none.
pub(crate) fn arm_fail_points() -> anyhow::Result<()> {
    #[cfg(debug_assertions)]
    {
        #[expect(clippy::disallowed_methods, reason = "this module owns the environment")]
        let points = std::env::var("SWITCHBOARD_TEST_FAIL_POINTS");
        if let Ok(points) = points {
            switchboard_store_api::fail_point::arm(&points).map_err(anyhow::Error::msg)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)], file: &str) -> anyhow::Result<Config> {
        let mut layers = vec![Layer { source: "file".to_owned(), table: file.parse().unwrap() }];
        layers.extend(variable_layers(variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))));
        merge(layers)
    }

    #[test]
    fn variables_go_over_the_file() {
        let config = from(
            &[
                ("SWITCHBOARD_DATABASE__POOL_SIZE", "7"),
                ("SWITCHBOARD_ROLES", "api, worker"),
                ("SWITCHBOARD_INSTANCE__NAME", "1"),
                ("SWITCHBOARD_SCHEDULER__LEASE", "2s"),
                ("SWITCHBOARD_TEST_PG_URL", "x"),
                ("OTHER", "x"),
            ],
            "[database]\nurl = \"sqlite:a.db\"\npool_size = 3\n[server]\nallowed_origins = [\"https://a.example\"]",
        )
        .unwrap();
        assert_eq!(config.database.url, "sqlite:a.db");
        assert_eq!(config.database.pool_size, 7);
        assert_eq!(config.roles, [Role::Api, Role::Worker]);
        assert_eq!(config.instance.name, "1");
        assert_eq!(config.scheduler.lease, Span::from_secs(2));
        assert_eq!(config.server.allowed_origins, ["https://a.example"]);
    }

    #[test]
    fn errors_name_the_source_and_the_key() {
        let error = |variables: &[(&str, &str)], file: &str| from(variables, file).unwrap_err().to_string();
        assert!(error(&[("SWITCHBOARD_DATABASE__URI", "x")], "").starts_with("SWITCHBOARD_DATABASE__URI: "));
        assert!(error(&[], "colour = 1").starts_with("file: unknown field `colour`"));
        assert!(error(&[("SWITCHBOARD_ROLES", "api,boss")], "").contains("unknown role \"boss\""));
        assert!(error(&[("SWITCHBOARD_DATABASE__POOL_SIZE", "many")], "").contains("POOL_SIZE"));
        assert!(error(&[("SWITCHBOARD_SCHEDULER__LEASE", "1ms")], "").contains("scheduler.lease"));
        assert!(error(&[("SWITCHBOARD_BOOTSTRAP_KEY", "a-long-text-without-prefix")], "").contains("sbk_"));
    }
}
